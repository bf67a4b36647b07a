import { describe, expect, test } from 'vitest';
import { isDaemonProgram, parseAgentArguments } from '../../../src/mpi/agent-command.ts';

const prted = [
  'n2',
  'PRTE_PREFIX=/usr;export PRTE_PREFIX;LD_LIBRARY_PATH=/usr/lib:/usr/lib/x86_64-linux-gnu/pmix2/lib:$LD_LIBRARY_PATH;export LD_LIBRARY_PATH;DYLD_LIBRARY_PATH=/usr/lib:$DYLD_LIBRARY_PATH;export DYLD_LIBRARY_PATH;/usr/bin/prted',
  '--prtemca',
  'ess_base_nspace',
  '"prterun-n1-269@0"',
  '--prtemca',
  'prte_hnp_uri',
  '"prterun-n1-269@0.0;tcp://10.77.0.1:47879:24"',
  '--tree-spawn',
];

describe('what launchers write is read', () => {
  test('Open MPI 5 hands prted as an export prefix and quoted words', () => {
    expect(parseAgentArguments(prted)).toEqual({
      node: 'n2',
      argv: [
        '/usr/bin/prted',
        '--prtemca',
        'ess_base_nspace',
        'prterun-n1-269@0',
        '--prtemca',
        'prte_hnp_uri',
        'prterun-n1-269@0.0;tcp://10.77.0.1:47879:24',
        '--tree-spawn',
      ],
      environment: ['PRTE_PREFIX=/usr', 'LD_LIBRARY_PATH=/usr/lib:/usr/lib/x86_64-linux-gnu/pmix2/lib'],
    });
  });

  test('Open MPI 4 puts blanks around the semicolons and sets PATH, which is dropped', () => {
    const parsed = parseAgentArguments([
      'n2',
      ' PATH=/usr/bin:$PATH ; export PATH ; LD_LIBRARY_PATH=/usr/lib:${LD_LIBRARY_PATH:-} ; export LD_LIBRARY_PATH ; /usr/bin/orted -mca ess "env" -mca plm "rsh"',
    ]);
    expect(parsed).toEqual({
      node: 'n2',
      argv: ['/usr/bin/orted', '-mca', 'ess', 'env', '-mca', 'plm', 'rsh'],
      environment: ['LD_LIBRARY_PATH=/usr/lib'],
    });
  });

  test('hydra asks for no X forwarding first', () => {
    expect(
      parseAgentArguments([
        '-x',
        'n3',
        '"/usr/bin/hydra_pmi_proxy"',
        '--control-port',
        'n1:4711',
        '--proxy-id',
        '1',
      ]),
    ).toEqual({
      node: 'n3',
      argv: ['/usr/bin/hydra_pmi_proxy', '--control-port', 'n1:4711', '--proxy-id', '1'],
      environment: [],
    });
  });
});

describe('what a shell would do more with is refused', () => {
  const refusals: readonly (readonly [string, readonly string[]])[] = [
    ['no command', ['n2']],
    ['no arguments at all', []],
    ['an option in place of a node', ['-oProxyCommand=x', 'prted']],
    ['another program', ['n2', '/bin/sh', '-c', 'id']],
    ['another program under the name of a directory', ['n2', '/usr/bin/prted/../sh']],
    ['a relative path', ['n2', './prted']],
    ['a second command', ['n2', 'prted;id']],
    ['a second command after blanks', ['n2', 'prted', ';', 'id']],
    ['a pipe', ['n2', 'prted|id']],
    ['a substitution', ['n2', 'prted', '$(id)']],
    ['a substitution inside quotes', ['n2', 'prted', '"`id`"']],
    ['a variable inside quotes', ['n2', 'prted', '"$HOME"']],
    ['a default that is not empty', ['n2', 'LD_LIBRARY_PATH=${X:-/tmp};export LD_LIBRARY_PATH;prted']],
    ['a redirection', ['n2', 'prted', '>/tmp/x']],
    ['a glob', ['n2', 'prted', '*']],
    ['a new line', ['n2', 'prted\nid']],
    ['a quote that stays open', ['n2', 'prted', '"abc']],
    ['a subshell that reads a profile', ['n2', '( test ! -r ./.profile || . ./.profile; prted )']],
    [
      'a variable that makes a program load something',
      ['n2', 'LD_PRELOAD=/tmp/x.so;export LD_PRELOAD;prted'],
    ],
    ['an assignment without export', ['n2', 'LD_LIBRARY_PATH=/tmp prted']],
    ['a comment', ['n2', 'prted', '#', 'not read']],
    ['a word that begins like a comment', ['n2', 'prted', '#x']],
    ['a home directory', ['n2', 'prted', '~/x']],
    ['a program in a home directory', ['n2', '~root/prted']],
    [
      'a home directory in a search path',
      ['n2', 'LD_LIBRARY_PATH=/usr/lib:~/x;export LD_LIBRARY_PATH;prted'],
    ],
    ['an export of another variable', ['n2', 'LD_LIBRARY_PATH=/usr/lib;export LD_PRELOAD;prted']],
  ];
  test.each(refusals)('%s', (_, args) => {
    expect(parseAgentArguments(args)).toHaveProperty('refused');
  });
});

test('a tilde and a hash inside a word stand for themselves', () => {
  expect(parseAgentArguments(['n2', 'prted', 'a~b#c', '"~"', "'#'"])).toMatchObject({
    argv: ['prted', 'a~b#c', '~', '#'],
  });
});

test('a search path never gets an empty element, which would be the working directory', () => {
  expect(
    parseAgentArguments(['n2', 'LD_LIBRARY_PATH=:/usr/lib::$X:;export LD_LIBRARY_PATH;prted']),
  ).toMatchObject({
    environment: ['LD_LIBRARY_PATH=/usr/lib'],
  });
});

test('only the daemons of the three launchers count as daemons', () => {
  expect(['prted', '/usr/bin/orted', '/opt/mpich/bin/hydra_pmi_proxy'].every(isDaemonProgram)).toBe(true);
  expect(['sh', '/tmp/prted.sh', 'bin/prted', '/usr/../tmp/prted', ''].some(isDaemonProgram)).toBe(false);
});
