/**
 * What the confinement of a sandbox means for MPI: each property of the default set is in effect while ranks of both
 * launchers work together over nodes and within one, and what a further one would break. Prints the latter as a table,
 * which xce-sandbox-worker(8) repeats.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Node } from '../support/cluster/node.ts';
import { spawnLaunch, unitsOf } from '../support/launches.ts';
import { type Allocated, type CliEnd, Site } from '../support/site.ts';

const COMPILERS = { prrte: 'mpicc.openmpi', hydra: 'mpicc.mpich' } as const;
type Launcher = keyof typeof COMPILERS;
const LAUNCHERS = ['prrte', 'hydra'] as const;
const JOB = '1';
const DROP_IN = '/run/systemd/system/xce-main-.service.d/further.conf';

let site: Site;
let lease: Allocated;
const table: string[] = [];

beforeAll(async () => {
  site = await Site.start({ layers: ['strace', 'mpich'], workers: ['n1', 'n2'] });
  for (const [launcher, compiler] of Object.entries(COMPILERS)) {
    for (const name of ['mpi-hello', 'mpi-transfer'])
      await site.compile(name, compiler, `${name}-${launcher}`);
  }
  lease = await site.allocate(JOB);
});

afterAll(async () => {
  process.stdout.write(`${table.join('\n')}\n`);
  await site?.down();
});

const launch = (launcher: Launcher, ranks: number): Promise<CliEnd> =>
  site.run([
    ...['launch', '--job', JOB, `--mpi=${launcher}`, '-n', String(ranks), '--timeout', '30s', '--'],
    `/shared/bin/mpi-hello-${launcher}`,
  ]);

/** systemd's own words for the default set, of a unit that runs. */
const DEFAULT_SET: Readonly<Record<string, string | RegExp>> = {
  User: '70000',
  Group: '70000',
  NoNewPrivileges: 'yes',
  CapabilityBoundingSet: '',
  AmbientCapabilities: '',
  RestrictSUIDSGID: 'yes',
  KeyringMode: 'private',
  LockPersonality: 'yes',
  RestrictNamespaces: 'yes',
  RestrictRealtime: 'yes',
  RestrictAddressFamilies: /^(AF_(INET6?|NETLINK|UNIX) ?){4}$/,
  SystemCallArchitectures: 'native',
  SystemCallErrorNumber: '1',
};

describe.each(LAUNCHERS)('under the default set, with %s', (launcher) => {
  test('ranks work together while each property is in effect on each node', async () => {
    const running = await spawnLaunch(site, [
      ...['--job', JOB, `--mpi=${launcher}`, '-n', '4', '--', `/shared/bin/mpi-hello-${launcher}`, '15'],
    ]);
    for (const rank of [0, 1, 2, 3]) await running.shows(`rank ${rank} of 4`);
    for (const node of site.workers) {
      const unit = /^\S+step\S+/m.exec(await unitsOf(node, lease.lease))?.[0] ?? '';
      const argv = Object.keys(DEFAULT_SET).flatMap((name) => ['-p', name]);
      const shown = await node.must(['systemctl', 'show', unit, ...argv]);
      const found = Object.fromEntries(
        shown
          .split('\n')
          .map((line) => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)]),
      );
      for (const [name, value] of Object.entries(DEFAULT_SET)) {
        if (typeof value === 'string')
          expect([node.name, name, found[name]]).toEqual([node.name, name, value]);
        else expect(found[name], `${node.name}: ${name}`).toMatch(value);
      }
    }
    expect((await running.child.ended).exitCode, running.errors.text).toBe(0);
    expect(running.output.text.match(/sum right shared 2 of 2$/gm)).toHaveLength(4);
  });

  test('two ranks of a node read each other’s memory by process_vm_readv, and /dev/shm is theirs alone', async () => {
    const n1: Node = site.cluster.node('n1');
    const running = await spawnLaunch(site, [
      ...['--job', JOB, '--nodes', 'n1', `--mpi=${launcher}`, '-n', '2', '--'],
      ...[`/shared/bin/mpi-transfer-${launcher}`, '20'],
    ]);
    await running.shows('up');
    const ranks = (await n1.must(['pgrep', '-f', `^/shared/bin/mpi-transfer-${launcher}`]))
      .trim()
      .split('\n');
    expect(ranks).toHaveLength(2);
    const trace = ['timeout', '8', 'strace', '-f', '-e', 'trace=process_vm_readv,process_vm_writev'];
    const seen = await n1.exec([...trace, ...ranks.flatMap((pid) => ['-p', pid])]);
    const calls = [...seen.stderr.toString().matchAll(/process_vm_(?:readv|writev)\((\d+), .* = (\d+)$/gm)];
    const largest = Math.max(0, ...calls.map(([, , bytes]) => Number(bytes)));
    const peers = [...new Set(calls.map(([, pid]) => pid))];
    expect(await n1.must(['find', '/dev/shm', '-uid', String(lease.uid)])).toBe('');
    expect((await running.child.ended).exitCode, running.errors.text).toBe(0);
    expect(running.output.text).toMatch(/^all right$/m);
    table.push(`CMA, ${launcher}: ${calls.length} calls, the largest of ${largest} bytes`);
    expect(ranks).toEqual(expect.arrayContaining(peers));
    expect(largest).toBeGreaterThan(64 << 10);
    const shm = await site.run(['launch', '--job', JOB, '--nodes', 'n1', '--', 'ls', '-A', '/dev/shm']);
    expect(shm).toMatchObject({ status: 0, stdout: '' });
  });
});

type Further = readonly [property: string, prrte: 'works' | 'breaks', hydra: 'works' | 'breaks', why: string];

const FURTHER: readonly Further[] = [
  [
    'MemoryDenyWriteExecute=yes',
    'breaks',
    'breaks',
    'the launch agent (V8 compiles) and UCX, which patches calls',
  ],
  ['PrivateUsers=yes', 'works', 'works', ''],
  ['RestrictAddressFamilies=~AF_NETLINK', 'breaks', 'breaks', 'PRRTE and UCX look for interfaces by netlink'],
  ['RestrictAddressFamilies=~AF_UNIX', 'breaks', 'breaks', 'the launch agent reaches its worker by a socket'],
];

describe('a further property of the units, by a drop-in', () => {
  const setFurther = async (property: string | undefined): Promise<void> => {
    await site.must('stop', '--job', JOB);
    for (const node of site.workers) {
      if (property === undefined) await node.must(['rm', '-f', DROP_IN]);
      else await node.writeFile(DROP_IN, `[Service]\n${property}\n`);
      await node.must(['systemctl', 'daemon-reload']);
    }
  };

  test.each(FURTHER)('%s: with prrte %s, with hydra %s', async (property, prrte, hydra, why) => {
    await setFurther(property);
    const found: string[] = [];
    const said: string[] = [];
    for (const launcher of LAUNCHERS) {
      const end = await launch(launcher, 4);
      found.push(end.status === 0 && end.stdout.match(/ sum right /g)?.length === 4 ? 'works' : 'breaks');
      said.push(end.stdout, end.stderr);
    }
    table.push([property.padEnd(54), ...found.map((word) => word.padEnd(6)), why].join('  '));
    await setFurther(undefined);
    expect(found, said.join('\n').slice(-3000)).toEqual([prrte, hydra]);
  });

  test('and none is left', async () => {
    for (const launcher of LAUNCHERS) expect(await launch(launcher, 4)).toMatchObject({ status: 0 });
  });
});
