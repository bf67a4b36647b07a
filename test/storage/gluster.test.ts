import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { Node } from '../support/cluster/node.ts';
import { GlusterLab, until, VOLUME } from '../support/storage/gluster.ts';
import { buildWriter, LogOnGluster } from '../support/storage/gluster-site.ts';

/** Without these a client shows sizes and names as they were up to a second ago. */
const COHERENT = {
  'performance.stat-prefetch': 'off',
  'cluster.post-op-delay-secs': '0',
} as const;
const COHERENT_MOUNT = ['attribute-timeout=0', 'entry-timeout=0', 'direct-io-mode=enable'] as const;
/** So that the loss of a client or a brick is noticed in seconds; by default it takes 42. */
const FAST = {
  'network.ping-timeout': '5',
  'server.tcp-user-timeout': '5',
  'server.keepalive-time': '2',
  'server.keepalive-interval': '1',
  'server.keepalive-count': '3',
} as const;

type Row = {
  readonly scenario: string;
  /** In this scenario alone; the log is the same for all of them. */
  readonly acked: number;
  readonly inLog: number;
  readonly missing: number;
  readonly seconds: number;
  readonly note: string;
};
const rows: Row[] = [];
/** What the probe said, by options. */
const notes: string[] = [];

let lab: GlusterLab;
let ctl1: Node;
let ctl2: Node;
let writer: Awaited<ReturnType<typeof buildWriter>>;
let log: LogOnGluster;

const secondsSince = (startedMs: number): number => Math.round((performance.now() - startedMs) / 100) / 10;

/** What work took in seconds. */
const timed = async (work: () => Promise<unknown>): Promise<number> => {
  const startedMs = performance.now();
  await work();
  return secondsSince(startedMs);
};

beforeAll(async () => {
  writer = await buildWriter();
  lab = await GlusterLab.start({ binds: writer.binds });
  [ctl1, ctl2] = lab.controllers;
  await lab.set(FAST);
  await lab.mount([]);
  await lab.reached(lab.controllers);
  log = await LogOnGluster.prepare(lab, 'main');
});

afterAll(async () => {
  await lab?.down();
  writer?.remove();
  const head = ['scenario', 'acked', 'in log', 'missing', 'seconds', 'note'];
  const table = rows.map((row) => [
    row.scenario,
    ...[row.acked, row.inLog, row.missing, row.seconds].map(String),
    row.note,
  ]);
  const text = [head, ...table]
    .map(([scenario = '', acked = '', inLog = '', missing = '', seconds = '', note = '']) =>
      [
        scenario.padEnd(36),
        ...[acked, inLog, missing, seconds].map((cell) => cell.padStart(8)),
        `  ${note}`,
      ].join(''),
    )
    .join('\n');
  process.stdout.write(`${[...notes, text].join('\n')}\n`);
});

test('a volume without client quorum is refused, and what to set is said', async () => {
  const isShown = (kind: string) => async (): Promise<boolean> =>
    (await lab.clientSays(ctl1, `${VOLUME}-replicate-0/private`)).includes(`quorum-type = ${kind}`);
  await lab.set({ 'cluster.quorum-type': 'none' });
  await until('no quorum', 30_000, isShown('none'));
  const refused = await log.run(ctl1, 'lease', 'init');
  expect(refused).toMatchObject({ status: 78, stdout: '' });
  expect(refused.stderr).toContain(`gluster volume set ${VOLUME} cluster.quorum-type auto`);
  await lab.set({ 'cluster.quorum-type': 'auto' });
  await until('quorum', 30_000, isShown('auto'));
});

test('a volume with default options is refused, and each thing to set is said in its turn', async () => {
  const expectRefusal = async (cure: string): Promise<void> => {
    const refused = await log.run(ctl1, 'lease', 'init');
    expect(refused).toMatchObject({ status: 78, stdout: '' });
    expect(refused.stderr).toContain(`its client shows what was so before others changed it: ${cure}`);
    expect(await ctl1.must(['ls', '-A', log.directory])).toBe('');
  };
  const setting = 'performance.stat-prefetch';
  await expectRefusal(`${VOLUME} has ${setting} on; gluster volume set ${VOLUME} ${setting} off`);
  await lab.set(COHERENT);
  for (const [index, option] of COHERENT_MOUNT.entries()) {
    await lab.mount(COHERENT_MOUNT.slice(0, index));
    await lab.reached(lab.controllers);
    await expectRefusal(`mount it with ${option}`);
  }
});

test('a coherent volume is accepted by two controllers, each a client of its own', async () => {
  await lab.mount(COHERENT_MOUNT);
  await lab.reached(lab.controllers);
  const startedMs = performance.now();
  const { asking, listening } = await log.init();
  expect(asking, asking.stderr).toMatchObject({ status: 0 });
  expect(listening, listening.stderr).toMatchObject({ status: 0 });
  notes.push(`coherent options: accepted after ${secondsSince(startedMs)} s`);
}, 1_400_000);

describe.each(['off', 'on'] as const)('with client.strict-locks %s', (strictLocks) => {
  let startedMs = 0;
  let ackedBefore = 0;

  /** Both controllers read the same whole log, and nothing that was ever acknowledged is missing from it. */
  const expectKept = async (scenario: string, note = ''): Promise<void> => {
    const seconds = secondsSince(startedMs);
    await lab.reached(lab.controllers);
    await lab.healed();
    await log.agreeOnBricks(10_000);
    const [first, second] = await Promise.all([log.compare(ctl1), log.compare(ctl2)]);
    await Promise.all([log.must(ctl1, 'lease', 'verify'), log.must(ctl2, 'lease', 'verify')]);
    const acked = log.acknowledged.size - ackedBefore;
    rows.push({
      scenario: `${scenario}, strict-locks ${strictLocks}`,
      acked,
      inLog: first.leases,
      missing: first.missing.length,
      seconds,
      note,
    });
    expect(first.missing).toEqual([]);
    expect(second).toEqual(first);
    expect(acked).toBeGreaterThan(0);
  };

  beforeAll(async () => {
    await lab.set({ 'client.strict-locks': strictLocks });
    await lab.mount(COHERENT_MOUNT);
    await lab.reached(lab.controllers);
    expect(await lab.clientSays(ctl1, `${VOLUME}-client-0/options/strict-locks`)).toBe(strictLocks);
  });

  beforeEach(async () => {
    await log.must(ctl1, 'lease', 'takeover');
    ackedBefore = log.acknowledged.size;
    startedMs = performance.now();
  });

  afterEach(async ({ task }) => {
    await log.killWriters();
    if (task.result?.state === 'fail') await lab.repair();
  });

  test('writers go on while one brick is killed, and keep what they were told', async () => {
    const writers = await Promise.all([log.startWriter(ctl1), log.startWriter(ctl1)]);
    await Promise.all(writers.map((one) => one.more(3)));
    await lab.killBrick(lab.cluster.node('g2'));
    const pause = await timed(() => Promise.race(writers.map((one) => one.more(1))));
    await Promise.all(writers.map((one) => one.more(5)));
    await lab.startBricks();
    await Promise.all(writers.map((one) => one.more(2)));
    await Promise.all(writers.map((one) => one.killed()));
    await expectKept('one brick killed', `next lease after ${pause} s`);
  });

  test('a writer that is killed in the middle of a record loses nothing to a takeover at once', async () => {
    const first = await log.startWriter(ctl1);
    await first.more(5);
    await first.stopWhen(() => log.isBusy(ctl1));
    await first.killed();
    const takeover = await timed(() => log.must(ctl2, 'lease', 'takeover'));
    await log.allocate(ctl2, `after-kill-${strictLocks}`);
    expect(await log.tryAllocate(ctl1, `late-kill-${strictLocks}`)).toMatchObject({ status: 77, stdout: '' });
    await expectKept('writer killed', `takeover ${takeover} s`);
  });

  test('with two bricks gone commands fail closed, and nothing is lost', async () => {
    const one = await log.startWriter(ctl1);
    await one.more(3);
    await lab.killBrick(lab.cluster.node('g3'));
    await lab.cluster.node('g2').killHard();
    const end = await one.ended;
    expect(end).toMatch(/^log-(io|outcome-unknown)$/);
    const refused = await log.tryAllocate(ctl1, `no-quorum-${strictLocks}`);
    expect(refused.stdout).toBe('');
    expect([71, 74, 77]).toContain(refused.status);
    await lab.cluster.node('g2').boot();
    const heal = await timed(async () => {
      await lab.startBricks();
      await lab.healed();
    });
    await log.allocate(ctl1, `healed-${strictLocks}`);
    await expectKept('two bricks gone', `writer ${end}, command ${refused.status}, heal ${heal} s`);
  });

  test('an owner that is cut off while it commits is fenced once it is back', async () => {
    const one = await log.startWriter(ctl1);
    await one.more(5);
    await ctl1.linkDown();
    const takeover = await timed(() => log.must(ctl2, 'lease', 'takeover'));
    const two = await log.startWriter(ctl2);
    await two.more(3);
    await ctl1.linkUp();
    const end = await one.ended;
    expect(end).toMatch(/^log-/);
    await two.more(3);
    await two.killed();
    await lab.reached([ctl1]);
    expect(await log.tryAllocate(ctl1, `late-cut-${strictLocks}`)).toMatchObject({ status: 77, stdout: '' });
    await expectKept('owner cut off', `takeover ${takeover} s, writer ${end}`);
  });

  test('an owner that is stopped in the middle of a record, cut off and brought back adds nothing', async () => {
    const one = await log.startWriter(ctl1);
    await one.more(2);
    await one.stopWhen(() => log.isBusy(ctl1));
    const told = one.count;
    await ctl1.linkDown();
    const takeover = await timed(() => log.must(ctl2, 'lease', 'takeover'));
    await log.allocate(ctl2, `meanwhile-${strictLocks}`);
    const { leases } = await log.compare(ctl2);
    await ctl1.linkUp();
    await lab.reached([ctl1]);
    one.signal('SIGCONT');
    const end = await one.ended;
    expect(end).toMatch(/^log-(fenced|outcome-unknown|io)$/);
    expect(one.count).toBe(told);
    await log.allocate(ctl2, `after-stop-${strictLocks}`);
    expect((await log.compare(ctl2)).leases).toBe(leases + 1);
    await expectKept('owner stopped and cut off', `takeover ${takeover} s, writer ${end}`);
  });
});
