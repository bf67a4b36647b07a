/**
 * Whatever breaks under a job: its launch ends with 125 and one line that names node and cause, nothing of the uid
 * is left running where anybody can look, the lease is kept until the proof is there, and `status` and `lease show`
 * say what it waits for.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Node } from '../support/cluster/node.ts';
import { mustRun } from '../support/cluster/process.ts';
import { Scope } from '../support/cluster/scope.ts';
import {
  anchorOf,
  awaitNoProcess,
  expectNothing,
  killWorkerForGood,
  launchOn,
  processesOf,
  type Running,
  reviveWorker,
  spawnCommand,
  spawnLaunch,
} from '../support/launches.ts';
import { type Allocated, Site, SUBMITTER, WORKSPACE } from '../support/site.ts';

let scope: Scope;
let site: Site;
/** The storage of all workspaces: a small file system of the host. */
let storage: string;
let n1: Node;
let n2: Node;
let n3: Node;

beforeAll(async () => {
  scope = await Scope.open();
  storage = join(scope.directory, 'storage');
  await mustRun(['mkdir', storage]);
  await mustRun(['mount', '-t', 'tmpfs', '-o', 'size=16m,mode=0711', 'storage', storage]);
  site = await Site.start({
    binds: [
      [storage, WORKSPACE],
      ['/dev/fuse', '/dev/fuse'],
    ],
  });
  [n1, n2, n3] = site.workers as [Node, Node, Node];
  await site.compile('silent-fs');
});
afterAll(async () => {
  await site?.down();
  await scope?.close();
});

let job = 200;
const nextJob = (): string => String(job++);

const allocate = (id: string, nodes: string, ttl = '10m'): Promise<Allocated> =>
  site.json(
    'lease',
    'allocate',
    '--job',
    id,
    '--submitter',
    `${SUBMITTER.uid}`,
    '--nodes',
    nodes,
    '--ttl',
    ttl,
  );

/** The launch fails, and its last words name node and cause. */
const expectEnd = async (running: Running, cause: RegExp): Promise<void> => {
  expect((await running.child.ended).exitCode).toBe(125);
  const [line] = running.errors.text.split('\n').filter((text) => text.startsWith('xce-sandbox: '));
  expect(line).toMatch(cause);
};

/** A release that is refused keeps the lease, and everything that shows it says why. */
const expectBlocked = async (id: string, cause: RegExp): Promise<void> => {
  const end = await site.run(['lease', 'release', '--job', id]);
  expect({ status: end.status, stderr: end.stderr }).toMatchObject({ status: 69 });
  expect(end.stderr).toMatch(cause);
  const shown = await site.must('lease', 'show', '--job', id);
  expect(shown).toMatch(/^state: +quarantined$/m);
  expect(/^waits for: .*$/m.exec(shown)?.[0]).toMatch(cause);
  const lines = (await site.must('status', '--nodes', 'n1')).split('\n');
  expect(lines.find((line) => line.split(/ +/)[2] === id)).toMatch(cause);
};

const expectFreed = async (id: string, uid: number): Promise<void> => {
  expect(await site.json('lease', 'release', '--job', id)).toMatchObject({ status: 'free', uid });
};

type NodeStatus = {
  readonly reachable: boolean;
  readonly sandboxes?: readonly { readonly lease: number; readonly state: string }[];
};
const statusOf = async (node: Node): Promise<NodeStatus> => {
  type Found = { readonly nodes: readonly NodeStatus[] };
  const { stdout } = await site.run(['status', '--nodes', node.name, '--json']);
  // A node that is silent is an error, in which stands all that was found.
  const said = JSON.parse(stdout) as Found | { readonly error: { readonly detail: Found } };
  const [status] = ('error' in said ? said.error.detail : said).nodes;
  if (status === undefined) throw new Error(`no status of ${node.name}`);
  return status;
};
const stateOf = async (node: Node, lease: number): Promise<string | undefined> =>
  (await statusOf(node)).sandboxes?.find((sandbox) => sandbox.lease === lease)?.state;

/** A setting that systemd adds to every unit of every sandbox on a node. */
const DROP_IN = '/run/systemd/system/xce-main-.service.d/test.conf';
const dropIn = async (node: Node, text: string): Promise<void> => {
  await node.writeFile(DROP_IN, text);
  await node.must(['systemctl', 'daemon-reload']);
};
const removeDropIn = async (node: Node): Promise<void> => {
  await node.must(['rm', DROP_IN]);
  await node.must(['systemctl', 'daemon-reload']);
};

describe('a link', () => {
  test('that is cut for five seconds harms nothing', async () => {
    const id = nextJob();
    const { uid } = await allocate(id, 'n1,n2');
    const running = await launchOn(site, id, ['n1', 'n2'], 'until test -e go; do sleep 0.1; done; echo went');
    await n2.linkDown();
    await new Promise((resolve) => setTimeout(resolve, 5000));
    await n2.linkUp();
    await site.controller.must(['touch', `${WORKSPACE}/main/${id}.0/work/go`]);
    expect((await running.child.ended).exitCode).toBe(0);
    expect(running.output.text).toContain('n2: went');
    await expectFreed(id, uid);
  });
});

describe('for good', () => {
  const jobs: Record<'cut' | 'expired' | 'powerless', { id: string; leased: Allocated; running: Running }> =
    {} as never;
  const start = async (name: keyof typeof jobs, nodes: readonly string[], ttl: string): Promise<void> => {
    const id = nextJob();
    const leased = await allocate(id, nodes.join(), ttl);
    jobs[name] = { id, leased, running: await launchOn(site, id, nodes) };
  };

  beforeAll(async () => {
    await start('powerless', ['n1', 'n3'], '10m');
    await start('cut', ['n1', 'n2'], '10m');
    await start('expired', ['n1', 'n2'], '40s');
    await Promise.all([n2.linkDown(), n3.killHard()]);
  });

  test('cut link: the launch and all other nodes end, and so does the node behind it', async () => {
    const { leased, running } = jobs.cut;
    await expectEnd(running, /n2/);
    expect(await processesOf(n1, leased.uid)).toBe('');
    await awaitNoProcess(n2, leased.uid, 120);
  });

  test('ticket that runs out behind a cut link: the worker ends the sandbox by itself', async () => {
    const { leased, running } = jobs.expired;
    await expectEnd(running, /n2/);
    expect(await processesOf(n1, leased.uid)).toBe('');
    await awaitNoProcess(n2, leased.uid, 120);
    const anchors = `while systemctl is-active --quiet 'xce-main-${leased.lease}.*.anchor.service'; do sleep 0.1; done`;
    await n2.must(['timeout', '120', 'sh', '-c', anchors], { timeoutMs: 130_000 });
  });

  test('node without power: the launch ends everywhere', async () => {
    const { leased, running } = jobs.powerless;
    await expectEnd(running, /n3/);
    expect(await processesOf(n1, leased.uid)).toBe('');
  });

  test('keeps each lease until the node is back and has certified', async () => {
    await Promise.all([
      expectBlocked(jobs.powerless.id, /n3/),
      expect(statusOf(n3)).resolves.toMatchObject({ reachable: false }),
    ]);
    await expectBlocked(jobs.cut.id, /n2/);
    await Promise.all([n2.linkUp(), n3.boot()]);
    for (const { id, leased } of Object.values(jobs)) {
      await expectFreed(id, leased.uid);
      await expectNothing(site.workers, leased);
    }
  });
});

test('a worker that is replaced by another build keeps sandboxes with a ticket, and ends the others', async () => {
  const [kept, ended] = [nextJob(), nextJob()];
  const leased = await allocate(kept, 'n1,n2');
  const running = await launchOn(site, kept, ['n1', 'n2'], 'echo kept >/tmp/kept; exec sleep 300');
  const brief = await allocate(ended, 'n2', '25s');
  expect((await site.run(['launch', '--job', ended, '--', 'true'])).status).toBe(0);
  const anchor = await anchorOf(n2, leased.lease);

  await killWorkerForGood(n2);
  // Nobody could read its output, or learn its end, any more.
  await expectEnd(running, /n2/);
  expect(await processesOf(n1, leased.uid)).toBe('');
  const build = 'cd "$(npm root -g)" && cp -a xce-sandbox new && mv xce-sandbox old && mv new xce-sandbox';
  await n2.must([
    'sh',
    '-c',
    `${build} && sed -i 's/"version": "[^"]*"/"version": "9.9.9"/' xce-sandbox/package.json`,
  ]);
  expect(await n2.must(['xce-sandbox-worker', '--version'])).toBe('9.9.9\n');
  const over = `while systemctl is-active --quiet 'xce-main-${brief.lease}.*.anchor.service'; do sleep 0.1; done`;
  await n2.must(['timeout', '60', 'sh', '-c', over], { timeoutMs: 70_000 });
  await reviveWorker(n2);

  expect(await stateOf(n2, leased.lease)).toBe('ready');
  expect(await stateOf(n2, brief.lease)).toBe('lost');
  for (const { uid } of [leased, brief]) expect(await processesOf(n2, uid)).toBe('');
  const next = await site.run(['launch', '--job', kept, '--nodes', 'n2', '--', 'cat', '/tmp/kept']);
  expect([next.status, next.stdout]).toEqual([0, 'kept\n']);
  expect(await anchorOf(n2, leased.lease)).toBe(anchor);
  await expectFreed(kept, leased.uid);
  await expectFreed(ended, brief.uid);
});

describe('a command that is killed', () => {
  const SLOW = '[Service]\nExecStartPre=+/bin/sleep 3\n';
  /** Resolves when the node is about to start a unit of the lease. */
  const starting = (node: Node, lease: number, unit: string): Promise<string> =>
    node.must([
      ...['timeout', '60', 'sh', '-c'],
      `until systemctl list-units --plain --no-legend --state=activating 'xce-main-${lease}.*.${unit}' | grep -q .; do sleep 0.1; done`,
    ]);
  const kill = async ({ child }: Running): Promise<void> => {
    child.kill('SIGKILL');
    await child.ended;
  };

  test.each(['prepare', 'start', 'running'] as const)('in %s leaves what one release ends', async (phase) => {
    const id = nextJob();
    const leased = await allocate(id, 'n1,n2');
    if (phase === 'start') expect((await site.run(['launch', '--job', id, '--', 'true'])).status).toBe(0);
    if (phase !== 'running') await dropIn(n2, SLOW);
    const running = await spawnLaunch(site, [
      '--job',
      id,
      '--label',
      '--',
      'sh',
      '-c',
      'echo up; exec sleep 300',
    ]);
    if (phase === 'running') await running.shows('n2: up');
    else await starting(n2, leased.lease, phase === 'prepare' ? 'anchor.service' : 'step.*.service');
    await kill(running);
    if (phase !== 'running') await removeDropIn(n2);
    await expectFreed(id, leased.uid);
    await expectNothing(site.workers, leased);
  });

  /** Frames that the files of the lease log hold. */
  const countRecords = (): number => {
    const directory = join(site.cluster.controllerSharedPath, 'leases');
    const files = readdirSync(directory).filter((name) => name.startsWith('leases.wal.'));
    const texts = files.map((name) => readFileSync(join(directory, name), 'latin1'));
    return texts.reduce((sum, text) => sum + text.split('XCEL').length - 1, 0);
  };
  /** Begins a release and kills it once it has written so many records. */
  const killRelease = async (id: string, records: number): Promise<void> => {
    const before = countRecords();
    const release = await spawnCommand(site, ['lease', 'release', '--job', id]);
    const begunMs = performance.now();
    while (countRecords() < before + records) {
      if (performance.now() - begunMs > 120_000) throw new Error(`not ${records} records within 120 s`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    await kill(release);
  };
  test('in drain ends a launch, which says so, and leaves what the next release ends', async () => {
    const id = nextJob();
    // A worker that was not asked to drain before its controller died: the launch cannot renew.
    const leased = await allocate(id, 'n1,n2', '40s');
    // Its end takes as long as the stop timeout lets it.
    const running = await launchOn(site, id, ['n2'], 'trap "" TERM; sleep 300 & wait; wait');
    await killRelease(id, 1);
    expect(await site.json('lease', 'show', '--job', id)).toMatchObject({ status: 'draining' });
    const waits = /^waits for: +certificate of n\[1-2\]$/m;
    expect(await site.must('lease', 'show', '--job', id)).toMatch(waits);
    // Its node may have been asked to drain all the same.
    await expectEnd(running, /the lease was not renewed: .*draining|task on n2 was stopped from outside/);
    for (const node of site.workers) expect(await processesOf(node, leased.uid)).toBe('');
    await expectFreed(id, leased.uid);
    await expectNothing(site.workers, leased);
  });

  test('in normalise leaves what the next release ends', async () => {
    const leaseWithFiles = async (): Promise<readonly [id: string, leased: Allocated]> => {
      const id = nextJob();
      const leased = await allocate(id, 'n1');
      const files = ['sh', '-c', 'mkdir d && cd d && seq 10000 | xargs touch'];
      expect((await site.run(['launch', '--job', id, '--', ...files])).status).toBe(0);
      return [id, leased];
    };
    const [whole, released] = await leaseWithFiles();
    const before = countRecords();
    await expectFreed(whole, released.uid);
    const records = countRecords() - before;
    const [id, leased] = await leaseWithFiles();
    // The last two say that the root is done, and that the uid is free.
    await killRelease(id, records - 2);
    expect(await site.json('lease', 'show', '--job', id)).toMatchObject({ status: 'normalising' });
    await expectFreed(id, leased.uid);
    expect(await site.controller.must(['find', '/shared', '-uid', String(leased.uid)])).toBe('');
  });
});

describe('systemd that does not take', () => {
  const unitOf = (id: string, { lease }: Allocated): string => `xce-main-${lease}.${id}.0.anchor.service`;
  type Refusal = readonly [
    what: string,
    make: (unit: string) => Promise<unknown>,
    undo: (unit: string) => Promise<unknown>,
    cause: RegExp,
  ];
  const refusals: readonly Refusal[] = [
    [
      'a masked name',
      (unit) => n2.must(['systemctl', 'mask', '--runtime', unit]),
      (unit) => n2.must(['systemctl', 'unmask', '--runtime', unit]),
      /n2: unit xce-main-\S*\.anchor\.service is masked/,
    ],
    [
      'a setting that cannot be kept',
      () => dropIn(n2, '[Service]\nBindPaths=/no/such/directory\n'),
      () => removeDropIn(n2),
      /n2: .*(226|namespace|exited)/i,
    ],
    [
      'another user than that of the lease',
      () => dropIn(n2, '[Service]\nUser=nobody\n'),
      () => removeDropIn(n2),
      /n2: .*(uid 65534|has uid|privileges)/,
    ],
    [
      'a name that runs already',
      (unit) => n2.must(['systemd-run', '--quiet', `--unit=${unit}`, 'sleep', '300']),
      async (unit) => {
        expect((await n2.must(['systemctl', 'is-active', unit])).trim()).toBe('active');
        await n2.must(['systemctl', 'stop', unit]);
      },
      /n2: .*not ours/,
    ],
  ];

  test.each(refusals)(
    '%s refuses the launch, and nothing starts on any node',
    async (_, make, undo, cause) => {
      const id = nextJob();
      const leased = await allocate(id, 'n1,n2');
      const unit = unitOf(id, leased);
      await make(unit);
      await expectEnd(await spawnLaunch(site, ['--job', id, '--', 'touch', 'started']), cause);
      await expectNothing([n1, n3], leased);
      await undo(unit);
      await expectFreed(id, leased.uid);
      await expectNothing(site.workers, leased);
    },
  );

  test('a step ends the steps of the other nodes', async () => {
    const id = nextJob();
    const leased = await allocate(id, 'n1,n2');
    expect((await site.run(['launch', '--job', id, '--', 'true'])).status).toBe(0);
    await dropIn(n2, '[Service]\nBindPaths=/no/such/directory\n');
    await expectEnd(await spawnLaunch(site, ['--job', id, '--', 'sleep', '300']), /n2: .*did not start/);
    for (const node of site.workers) expect(await processesOf(node, leased.uid)).toBe('');
    await removeDropIn(n2);
    await expectFreed(id, leased.uid);
  });
});

describe('a disk that is full', () => {
  /** Writes into a file until nothing more goes in. */
  const fill = (path: string): string => `dd if=/dev/zero of=${path} bs=1k; test -e ${path}`;
  type Must = (argv: readonly string[]) => Promise<unknown>;
  const onHost: Must = (argv) => mustRun(argv);
  const onN2: Must = (argv) => n2.must(argv);
  /**
   * From now on nobody makes a file in a tmpfs. Its bound leaves room for what is made meanwhile; files of ours take
   * that room, and what is removed meanwhile.
   */
  const shut = (must: Must, path: string): Promise<unknown> => {
    const bound = `mount -o remount,nr_inodes=$(($(df --output=iused ${path} | tail -n 1) + 64)) ${path}`;
    const take = `n=0; while [ $n -lt 4096 ] && touch ${path}/full.$n; do n=$((n + 1)); done; [ $n -lt 4096 ]`;
    return must(['sh', '-c', `${bound} && { ${take}; }`]);
  };
  const open = (must: Must, path: string): Promise<unknown> =>
    must(['sh', '-c', `mount -o remount,nr_inodes=800000 ${path} && rm -f ${path}/full.*`]);

  test('with the workspace of a job refuses its launch, and what does not fit is for the job to say', async () => {
    const id = nextJob();
    const leased = await allocate(id, 'n1,n2');
    await shut(onHost, storage);
    try {
      await expectEnd(await spawnLaunch(site, ['--job', id, '--', 'true']), /n\[1-2\]: .*ENOSPC/);
      await expectNothing(site.workers, leased);
    } finally {
      await open(onHost, storage);
    }
    const ballast = ['dd', 'if=/dev/zero', 'of=ballast', 'bs=1k'];
    const end = await site.run(['launch', '--job', id, '--nodes', 'n1', '--', ...ballast]);
    expect(end.status).toBe(1);
    expect(end.stderr).toContain('No space left on device');
    await expectFreed(id, leased.uid);
    await mustRun(['rm', '-rf', join(storage, `main/${id}.0`)]);
  });

  test('with the state of a worker refuses a prepare, keeps no job running and no end from happening', async () => {
    const id = nextJob();
    const leased = await allocate(id, 'n1,n2');
    const state = '/var/lib/xce-sandbox';
    const ballast = `${state}/ballast`;
    const shrink = async (): Promise<void> => {
      await n2.must(['systemctl', 'stop', 'xce-sandbox-worker.service']);
      const small = `cp -a ${state} /root/state && mount -t tmpfs -o size=256k,mode=0700 state ${state} && cp -a /root/state/. ${state}`;
      await n2.must(['sh', '-c', small]);
      await n2.must(['systemctl', 'start', 'xce-sandbox-worker.service']);
    };
    const giveBack = async (): Promise<void> => {
      await n2.must(['rm', '-f', ballast, `${state}/more`]);
      await n2.must(['systemctl', 'stop', 'xce-sandbox-worker.service']);
      await n2.must(['sh', '-c', `rm -rf /root/state && cp -a ${state} /root/state && umount ${state}`]);
      await n2.must(['sh', '-c', `cp -a /root/state/. ${state}`]);
      await n2.must(['systemctl', 'start', 'xce-sandbox-worker.service']);
    };
    await shrink();
    try {
      await n2.must(['sh', '-c', fill(ballast)]);
      await expectEnd(await spawnLaunch(site, ['--job', id, '--', 'true']), /n2: .*ENOSPC/);
      await expectNothing(site.workers, leased);
      await n2.must(['rm', ballast]);

      const running = await launchOn(site, id, ['n1', 'n2']);
      await n2.must(['sh', '-c', fill(ballast)]);
      await expectEnd(await spawnLaunch(site, ['--job', id, '--', 'true']), /n2: .*ENOSPC/);
      expect(await processesOf(n2, leased.uid)).toContain('sleep 300');
      running.child.kill('SIGTERM');
      await expectEnd(running, /SIGTERM/);
      for (const node of site.workers) expect(await processesOf(node, leased.uid)).toBe('');
      // Where the end of the launch has made room.
      await n2.must(['sh', '-c', fill(`${state}/more`)]);
      await expectBlocked(id, /n2: .*ENOSPC/);
      await n2.must(['rm', ballast, `${state}/more`]);
      await expectFreed(id, leased.uid);
    } finally {
      await giveBack();
    }
  });

  test('with /run of a node starts no step on any, and keeps no end from happening', async () => {
    const id = nextJob();
    const leased = await allocate(id, 'n1,n2');
    expect((await site.run(['launch', '--job', id, '--', 'true'])).status).toBe(0);
    await shut(onN2, '/run');
    try {
      await expectEnd(
        await spawnLaunch(site, ['--job', id, '--', 'sleep', '300']),
        /n2: .*(?:ENOSPC|No space left on device)/,
      );
      for (const node of site.workers) expect(await processesOf(node, leased.uid)).toBe('');
      await expectFreed(id, leased.uid);
    } finally {
      await open(onN2, '/run');
    }
    await expectNothing(site.workers, leased);
  });
});

test('a process that outlives SIGKILL keeps its node dirty and the lease, until it goes', async () => {
  const id = nextJob();
  const leased = await allocate(id, 'n1,n2');
  await n2.must(['mkdir', '-p', '/mnt/silent']);
  const storageThatIsGone = await n2.spawn(['/shared/bin/silent-fs', '/mnt/silent']);
  await new Promise((resolve) => storageThatIsGone.stdout.once('data', resolve));
  const script = 'test "$XCE_NODE" = n1 && exec sleep 300; exec cat /mnt/silent/x';
  const running = await launchOn(site, id, ['n1', 'n2'], script);
  const stuck = `until grep -q request_wait /proc/$(pgrep -u ${leased.uid} cat)/wchan; do sleep 0.1; done`;
  await n2.must(['timeout', '60', 'sh', '-c', stuck]);

  running.child.kill('SIGTERM');
  await expectEnd(running, /could not be stopped: n2: /);
  expect(await processesOf(n1, leased.uid)).toBe('');
  await expectBlocked(id, /n2: lease [0-9]+: process pid [0-9]+: cat \/mnt\/silent\/x/);
  expect(await stateOf(n2, leased.lease)).toBe('dirty');
  expect((await site.run(['launch', '--job', id, '--', 'true'])).status).toBe(125);
  const other = nextJob();
  const { uid } = await allocate(other, 'n1,n2');
  expect(uid).not.toBe(leased.uid);
  await expectFreed(other, uid);

  storageThatIsGone.kill('SIGKILL');
  await storageThatIsGone.ended;
  await n2.must(['umount', '/mnt/silent']);
  await expectFreed(id, leased.uid);
  await expectNothing(site.workers, leased);
});
