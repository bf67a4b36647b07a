import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { faultsOf } from '../support/json-schema.ts';
import { ALICE, CliHost, CONFIG_PATH, configuration, LOG_DIRECTORY, PKI_DIRECTORY } from './host.ts';
import { expectRefusal, wordsOf } from './transcript.ts';

const eventSchema = JSON.parse(
  readFileSync(new URL('../../share/launch-events.schema.json', import.meta.url), 'utf8'),
) as Record<string, unknown>;

let host: CliHost;
beforeAll(async () => {
  host = await CliHost.start();
  await host.must(['lease', 'init']);
  await host.must(['pki', 'init']);
  await host.must(wordsOf(`pki issue --role controller --node ctl --out ${PKI_DIRECTORY}`));
  host.write('/etc/hosts', '127.0.0.1 localhost n1 n2 n3\n');
  await host.must(wordsOf(`lease allocate --job 42 --submitter ${ALICE} --nodes n[1-3]`));
});
afterAll(() => host.end());

describe('launch says 125 for everything that is not the job', () => {
  test.each<[args: string, code: string, says: RegExp]>([
    [
      'launch --job 42 id',
      'usage',
      /there is no command to run .*\n {2}next: put it behind --, as in: -- id -u\n/,
    ],
    ['launch --job 42', 'usage', /there is no command to run/],
    ['launch --job 42 --', 'usage', /there is no command to run/],
    ['launch -- id', 'usage', /which lease is meant\?/],
    ['launch --job 42 --ranks 0 --mpi -- id', 'usage', /--ranks: '0' is not a number from 1/],
    ['launch --job 42 --ranks 2 -- id', 'usage', /--mpi/],
    ['launch --job 42 --mpi=slurm -- id', 'usage', /--mpi: 'slurm' is none of prrte, orte, hydra/],
    ['launch --job 42 --mpi --mpi=hydra -- id', 'usage', /--mpi is given more than once/],
    ['launch --job --mpi hydra -- id', 'usage', /--job needs a value/],
    ['launch --job 42 --mpi slurm -- id', 'usage', /takes no argument 'slurm'/],
    ['launch --job 42 --stdin n2 --mpi hydra -- id', 'node-unknown', /n2 is none of none, all, or/],
    ['launch --job 42 --stdin n9 -- id', 'node-unknown', /n9 is none of none, all, or a node with a step/],
    [
      'launch --job 42 --nodes n9 -- id',
      'node-unknown',
      /n9 is none of the nodes of lease 1 \(.*lease show --job 42/s,
    ],
    ['launch --job 42 --env A=1 --env 1A=2 -- id', 'usage', /'1A' is not the name of a variable/],
    ['launch --job 42 --env NOT_SET_HERE -- id', 'usage', /NOT_SET_HERE is not set here/],
    ['launch --job 42 --env HOME=/x -- id', 'usage', /HOME is set by the sandbox/],
    ['launch --job 42 --env-file /etc/none.env -- id', 'io', /cannot open \/etc\/none\.env: ENOENT/],
    [
      'launch --job 42 --env-file /etc/hosts -- id',
      'env-file',
      /\/etc\/hosts line 1: .* is not the name of a variable/,
    ],
    [
      'launch --job 42 --output job-%j-%x.out -- id',
      'usage',
      /"%x" at character 8 is none of %j, %a, %n, %t and %%/,
    ],
    ['launch --job 77 -- id --env-file /etc/none.env', 'lease-missing', /job 77 has no lease/],
    ['launch --job 42 --append -- id', 'usage', /append/],
    ['launch --job 42 --tasks-per-node 129 -- id', 'usage', /over the limit of 128/],
    ['launch --job 42 --memory 15M -- id', 'usage', /--memory: 15M is less than 16M/],
    ['launch --job 42 --memory 70000G -- id', 'usage', /--memory: 70000G is over 65536G/],
    ['launch --job 42 --memory infinity -- id', 'usage', /--memory: "infinity" is not a size/],
    [
      `launch --job 42 ${'--device /dev/fuse '.repeat(257)}-- id`,
      'usage',
      /--device is given 257 times; a job has at most 256/,
    ],
    ['launch --job 42 --chdir here -- id', 'usage', /the working directory must be an absolute path/],
    ['launch --job 42 --timeout 5 -- id', 'usage', /--timeout: '5' is not a duration/],
    ['launch --job 77 -- id', 'lease-missing', /job 77 has no lease/],
    ['launch --job 42 --config /etc/none.ini -- id', 'config-missing', /\/etc\/none\.ini/],
  ])('%s', async (args, code, says) => {
    await expectRefusal(host, { args, code, status: 125, says });
  });

  test('no worker answers: nothing was started, and no binding was recorded', async () => {
    const before = host.snapshot(LOG_DIRECTORY);
    const { message } = await expectRefusal(host, {
      args: 'launch --job 42 -- id',
      code: 'launch-refused',
      status: 125,
      says: / {2}unchanged: nothing was started on any node\n/,
    });
    expect(message).toContain('cannot connect to n[1-3] port 7713: ');
    expect(host.snapshot(LOG_DIRECTORY)).toEqual(before);
  });

  test('the error is one line of events with --json', async () => {
    const { stdout } = await host.xce(wordsOf('launch --job 42 --json -- id'));
    const lines = stdout
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as { event: string });
    expect(lines.at(-1)).toMatchObject({
      event: 'error',
      error: { code: 'launch-refused', exitStatus: 125 },
    });
    expect(lines.flatMap((line) => faultsOf(eventSchema, line))).toEqual([]);
  });

  test('without the keys of this host it says which file is missing', async () => {
    await host.shell(`mv ${PKI_DIRECTORY}/host.key ${PKI_DIRECTORY}/away`);
    const refusal = { args: 'launch --job 42 -- id', code: 'launch-refused', status: 125 };
    await expectRefusal(host, { ...refusal, says: /cannot open \/etc\/xce-sandbox\/pki\/host\.key: ENOENT/ });
    await host.shell(`mv ${PKI_DIRECTORY}/away ${PKI_DIRECTORY}/host.key`);
  });
});

describe('with workers that do not answer', () => {
  /** The document of a status that no node answers. */
  const silentStatus = async (): Promise<{ detail: unknown; message: string }> => {
    const { status, stdout } = await host.xce(['status', '--json']);
    expect(status).toBe(69);
    return (JSON.parse(stdout) as { error: { detail: unknown; message: string } }).error;
  };

  test('status still shows the leases, and which nodes are silent', async () => {
    const { detail, message } = await silentStatus();
    expect(message).toBe('no answer from 3 nodes: n[1-3]: cannot connect to n[1-3] port 7713: ECONNREFUSED');
    const shown = detail as {
      leases: unknown[];
      pool: unknown;
      nodes: { node: string; reachable: boolean; error: { code: string } }[];
    };
    expect(shown.leases).toMatchObject([{ job: '42', status: 'active' }]);
    expect(shown.pool).toEqual({ size: 100, leased: 1 });
    expect(shown.nodes.map(({ node, error }) => [node, error.code])).toEqual(
      ['n1', 'n2', 'n3'].map((node) => [node, 'worker-unreachable']),
    );
    const table = await host.xce(['status']);
    expect(table.status).toBe(69);
    expect(table.stdout).toMatch(/^pool: 1 of 100 uids leased\n\nLEASE /);
    expect(table.stdout).toMatch(/^n2 .* worker-unreachable /m);
  });

  test('names that the name server does not answer for hold no other one up, and are told alike', async () => {
    const silent = createSocket('udp4').bind(53, '127.77.0.53');
    await once(silent, 'listening');
    const resolver = 'nameserver 127.77.0.53\noptions timeout:1 attempts:1\n';
    const nodes = configuration({ 'nodes.hosts': 'x[1-40],n1' }).replace('= 2s', '= 10s');
    const before = host.read(CONFIG_PATH);
    await host.shell('mv /etc/resolv.conf /etc/resolv.before');
    try {
      host.write('/etc/resolv.conf', resolver);
      host.write(CONFIG_PATH, nodes);
      const { detail } = await silentStatus();
      const shown = detail as { nodes: { node: string; error: { message: string } }[] };
      const said = new Set(shown.nodes.map(({ node, error }) => error.message.replaceAll(node, 'NODE')));
      expect([...said]).toEqual([
        'NODE: cannot connect to NODE port 7713: no address for that name here, the look-up says EAI_AGAIN',
        'NODE: cannot connect to NODE port 7713: ECONNREFUSED',
      ]);
    } finally {
      host.write(CONFIG_PATH, before);
      await host.shell('rm -f /etc/resolv.conf; mv /etc/resolv.before /etc/resolv.conf');
      silent.close();
    }
  });

  test('stop is not done', async () => {
    await expectRefusal(host, {
      args: 'stop --job 42',
      code: 'worker-unreachable',
      status: 69,
      says: /unchanged: /,
    });
  });

  test('release keeps the uid in quarantine, and may be repeated', async () => {
    const refusal = { args: 'lease release --job 42', code: 'release-blocked', status: 69, inTurn: true };
    const { stderr } = await host.xce(['lease', 'release', '--job', '42']);
    expect(stderr).toMatch(/ {2}unchanged: uid 70000 stays with lease 1, which is in quarantine now/);
    await expectRefusal(host, {
      ...refusal,
      says: /uid 70000 is kept in quarantine .*\n {2}next: .*lease release --job 42/,
    });
    const { stdout } = await host.xce(['lease', 'list']);
    expect(stdout).toMatch(/^1 +70000 +42 +0 +quarantined +- +n\[1-3\] +node-unreachable: n\[1-3\]: /m);
    await expectRefusal(host, { args: 'lease renew --job 42', code: 'lease-state', status: 77 });
    await expectRefusal(host, { args: 'normalise --job 42', code: 'lease-state', status: 77 });
  });
});
