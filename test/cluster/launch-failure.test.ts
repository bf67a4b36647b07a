/** What dies while a job runs or starts, and what is true afterwards. */
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import {
  anchorOf,
  awaitNoProcess,
  expectNothing,
  killWorkerForGood,
  launchOn,
  processesOf,
  type Running,
  reviveWorker,
  spawnLaunch,
  unitsOf,
} from '../support/launches.ts';
import { CONFIG_PATH, Site } from '../support/site.ts';

let site: Site;
let job = 100;

const NODES = ['n1', 'n2', 'n3'] as const;
/** From the event to the end of the launch, everywhere: bounds on how long others take. Jobs would last longer. */
const END_MS_MAX = 30_000;

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

const nextJob = (): string => String(job++);

const launchSleepingMpi = async (): Promise<{ running: Running; uid: number; lease: number }> => {
  const id = nextJob();
  const { uid, lease } = await site.allocate(id);
  const running = await spawnLaunch(site, [
    ...['--job', id, '--mpi', '-n', '3', '--', 'sh', '-c'],
    'echo "up $(hostname)"; exec sleep 120',
  ]);
  for (const node of NODES) await running.shows(`up ${node}`);
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
  const running = await launchOn(site, id, NODES);
  await site.cluster.node('n2').must(['sh', '-c', `systemctl stop 'xce-main-${lease}.*.anchor.service'`]);
  await expectFailure(running, uid, /n2/);
});

test('a worker that dies ends the job on all nodes', async () => {
  const id = nextJob();
  const { uid } = await site.allocate(id);
  const running = await launchOn(site, id, NODES);
  const n2 = site.cluster.node('n2');
  await n2.must(['systemctl', 'kill', '--signal=KILL', '--kill-whom=main', 'xce-sandbox-worker.service']);
  const end = await running.child.ended;
  expect(end.exitCode).toBe(125);
  expect(running.errors.text).toMatch(/n2/);
  for (const node of ['n1', 'n3']) expect(await processesOf(site.cluster.node(node), uid)).toBe('');
});

describe('two launches of one job at a time', () => {
  const anchors = (lease: number): Promise<readonly string[]> =>
    Promise.all(site.workers.map((node) => anchorOf(node, lease)));
  /** Ends the step of one launch on one node, as an operator would. */
  const stopStep = async (node: string, lease: number, running: Running): Promise<void> => {
    const [, unit] =
      new RegExp(`^${node}: .*(step\\.[a-z0-9]+\\.service)`, 'm').exec(running.output.text) ?? [];
    if (unit === undefined) throw new Error(`no step of ${node} in ${running.output.text}`);
    await site.cluster.node(node).must(['sh', '-c', `systemctl stop 'xce-main-${lease}.'*'.${unit}'`]);
  };
  const script = 'grep -o "step.*service" /proc/self/cgroup; echo up; exec sleep 120';
  const sleeping = async (id: string): Promise<Running> => {
    const running = await spawnLaunch(site, ['--job', id, '--label', '--', 'sh', '-c', script]);
    for (const node of NODES) await running.shows(`${node}: up`);
    return running;
  };

  test('have each an end and a status of their own, and the sandboxes stay for both', async () => {
    const id = nextJob();
    const { uid, lease } = await site.allocate(id);
    const one = await sleeping(id);
    const first = await anchors(lease);
    const job = await site.run(['launch', '--job', id, '--', 'sh', '-c', 'test "$XCE_NODE" != n2 || exit 7']);
    expect(job.status).toBe(7);
    const other = await sleeping(id);
    await stopStep('n2', lease, other);
    expect((await other.child.ended).exitCode).toBe(125);
    expect(other.errors.text).toMatch(/n2/);
    for (const node of site.workers) {
      expect([node.name, await processesOf(node, uid)]).toEqual([node.name, 'sleep 120\n']);
    }
    one.child.kill('SIGTERM');
    expect((await one.child.ended).exitCode).toBe(125);
    for (const node of site.workers)
      expect([node.name, await processesOf(node, uid)]).toEqual([node.name, '']);
    // The next one is quick because it finds them.
    expect((await site.run(['launch', '--job', id, '--', 'true'])).status).toBe(0);
    expect(await anchors(lease)).toEqual(first);
  });

  test('of MPI programs have each their own daemons', async () => {
    const { running, uid } = await launchSleepingMpi();
    const id = String(job - 1);
    const other = await spawnLaunch(site, [
      ...['--job', id, '--mpi', '-n', '3', '--', 'sh', '-c'],
      'echo "up $(hostname)"; exec sleep 60',
    ]);
    for (const node of NODES) await other.shows(`up ${node}`);
    const n2 = site.cluster.node('n2');
    await n2.must(['pkill', '-KILL', '--newest', '-x', 'prted']);
    expect((await other.child.ended).exitCode).toBe(125);
    expect(other.errors.text).toMatch(/MPI daemon on n2 /);
    for (const node of site.workers) {
      expect((await processesOf(node, uid)).match(/^sleep [0-9]+$/gm)).toEqual(['sleep 120']);
    }
    running.child.kill('SIGTERM');
    await expectFailure(running, uid, /SIGTERM/);
  });

  test('a launch that fails alone takes along the sandboxes that it made', async () => {
    const id = nextJob();
    const allocated = await site.allocate(id);
    const running = await sleeping(id);
    await stopStep('n3', allocated.lease, running);
    expect((await running.child.ended).exitCode).toBe(125);
    await expectNothing(site.workers, allocated);
  });
});

test('launches whose job fails say its status, and leave no unit', async () => {
  const id = nextJob();
  const allocated = await site.allocate(id);
  const fails = (): ReturnType<Site['run']> => site.run(['launch', '--job', id, '--', 'false']);
  const ends = await Promise.all(Array.from({ length: 8 }, fails));
  expect(ends.map((end) => end.status)).toEqual(ends.map(() => 1));
  for (const node of site.workers) expect(await unitsOf(node, allocated.lease)).not.toMatch(/step/);
  await site.must('lease', 'release', '--job', id);
  await expectNothing(site.workers, allocated);
});

test('a node is one node by whatever name the batch system calls it, and two are never one', async () => {
  const id = nextJob();
  await site.allocate(id, 'N1.cluster.example,n2');
  for (const names of ['n1,N2.cluster.example', 'N1.CLUSTER.EXAMPLE,N2']) {
    const end = await site.run(['launch', '--job', id, '--nodes', names, '--label', '--', 'echo', 'ran']);
    expect([end.status, end.stdout.split('\n').toSorted()]).toEqual([0, ['', 'n1: ran', 'n2: ran']]);
  }
  const twice = await site.run(['launch', '--job', id, '--nodes', 'n1,N1.cluster.example', '--', 'true']);
  expect(twice).toMatchObject({
    status: 125,
    stderr: expect.stringMatching(/means n1, which is named already/),
  });

  const config = (await site.controller.readFile(CONFIG_PATH)).toString('utf8');
  const hosts = config.replace(/^hosts = .*$/m, 'hosts = n1.a.example,n1.b.example');
  await site.controller.writeFile('/root/two.ini', hosts, { mode: 0o644 });
  const argv = ['lease', 'allocate', '--job', nextJob(), '--submitter', '1001', '--config', '/root/two.ini'];
  const cut = await site.run([...argv, '--nodes', 'n1']);
  expect(cut).toMatchObject({ status: 68, stdout: '', stderr: expect.stringMatching(/n1 is ambiguous/) });
});

test('a worker that is down means that nothing starts on any node', async () => {
  const id = nextJob();
  const allocated = await site.allocate(id);
  const n3 = site.cluster.node('n3');
  await n3.must(['systemctl', 'stop', 'xce-sandbox-worker-tls.socket', 'xce-sandbox-worker.service']);
  const end = await site.run(['launch', '--job', id, '--json', '--', 'touch', 'started']);
  expect(end.status).toBe(125);
  expect(JSON.parse(end.stdout)).toMatchObject({ error: { code: 'launch-refused', exitStatus: 125 } });
  expect(end.stderr).toMatch(/n3/);
  await expectNothing(site.workers, allocated);
  await n3.must(['systemctl', 'start', 'xce-sandbox-worker-tls.socket', 'xce-sandbox-worker.service']);
});

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
  await expectNothing(site.workers, { uid, lease });
  await n2.must(['sed', '-i', '/^taken:/d', '/etc/passwd']);
});

test.each([200, 500, 900, 1400, 2200])(
  'SIGKILL of the command line %i ms after its start leaves a state that a release ends',
  async (delayMs) => {
    const id = nextJob();
    await site.allocate(id);
    const { child } = await spawnLaunch(site, ['--job', id, '--', 'sleep', '120']);
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
    ...['lease', 'allocate', '--job', id, '--submitter', '1001', '--nodes', 'n1', '--ttl', '40s'],
  );
  const n1 = site.cluster.node('n1');
  const { child, shows } = await spawnLaunch(site, [
    '--job',
    id,
    '--',
    'sh',
    '-c',
    'echo up; exec sleep 300',
  ]);
  await shows('up');
  await killWorkerForGood(n1);
  expect((await child.ended).exitCode).toBe(125);
  await awaitNoProcess(n1, uid, 120);
  const blocked = await site.run(['lease', 'release', '--job', id]);
  expect(blocked.status).toBe(69);
  expect(blocked.stderr).toMatch(/^xce-sandbox: lease [0-9]+: n1: .*ECONNREFUSED.* \[release-blocked\]$/m);
  expect(await site.must('lease', 'show', '--job', id)).toMatch(/^waits for: +node-unreachable: n1: /m);
  const shown = await site.run(['status', '--nodes', 'n1']);
  expect([shown.status, shown.stdout]).toEqual([69, expect.stringMatching(/^n1 .* worker-unreachable /m)]);
  await reviveWorker(n1);
});
