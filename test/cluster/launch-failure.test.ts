/** What dies while a job runs or starts, and what is true afterwards. */
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import type { Node, Spawned } from '../support/cluster/node.ts';
import { Site } from '../support/site.ts';

let site: Site;
let job = 100;

/** From the event to the end of the launch, everywhere. */
const END_MS_MAX = 10_000;

beforeAll(async () => {
  site = await Site.start();
});

afterAll(async () => {
  await site?.down();
});

/** Whatever happened, one release must reach a clean end, and nothing of the uid is left. */
afterEach(async () => {
  for (const lease of await site.json<{ lease: number; uid: number }[]>('lease', 'list')) {
    await site.must('lease', 'release', '--lease', String(lease.lease));
    for (const node of site.workers)
      expect([node.name, await processesOf(node, lease.uid)]).toEqual([node.name, '']);
  }
  expect(await site.json('lease', 'list')).toEqual([]);
});

const processesOf = async (node: Node, uid: number): Promise<string> =>
  (await node.exec(['ps', '-o', 'args=', '-u', String(uid)])).stdout.toString();

type Running = {
  readonly child: Spawned;
  readonly output: { text: string };
  readonly errors: { text: string };
  /** Resolves when the output has that text. */
  readonly shows: (text: string) => Promise<void>;
};

const spawnLaunch = async (args: readonly string[]): Promise<Running> => {
  const child = await site.controller.spawn(['xce-sandbox', 'launch', ...args]);
  const output = { text: '' };
  const errors = { text: '' };
  let look = (): void => undefined;
  child.stdout.on('data', (bytes: Buffer) => {
    output.text += bytes.toString();
    look();
  });
  child.stderr.on('data', (bytes: Buffer) => {
    errors.text += bytes.toString();
  });
  const shows = (text: string): Promise<void> =>
    new Promise((resolve, reject) => {
      look = () => {
        if (output.text.includes(text)) resolve();
      };
      look();
      child.ended.then(() => reject(new Error(`ended without '${text}': ${output.text} ${errors.text}`)));
    });
  return { child, output, errors, shows };
};

const nextJob = (): string => String(job++);

const launchSleepingMpi = async (): Promise<{ running: Running; uid: number; lease: number }> => {
  const id = nextJob();
  const { uid, lease } = await site.allocate(id);
  const running = await spawnLaunch([
    ...['--job', id, '--mpi', '-n', '3', '--', 'sh', '-c'],
    'echo "up $(hostname)"; exec sleep 120',
  ]);
  for (const node of ['n1', 'n2', 'n3']) await running.shows(`up ${node}`);
  return { running, uid, lease };
};

/** The launch ends with 125 in time, says why, and has left nothing of the uid running anywhere. */
const expectFailure = async (running: Running, uid: number, reason: RegExp): Promise<void> => {
  const startMs = performance.now();
  const end = await running.child.ended;
  expect(performance.now() - startMs).toBeLessThan(END_MS_MAX);
  expect(end.exitCode).toBe(125);
  expect(running.errors.text).toMatch(reason);
  for (const node of site.workers) {
    if (node.running) expect([node.name, await processesOf(node, uid)]).toEqual([node.name, '']);
  }
};

test('a remote prted that is killed ends the job on all nodes, although mpirun says 0', async () => {
  const { running, uid } = await launchSleepingMpi();
  await site.cluster.node('n2').must(['pkill', '-KILL', '-x', 'prted']);
  await expectFailure(running, uid, /MPI daemon on n2 .*signal 9/);
});

test('a unit that is stopped on one node ends the job on all nodes', async () => {
  const { running, uid, lease } = await launchSleepingMpi();
  await site.cluster.node('n3').must(['sh', '-c', `systemctl stop 'xce-main-${lease}.*.step.*'`]);
  await expectFailure(running, uid, /MPI daemon on n3 .*(stopped|signal)/);
});

test('a sandbox that is stopped on one node ends a job of plain tasks everywhere', async () => {
  const id = nextJob();
  const { uid, lease } = await site.allocate(id);
  const running = await spawnLaunch(['--job', id, '--label', '--', 'sh', '-c', 'echo up; exec sleep 120']);
  for (const node of ['n1', 'n2', 'n3']) await running.shows(`${node}: up`);
  await site.cluster.node('n2').must(['sh', '-c', `systemctl stop 'xce-main-${lease}.*.anchor.service'`]);
  await expectFailure(running, uid, /n2/);
});

test('a worker that dies ends the job on all nodes', async () => {
  const id = nextJob();
  const { uid } = await site.allocate(id);
  const running = await spawnLaunch(['--job', id, '--label', '--', 'sh', '-c', 'echo up; exec sleep 120']);
  for (const node of ['n1', 'n2', 'n3']) await running.shows(`${node}: up`);
  const n2 = site.cluster.node('n2');
  await n2.must(['systemctl', 'kill', '--signal=KILL', '--kill-whom=main', 'xce-sandbox-worker.service']);
  const end = await running.child.ended;
  expect(end.exitCode).toBe(125);
  expect(running.errors.text).toMatch(/n2/);
  for (const node of ['n1', 'n3']) expect(await processesOf(site.cluster.node(node), uid)).toBe('');
});

test('a worker that is down means that nothing starts on any node', async () => {
  const id = nextJob();
  const { lease } = await site.allocate(id);
  const n3 = site.cluster.node('n3');
  await n3.must(['systemctl', 'stop', 'xce-sandbox-worker-tls.socket', 'xce-sandbox-worker.service']);
  const end = await site.run(['launch', '--job', id, '--json', '--', 'touch', 'started']);
  expect(end.status).toBe(125);
  expect(JSON.parse(end.stdout)).toMatchObject({ error: { code: 'launch-refused', exitStatus: 125 } });
  expect(end.stderr).toMatch(/n3/);
  await expectNothing(lease);
  await n3.must(['systemctl', 'start', 'xce-sandbox-worker-tls.socket', 'xce-sandbox-worker.service']);
});

const expectNothing = async (lease: number): Promise<void> => {
  for (const node of site.workers) {
    const units = await node.must([
      'sh',
      '-c',
      `systemctl list-units --all --plain --no-legend 'xce-main-${lease}.*'`,
    ]);
    expect([node.name, units]).toEqual([node.name, '']);
    expect((await node.exec(['test', '-e', `/run/xce-sandbox/main/box/${lease}`])).exitCode).toBe(1);
  }
};

test('one node that refuses in prepare means that nothing starts on any node', async () => {
  const id = nextJob();
  const { uid, lease } = await site.allocate(id);
  const n2 = site.cluster.node('n2');
  await n2.must(['sh', '-c', `echo 'taken:x:${uid}:${uid}::/:/bin/sh' >> /etc/passwd`]);
  const end = await site.run(['launch', '--job', id, '--json', '--', 'touch', 'started']);
  expect(end.status).toBe(125);
  expect(JSON.parse(end.stdout)).toMatchObject({
    error: { code: 'launch-refused', detail: { reasons: [{ node: 'n2', code: 'uid-taken' }] } },
  });
  await expectNothing(lease);
  await n2.must(['sed', '-i', '/^taken:/d', '/etc/passwd']);
});

test.each([200, 500, 900, 1400, 2200])(
  'SIGKILL of the command line %i ms after its start leaves a state that a release ends',
  async (delayMs) => {
    const id = nextJob();
    await site.allocate(id);
    const { child } = await spawnLaunch(['--job', id, '--', 'sleep', '120']);
    await new Promise((resolve) => setTimeout(resolve, delayMs));
    child.kill('SIGKILL');
    await child.ended;
    await site.must('stop', '--job', id);
    await site.must('lease', 'release', '--job', id);
  },
);

test('SIGKILL of a release leaves a state that the next release ends', async () => {
  const id = nextJob();
  await site.allocate(id);
  await site.must('launch', '--job', id, '--', 'touch', 'file');
  for (const delayMs of [300, 600, 900]) {
    const release = await site.controller.spawn(['xce-sandbox', 'lease', 'release', '--job', id]);
    await new Promise((resolve) => setTimeout(resolve, delayMs));
    release.kill('SIGKILL');
    await release.ended;
  }
  const last = await site.run(['lease', 'release', '--job', id, '--json']);
  // One of the killed ones may have come to the end.
  if (last.status !== 0) expect(JSON.parse(last.stdout)).toMatchObject({ error: { code: 'lease-ended' } });
  expect(await site.json('lease', 'list')).toEqual([]);
});

test('the deadline ends a sandbox whose worker is dead', async () => {
  const id = nextJob();
  const { uid } = await site.json<{ uid: number }>(
    ...['lease', 'allocate', '--job', id, '--submitter', '1001', '--nodes', 'n1', '--ttl', '6s'],
  );
  const n1 = site.cluster.node('n1');
  const { child, shows } = await spawnLaunch(['--job', id, '--', 'sh', '-c', 'echo up; exec sleep 60']);
  await shows('up');
  await n1.must(['systemctl', 'mask', '--runtime', 'xce-sandbox-worker.service']);
  await n1.must(['systemctl', 'kill', '--signal=KILL', '--kill-whom=main', 'xce-sandbox-worker.service']);
  expect((await child.ended).exitCode).toBe(125);
  await n1.must(['timeout', '20', 'sh', '-c', `while pgrep -u ${uid} >/dev/null; do sleep 0.1; done`]);
  await n1.must(['systemctl', 'unmask', '--runtime', 'xce-sandbox-worker.service']);
  await n1.must(['systemctl', 'start', 'xce-sandbox-worker-tls.socket', 'xce-sandbox-worker.service']);
});
