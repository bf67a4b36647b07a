import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { Node } from '../support/cluster/node.ts';
import { GlusterLab, VOLUME } from '../support/storage/gluster.ts';
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
  readonly acked: number;
  readonly inLog: number;
  readonly missing: number;
  readonly seconds: number;
};
const rows: Row[] = [];

let lab: GlusterLab;
let ctl1: Node;
let ctl2: Node;
let writer: Awaited<ReturnType<typeof buildWriter>>;

beforeAll(async () => {
  writer = await buildWriter();
  lab = await GlusterLab.start({ binds: writer.binds });
  [ctl1, ctl2] = lab.controllers;
});

afterAll(async () => {
  await lab?.down();
  writer?.remove();
  const head = ['scenario', 'acked', 'in log', 'missing', 'seconds'];
  const table = rows.map((row) => [
    row.scenario,
    ...[row.acked, row.inLog, row.missing, row.seconds].map(String),
  ]);
  const text = [head, ...table]
    .map(([name = '', ...numbers]) => name.padEnd(64) + numbers.map((cell) => cell.padStart(9)).join(''))
    .join('\n');
  process.stdout.write(`${text}\n`);
});

/** Both controllers read the same whole log, and nothing that was acknowledged is missing from it. */
const expectKept = async (log: LogOnGluster, scenario: string, startedMs: number): Promise<void> => {
  const seconds = Math.round((performance.now() - startedMs) / 100) / 10;
  await lab.healed();
  await log.agreeOnBricks(10_000);
  const [first, second] = await Promise.all([log.compare(ctl1), log.compare(ctl2)]);
  await Promise.all([log.must(ctl1, 'lease', 'verify'), log.must(ctl2, 'lease', 'verify')]);
  rows.push({
    scenario,
    acked: log.acknowledged.size,
    inLog: first.leases,
    missing: first.missing.length,
    seconds,
  });
  expect(first.missing).toEqual([]);
  expect(second).toEqual(first);
  expect(log.acknowledged.size).toBeGreaterThan(0);
};

describe.each(['off', 'on'] as const)('with client.strict-locks %s', (strictLocks) => {
  const nameOf = (scenario: string): string => `${scenario}_${strictLocks}`;

  const makeLog = async (scenario: string): Promise<LogOnGluster> => {
    const log = await LogOnGluster.prepare(lab, nameOf(scenario));
    await log.must(ctl1, 'lease', 'init');
    return log;
  };

  beforeAll(async () => {
    await lab.set({ ...COHERENT, ...FAST, 'client.strict-locks': strictLocks });
    await lab.mount(COHERENT_MOUNT);
    await lab.reached(lab.controllers);
    expect(await lab.clientSays(ctl1, `${VOLUME}-client-0/options/strict-locks`)).toBe(strictLocks);
  });

  afterEach(async () => {
    await lab.repair();
  });

  test('writers go on while one brick is killed, and keep what they were told', async () => {
    const startedMs = performance.now();
    const log = await makeLog('one_brick');
    const writers = await Promise.all([log.startWriter(ctl1), log.startWriter(ctl1)]);
    await Promise.all(writers.map((one) => one.more(3)));
    await lab.killBrick(lab.cluster.node('g2'));
    await Promise.all(writers.map((one) => one.more(5)));
    await lab.startBricks();
    await Promise.all(writers.map((one) => one.more(2)));
    await Promise.all(writers.map((one) => one.killed()));
    await expectKept(log, nameOf('one_brick'), startedMs);
  });

  test('a writer that is killed loses nothing to a takeover at once', async () => {
    const startedMs = performance.now();
    const log = await makeLog('killed');
    const first = await log.startWriter(ctl1);
    await first.more(5);
    await first.killed();
    await log.must(ctl2, 'lease', 'takeover');
    const second = await log.startWriter(ctl2);
    await second.more(3);
    await second.killed();
    expect(await log.tryAllocate(ctl1, 'late')).toMatchObject({ status: 77, stdout: '' });
    await expectKept(log, nameOf('killed'), startedMs);
  });

  test('with two bricks gone commands fail closed, and nothing is lost', async () => {
    const startedMs = performance.now();
    const log = await makeLog('two_bricks');
    const one = await log.startWriter(ctl1);
    await one.more(3);
    await lab.killBrick(lab.cluster.node('g3'));
    await lab.cluster.node('g2').killHard();
    expect(await one.ended).toMatch(/^log-/);
    const refused = await log.tryAllocate(ctl1, 'without-quorum');
    expect(refused.status).not.toBe(0);
    expect(refused.stdout).toBe('');
    await lab.cluster.node('g2').boot();
    await lab.startBricks();
    await lab.healed();
    await log.allocate(ctl1, 'afterwards');
    await expectKept(log, nameOf('two_bricks'), startedMs);
  });

  test('an owner that is cut off is fenced once it is back', async () => {
    const startedMs = performance.now();
    const log = await makeLog('cut');
    const one = await log.startWriter(ctl1);
    await one.more(5);
    await ctl1.linkDown();
    await log.must(ctl2, 'lease', 'takeover');
    const two = await log.startWriter(ctl2);
    await two.more(3);
    await ctl1.linkUp();
    expect(await one.ended).toMatch(/^log-/);
    await two.more(3);
    await two.killed();
    await lab.reached([ctl1]);
    expect(await log.tryAllocate(ctl1, 'late')).toMatchObject({ status: 77, stdout: '' });
    await expectKept(log, nameOf('cut'), startedMs);
  });
});
