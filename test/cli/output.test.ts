import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ALICE, CliHost, CONFIG_PATH, configuration, LOG_DIRECTORY } from './host.ts';
import { check } from './transcript.ts';

const LEASES = 5000;
const ESC = '\u001b';

let host: CliHost;
beforeAll(async () => {
  host = await CliHost.start();
  host.write(CONFIG_PATH, configuration({ 'pool.range': '70000-79999' }));
  await host.must(['lease', 'init']);
  await host.fillLog(LEASES);
}, 60_000);
afterAll(() => host.end());

const allocate = (job: string): string =>
  `xce-sandbox lease allocate --job ${job} --submitter ${ALICE} --nodes n1`;

const expectLease = async (job: string): Promise<void> => {
  const shown: unknown = JSON.parse(await host.must(['lease', 'show', '--job', job, '--json']));
  expect(shown).toMatchObject({ job, status: 'active' });
};

describe('a reader that goes', () => {
  test('ends a long list without a word, every time', async () => {
    // the pipe holds less than the list, so that most of the writes meet nobody
    const rounds =
      'for i in $(seq 10); do xce-sandbox lease list | head -1 >/dev/null; echo "${PIPESTATUS[0]}"; done';
    const ends = await Promise.all([host.shell(rounds), host.shell(rounds)]);
    expect(ends.map(({ stderr }) => stderr)).toEqual(['', '']);
    const statuses = ends.flatMap(({ stdout }) => stdout.trim().split('\n'));
    expect(statuses).toHaveLength(20);
    expect(statuses.filter((status) => status !== '0' && status !== '141')).toEqual([]);
  });

  test('ends help and JSON the same way', async () => {
    for (const command of [
      'xce-sandbox --help',
      'xce-sandbox lease list --json',
      'xce-sandbox config show',
    ]) {
      const line = `${command} | true; echo "\${PIPESTATUS[0]}"`;
      const { stdout, stderr } = await host.shell(line);
      expect({ command, stderr }).toEqual({ command, stderr: '' });
      expect(['0', '141'], command).toContain(stdout.trim());
    }
  });

  test('gets all of the list when it stays', async () => {
    const { stdout } = await host.shell('xce-sandbox lease list | wc -l');
    expect(stdout.trim()).toBe(String(LEASES + 1));
  });
});

describe('a result that cannot be delivered', () => {
  const noSpace = /^xce-sandbox: cannot write to standard output: ENOSPC \[output\]\n {2}unchanged: /;

  test('is an error, and the lease that was granted is there', async () => {
    const end = await host.shell(`${allocate('full')} > /dev/full`);
    expect(end).toMatchObject({ status: 74, stdout: '' });
    expect(end.stderr).toMatch(noSpace);
    expect(end.stderr).toMatch(/ {2}next: xce-sandbox lease list\n$/);
    await expectLease('full');
    const again = await host.shell(allocate('full'));
    expect(again).toMatchObject({ status: 0, stderr: '' });
    expect(again.stdout).toMatch(/^outcome: {3}repeated\n/);
  });

  test('is the same error for every command, with and without --json', async () => {
    for (const command of ['--help', '--version', 'help', 'config show', 'lease list', 'lease list --json']) {
      const end = await host.shell(`xce-sandbox ${command} > /dev/full`);
      expect({ command, status: end.status }).toEqual({ command, status: 74 });
      expect(end.stderr, command).toMatch(noSpace);
    }
  });

  test('may be discarded by whoever opens /dev/null for reading as well, as many programs do', async () => {
    for (const command of ['--help', 'config show', 'lease list --json', 'lease renew --job full']) {
      const end = await host.shell(`xce-sandbox ${command} 1<>/dev/null`);
      expect({ command, ...end }).toEqual({ command, status: 0, stdout: '', stderr: '' });
    }
  });

  test('keeps allocate from granting when stdout is closed from the start', async () => {
    const before = host.snapshot(LOG_DIRECTORY);
    for (const flag of ['', ' --json']) {
      const end = await host.shell(`${allocate('closed')}${flag} >&-`);
      expect(end).toMatchObject({ status: 74, stdout: '' });
      expect(end.stderr).toMatch(
        /^xce-sandbox: standard output is closed; .* \[output\]\n {2}unchanged: nothing/,
      );
    }
    expect(host.snapshot(LOG_DIRECTORY)).toEqual(before);
  });

  test('is an error as well where the reader of allocate has gone, and the lease is there', async () => {
    for (const flag of ['', ' --json']) {
      const end = await host.shell(`${allocate('unread')}${flag} | true; echo "\${PIPESTATUS[0]}"`);
      expect(end.stdout).toBe('74\n');
      expect(end.stderr).toMatch(/^xce-sandbox: cannot write to standard output: EPIPE \[output\]\n/);
      expect(end.stderr).toMatch(/ {2}next: xce-sandbox lease list\n$/);
    }
    await expectLease('unread');
  });

  test('is no error where it was thrown away on purpose', async () => {
    expect(await host.shell(`${allocate('null')} > /dev/null`)).toEqual({
      status: 0,
      stdout: '',
      stderr: '',
    });
    await expectLease('null');
  });

  test('does not depend on stderr', async () => {
    for (const redirect of ['2>&-', '2>/dev/full', '2> >(true)']) {
      const refused = await host.shell(`xce-sandbox lease show --job nobody ${redirect}`);
      expect({ redirect, status: refused.status }).toEqual({ redirect, status: 66 });
      const shown = await host.shell(`xce-sandbox lease show --job null ${redirect}`);
      expect({ redirect, status: shown.status }).toEqual({ redirect, status: 0 });
    }
  });

  test('with stdin closed is delivered', async () => {
    const { status, stdout } = await host.shell('xce-sandbox lease show --job null <&-');
    expect(status).toBe(0);
    expect(stdout).toMatch(/^lease: /);
  });
});

/** A command on a terminal; script(1) gives one, and both streams go there. */
const onTerminal = (command: string, env: Readonly<Record<string, string>>) =>
  host.shell(`script --quiet --return --command '${command}' /dev/null </dev/null`, { env });

test('a terminal that says it has no width is taken for one of 80 columns', async () => {
  const { stdout } = await onTerminal('stty cols 0 && xce-sandbox status -n n1', { TERM: 'xterm-256color' });
  expect(stdout).toContain('ask 1 worker');
});

describe('colour', () => {
  const ENVIRONMENTS = [
    { NO_COLOR: '1' },
    { FORCE_COLOR: '1' },
    { CI: '1' },
    { TERM: 'dumb' },
    { TERM: 'xterm-256color', COLORTERM: 'truecolor' },
    {},
  ];

  test.each(ENVIRONMENTS)('never gets into JSON: %o', async (env) => {
    const list = await host.xce(['config', 'show', '--json'], { env });
    expect(list).toMatchObject({ status: 0, stderr: '' });
    expect(list.stdout).not.toContain(ESC);
    const refused = await host.xce(['lease', 'allocate', '--json'], { env });
    expect(refused.status).toBe(64);
    expect(refused.stdout).not.toContain('u001b');
    expect(JSON.parse(refused.stdout)).toMatchObject({ error: { code: 'usage', exitStatus: 64 } });
    const terminal = await onTerminal('xce-sandbox config show --json', env);
    expect(terminal.status).toBe(0);
    expect(terminal.stdout).not.toContain(ESC);
    expect(JSON.parse(terminal.stdout)).toEqual(JSON.parse(list.stdout));
  });

  test.each(ENVIRONMENTS)('gets into a pipe only by force: %o', async (env) => {
    const isForced = 'FORCE_COLOR' in env;
    const table = await host.xce(['config', 'show'], { env });
    expect(table.stdout.includes(ESC)).toBe(isForced);
    const refused = await host.xce(['lease', 'show'], { env });
    expect(refused.stderr.includes(ESC)).toBe(isForced);
    const help = await host.xce(['--help'], { env: { ...env, NO_COLOR: '1' } });
    if (!isForced) expect(help.stdout).not.toContain(ESC);
  });

  test('is on a terminal, and not where NO_COLOR or TERM=dumb is set', async () => {
    const term = { TERM: 'xterm-256color' };
    expect((await onTerminal('xce-sandbox config show', term)).stdout).toContain(`${ESC}[1m`);
    for (const env of [{ ...term, NO_COLOR: '1' }, { TERM: 'dumb' }]) {
      for (const command of ['config show', 'lease show', '--help']) {
        const { stdout } = await onTerminal(`xce-sandbox ${command}`, env);
        expect(stdout.includes(ESC), `${command} ${JSON.stringify(env)}`).toBe(false);
      }
    }
  });

  test('of an error depends on stderr, not on stdout', async () => {
    const env = { TERM: 'xterm-256color' };
    await host.shell(`script --quiet --command 'xce-sandbox lease show 2>/srv/err' /dev/null </dev/null`, {
      env,
    });
    expect(host.read('/srv/err')).toMatch(/^xce-sandbox: which lease is meant/);
  });
});

test('an error with --json is one document, and its talk stands on stderr', async () => {
  const { stdout } = await check(host, {
    args: 'lease show --job nobody --json',
    status: 66,
    stdout: /^\{\n {2}"error": \{\n/,
    stderr: 'xce-sandbox: job nobody has no lease [lease-missing]\n  next: xce-sandbox lease list\n',
  });
  expect(JSON.parse(stdout)).toMatchObject({ error: { code: 'lease-missing', exitStatus: 66 } });
});
