import fc from 'fast-check';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { XceError } from '../../src/base/errors.ts';
import { createFleet } from '../../src/launch/fleet.ts';
import type { LaunchOutcome } from '../../src/launch/outcome.ts';
import { startLaunch } from '../../src/launch/run.ts';
import { exited, fakeWorkers, GOOD, STOPPED } from '../support/fake-sessions.ts';

const STOP_TIMEOUT_MS = 5000;
const END_MS = STOP_TIMEOUT_MS + 5000;
/** Whoever started the launch ends it then, if nothing else has. */
const PATIENCE_MS = 100_000;

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

type Fate =
  | { readonly what: 'exit'; readonly status: number }
  | { readonly what: 'lost' | 'unit-stopped' | 'hang' | 'refuse' | 'no-answer' };

const fate: fc.Arbitrary<Fate> = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({ what: fc.constant('exit' as const), status: fc.constantFrom(0, 0, 0, 1, 42) }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      what: fc.constantFrom('lost', 'unit-stopped', 'hang', 'refuse', 'no-answer') as fc.Arbitrary<'lost'>,
    }),
  },
);

const node = fc.record({
  fate,
  prints: fc.integer({ min: 0, max: 5 }),
  obeysStop: fc.boolean(),
  answersStop: fc.boolean(),
});

const script = fc.record({
  nodes: fc.array(node, { minLength: 1, maxLength: 6 }),
  /** The order in which the nodes meet their fate, one a second. */
  order: fc.shuffledSubarray([0, 1, 2, 3, 4, 5], { minLength: 6 }),
  reader: fc.constantFrom('reads', 'reads', 'stalls', 'gone') as fc.Arbitrary<'reads' | 'stalls' | 'gone'>,
  endAfterMs: fc.option(fc.integer({ min: 0, max: 8000 }), { nil: undefined }),
});

type Script = typeof script extends fc.Arbitrary<infer T> ? T : never;

const run = async ({ nodes: plans, order, reader, endAfterMs }: Script) => {
  const names = plans.map((_, index) => `n${index}`);
  const workers = fakeWorkers(names);
  plans.forEach(({ fate: { what }, obeysStop, answersStop }, index) => {
    const worker = workers.at(`n${index}`);
    worker.obeysStop = obeysStop;
    if (what === 'no-answer') worker.onStream = () => new Promise(() => undefined);
    if (what === 'refuse') {
      worker.onStream = () => {
        throw new XceError('ticket-expired', 'over');
      };
    }
    if (!answersStop) worker.on('stop', () => new Promise(() => undefined));
  });
  const write = (): Promise<void> => {
    if (reader === 'gone') return Promise.reject(new XceError('output', 'EPIPE'));
    return reader === 'stalls' ? new Promise(() => undefined) : Promise.resolve();
  };
  const launch = startLaunch(
    {
      lease: 1,
      launch: 's1',
      nodes: workers.nodes,
      steps: workers.nodes.map((name, task) => ({
        node: name,
        task,
        kind: 'task',
        head: () => ({
          ticket: '',
          step: 's',
          kind: 'task',
          argv: [],
          environment: [],
          directory: null,
          stdin: false,
        }),
      })),
      daemons: { nodes: [], endWithHead: false },
      endsOnBadExit: false,
      stdin: { nodes: [], source: (async function* () {})(), close: () => undefined },
    },
    {
      fleet: createFleet(workers.connect),
      sink: { write, finish: write },
      report: async () => undefined,
      requestTimeoutMs: PATIENCE_MS * 10,
      stopTimeoutMs: STOP_TIMEOUT_MS,
      daemonStartMs: PATIENCE_MS,
    },
  );
  let outcome: LaunchOutcome | undefined;
  let settledMs = Number.NaN;
  const startMs = Date.now();
  launch.outcome.then((value) => {
    outcome = value;
    settledMs = Date.now() - startMs;
  });
  await vi.advanceTimersByTimeAsync(1);
  plans.forEach(({ prints }, index) => {
    const { streams } = workers.at(`n${index}`);
    for (const stream of streams) {
      if (!stream.isOpen) continue;
      stream.start();
      for (let count = 0; count < prints; count += 1) stream.print('x');
    }
  });
  const meet = ({ fate: own }: (typeof plans)[number], index: number): void => {
    const worker = workers.at(`n${index}`);
    if (own.what === 'lost') worker.die();
    for (const stream of worker.streams) {
      if (!stream.isOpen) continue;
      if (own.what === 'exit') stream.end(own.status === 0 ? GOOD : exited(own.status));
      if (own.what === 'unit-stopped') stream.end(STOPPED);
    }
  };
  const turns = order.filter((index) => index < plans.length);
  if (endAfterMs !== undefined) setTimeout(() => launch.end('cancelled', 'told to'), endAfterMs);
  for (const index of turns) {
    await vi.advanceTimersByTimeAsync(1000);
    const plan = plans[index];
    if (plan !== undefined) meet(plan, index);
  }
  setTimeout(() => launch.end('cancelled', 'out of patience'), PATIENCE_MS);
  await vi.advanceTimersByTimeAsync(PATIENCE_MS + END_MS + 1);
  const asked = workers.asked('stop');
  const open = workers.all
    .filter(({ streams }) => streams.some((stream) => stream.isOpen))
    .map((worker) => worker.node);
  return { outcome, settledMs, asked, open, turns, workers };
};

test('a launch always ends; it fails exactly if something was amiss, and then stops every node it reaches', async () => {
  await fc.assert(
    fc.asyncProperty(script, async (plan) => {
      const { outcome, settledMs, asked, open, turns, workers } = await run(plan);
      expect(outcome).toBeDefined();
      expect(settledMs).toBeLessThanOrEqual(PATIENCE_MS + 7000 + END_MS);
      expect(open).toEqual([]);
      expect(vi.getTimerCount()).toBe(0);
      const isAmiss = plan.nodes.some(({ fate: { what } }) => what !== 'exit');
      const isUnread = plan.reader !== 'reads';
      const reached = workers.nodes.filter((_, index) => plan.nodes[index]?.fate.what !== 'lost');
      if (outcome?.kind === 'job') {
        expect(isAmiss).toBe(false);
        expect(asked).toEqual([]);
        const statuses = turns.map((index) => {
          const own = plan.nodes[index]?.fate;
          return own?.what === 'exit' ? own.status : 0;
        });
        expect(outcome.exitStatus).toBe(statuses.find((status) => status !== 0) ?? 0);
        // Nothing was printed, or all of it was read.
        expect(isUnread).toBe(false);
      } else {
        expect(isAmiss || isUnread || plan.endAfterMs !== undefined).toBe(true);
        // A node that was lost only after the stop had been asked as well.
        expect(asked).toEqual(expect.arrayContaining(reached));
        expect(new Set(asked).size).toBe(asked.length);
      }
    }),
    { numRuns: 150 },
  );
});
