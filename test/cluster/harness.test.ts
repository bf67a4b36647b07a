import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Cluster } from '../support/cluster/cluster.ts';
import { readMounts } from '../support/cluster/host.ts';
import { identify, isAlive, type ProcessId } from '../support/cluster/process.ts';
import { cgroupsOf, readFacts, settle, sweep } from '../support/cluster/scope.ts';

/** What is left on the machine of a cluster that was in `directory`. */
const leftovers = (
  directory: string,
  cgroups: readonly string[],
  leaders: readonly ProcessId[],
): readonly string[] => [
  ...[directory, ...cgroups].filter((path) => existsSync(path)),
  ...readMounts()
    .map(({ point }) => point)
    .filter((point) => point.startsWith(directory)),
  ...leaders.filter(isAlive).map(({ pid }) => `process ${pid}`),
];

describe('a cluster of two nodes', { timeout: 60_000 }, () => {
  let cluster: Cluster;
  beforeAll(async () => {
    cluster = await Cluster.start({ nodes: ['ctl', 'n1'], product: false });
  }, 1_800_000);
  afterAll(async () => {
    await cluster.down();
  }, 60_000);

  test('reaches each other by name', async () => {
    for (const [from, to] of [
      ['ctl', 'n1'],
      ['n1', 'ctl'],
    ] as const) {
      await cluster.node(from).must(['ping', '-c', '1', '-W', '2', to]);
    }
  });

  test('runs systemd as PID 1 and has no failed unit', async () => {
    for (const node of cluster.nodes) {
      expect(await node.must(['cat', '/proc/1/comm'])).toBe('systemd\n');
      expect(await node.must(['systemctl', '--failed', '--no-legend'])).toBe('');
    }
  });

  test('has boot ids and machine ids of its own on each node', async () => {
    const read = async (path: string): Promise<Set<string>> =>
      new Set(await Promise.all(cluster.nodes.map((node) => node.must(['cat', path]))));
    expect((await read('/proc/sys/kernel/random/boot_id')).size).toBe(2);
    expect((await read('/etc/machine-id')).size).toBe(2);
  });

  test('passes exit statuses, signals, streams and identity through exec', async () => {
    const node = cluster.node('n1');
    expect(await node.exec(['sh', '-c', 'exit 42'])).toMatchObject({ exitCode: 42, signal: null });
    expect(await node.exec(['sh', '-c', 'kill -KILL $$'])).toMatchObject({
      exitCode: null,
      signal: 'SIGKILL',
    });
    const bytes = Buffer.from([0, 255, 10, 13, 128]);
    expect((await node.exec(['cat'], { input: bytes })).stdout.equals(bytes)).toBe(true);
    expect((await node.exec(['sh', '-c', 'echo out; echo err >&2'])).stderr.toString()).toBe('err\n');
    expect(await node.must(['id'], { uid: 1001 })).toBe(
      'uid=1001(alice) gid=1001(alice) groups=1001(alice)\n',
    );
    expect(await node.must(['printf', '%s|', ' a  b ', '', '$HOME'])).toBe(' a  b ||$HOME|');
  });

  test('ends a program on the node when its deadline passes', async () => {
    const node = cluster.node('n1');
    const end = await node.exec(['sleep', '987'], { timeoutMs: 200 });
    expect(end).toMatchObject({ timedOut: true, signal: 'SIGKILL' });
    expect((await node.exec(['pgrep', '-f', '^sleep 987'])).exitCode).toBe(1);
  });

  test('signals a spawned program itself', async () => {
    const child = await cluster
      .node('n1')
      .spawn(['sh', '-c', 'trap "exit 5" TERM; echo armed; while :; do sleep 0.05; done']);
    await once(child.stdout, 'data');
    child.kill('SIGTERM');
    expect(await child.ended).toEqual({ exitCode: 5, signal: null });
  });

  test('shares /shared between all nodes and /ctl-shared with controllers alone', async () => {
    writeFileSync(join(cluster.sharedPath, 'note'), 'for all');
    writeFileSync(join(cluster.controllerSharedPath, 'note'), 'for one');
    for (const node of cluster.nodes) expect(await node.must(['cat', '/shared/note'])).toBe('for all');
    expect(await cluster.node('ctl').must(['cat', '/ctl-shared/note'])).toBe('for one');
    expect((await cluster.node('n1').exec(['cat', '/ctl-shared/note'])).exitCode).toBe(1);
  });

  test('has no ssh but a canary that tells of a call out of a read-only sandbox', async () => {
    const node = cluster.node('n1');
    expect(node.readSshRuns()).toEqual([]);
    expect((await node.exec(['sh', '-c', 'command -v sshd'])).exitCode).not.toBe(0);
    const confined = [
      'systemd-run',
      '--wait',
      '--pipe',
      '-q',
      '-p',
      'ProtectSystem=strict',
      '-p',
      'User=alice',
    ];
    expect((await node.exec([...confined, 'ssh', 'n2'])).exitCode).toBe(97);
    expect(node.readSshRuns()).toEqual(['uid 1001: /usr/bin/ssh n2']);
  });

  test('loses a node by cable and by power and gets it back', async () => {
    const [ctl, n1] = [cluster.node('ctl'), cluster.node('n1')];
    const ping = ['ping', '-c', '1', '-W', '1', 'n1'];
    await n1.linkDown();
    expect((await ctl.exec(ping)).exitCode).toBe(1);
    await n1.linkUp();
    expect((await ctl.exec(['ping', '-c', '5', '-i', '0.2', '-w', '3', 'n1'])).stdout.toString()).toMatch(
      /[1-5] received/,
    );
    await n1.writeFile('/var/lib/kept', 'kept');
    const before = await n1.must(['cat', '/proc/sys/kernel/random/boot_id']);
    await n1.killHard();
    expect(n1.running).toBe(false);
    await n1.boot();
    expect(await n1.must(['cat', '/var/lib/kept'])).toBe('kept');
    expect(await n1.must(['cat', '/proc/sys/kernel/random/boot_id'])).not.toBe(before);
    await n1.powerOff();
    await n1.boot();
    expect(await ctl.must(ping)).toContain('1 received');
  });
});

const startOwner = async (): Promise<{ owner: ChildProcess; directory: string; leader: ProcessId }> => {
  const program = fileURLToPath(new URL('harness-owner.ts', import.meta.url));
  const owner = spawn(process.execPath, ['--import', 'tsx', program], { stdio: ['pipe', 'pipe', 'inherit'] });
  const [line] = (await once(owner.stdout, 'data')) as [Buffer];
  return { owner, ...(JSON.parse(line.toString()) as { directory: string; leader: ProcessId }) };
};

describe('nothing is left', () => {
  test('after down', { timeout: 120_000 }, async () => {
    const cluster = await Cluster.start({ nodes: ['n1'], product: false });
    const leader = identify(cluster.node('n1').leaderPid);
    const cgroups = cgroupsOf(cluster.directory);
    writeFileSync(Buffer.concat([Buffer.from(join(cluster.sharedPath, 'odd')), Buffer.from([255, 10])]), '');
    expect(leftovers(cluster.directory, cgroups, [leader]).length).toBeGreaterThan(4);
    await cluster.down();
    expect(leftovers(cluster.directory, cgroups, [leader])).toEqual([]);
  });

  test.each(['SIGKILL', 'SIGTERM', 'SIGINT'] as const)(
    'after the owner got %s',
    { timeout: 120_000 },
    async (signal) => {
      const { owner, directory, leader } = await startOwner();
      const cgroups = cgroupsOf(directory);
      owner.kill(signal);
      await once(owner, 'exit');
      await settle(30_000);
      expect(leftovers(directory, cgroups, [leader])).toEqual([]);
    },
  );

  test('after owner and reaper were killed and the next run has swept', { timeout: 120_000 }, async () => {
    const { owner, directory, leader } = await startOwner();
    const cgroups = cgroupsOf(directory);
    const reaper = readFacts(directory)?.reaper;
    if (reaper === undefined || reaper === null) throw new Error('no reaper is recorded');
    process.kill(reaper.pid, 'SIGKILL');
    owner.kill('SIGKILL');
    await once(owner, 'exit');
    expect(leftovers(directory, cgroups, [leader]).length).toBeGreaterThan(4);
    await sweep();
    expect(leftovers(directory, cgroups, [leader])).toEqual([]);
  });
});
