import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { NodeName } from '../../../src/base/ids.ts';
import { keepRenewing, type Renewal } from '../../../src/operations/renewal.ts';
import type { Tickets } from '../../../src/operations/tickets.ts';
import { claimsIn, LEASE, settle, setUp, useFakeTime } from './scene.ts';

const TTL_MS = 90_000;
const DAY_MS = 24 * 3600 * 1000;

let warnings: Error[] = [];
const noteWarning = (warning: Error): void => void warnings.push(warning);

beforeEach(() => {
  warnings = [];
  process.on('warning', noteWarning);
  useFakeTime();
});

afterEach(() => {
  vi.useRealTimers();
  process.off('warning', noteWarning);
  expect(warnings).toEqual([]);
});

/** A lease that a launch has just got its first tickets for. */
const renewing = async (options: Parameters<typeof setUp>[0] & { readonly leftMs?: number } = {}) => {
  const ttlMs = options.ttlMs ?? TTL_MS;
  const scene = await setUp({ ...options, ttlMs });
  const { leftMs = ttlMs } = options;
  await vi.advanceTimersByTimeAsync(ttlMs - leftMs);
  const failures: XceError[] = [];
  const renewed: Tickets['ticketOf'][] = [];
  const startMs = Date.now();
  const renewal: Renewal = keepRenewing(
    scene.context,
    { lease: scene.lease, endMs: scene.context.clock.monotonicMs() + leftMs },
    scene.nodes,
    {
      onRenewed: ({ ticketOf }) => {
        renewed.push(ticketOf);
      },
      onFailure: (error) => {
        failures.push(error);
      },
    },
  );
  const renewals = (): number => scene.journal.filter((entry) => entry === 'log renew').length;
  const refuse = (code: 'worker-busy' | undefined): void => {
    scene.at('n2').on('renew', () => {
      if (code !== undefined) throw new XceError(code, 'not now');
      return { remainingMs: 1 };
    });
  };
  const advanceTo = async (ms: number): Promise<void> => {
    await vi.advanceTimersByTimeAsync(startMs + ms - Date.now());
    await settle();
  };
  return { ...scene, renewal, failures, renewed, renewals, refuse, advanceTo };
};

describe('a renewal', () => {
  test('comes after each third of the time: the log first, then a new ticket for every node', async () => {
    const { journal, renewal, renewals, advanceTo } = await renewing();
    await advanceTo(TTL_MS / 3 - 1);
    expect(journal).toEqual([]);
    await advanceTo(TTL_MS / 3);
    expect(journal).toEqual([
      'log renew',
      ...['n1 challenge', 'n2 challenge', 'n3 challenge'],
      ...['log bind', 'log bind', 'log bind'],
      ...['sign n1', 'n1 renew', 'sign n2', 'n2 renew', 'sign n3', 'n3 renew'],
    ]);
    await advanceTo((2 * TTL_MS) / 3);
    expect(renewals()).toBe(2);
    await renewal.stop();
    expect(vi.getTimerCount()).toBe(0);
  });

  test('gives tickets for the whole term, with new nonces', async () => {
    const { at, renewal, advanceTo } = await renewing();
    const tickets: string[] = [];
    at('n2').on('renew', ({ ticket }) => {
      tickets.push(ticket);
      return { remainingMs: 1 };
    });
    await advanceTo(TTL_MS);
    await renewal.stop();
    expect(tickets.map(claimsIn).map(({ ttlMs, nonce, node }) => [ttlMs, Number(nonce), node])).toEqual([
      [TTL_MS, 1, 'n2'],
      [TTL_MS, 2, 'n2'],
      [TTL_MS, 3, 'n2'],
    ]);
  });

  test('hands its tickets on once every node has taken its own', async () => {
    const { renewal, refuse, advanceTo, renewed } = await renewing();
    await advanceTo(TTL_MS / 3);
    const tickets = renewed.map((ticketOf) => claimsIn(ticketOf('n1' as NodeName)));
    expect(tickets.map(({ node, nonce }) => [node, Number(nonce)])).toEqual([['n1', 1]]);
    refuse('worker-busy');
    await advanceTo((2 * TTL_MS) / 3);
    expect(renewed).toHaveLength(1);
    await renewal.stop();
  });

  test('that fails is told, and tried again after a third of the rest', async () => {
    const { renewal, renewals, refuse, advanceTo, told, failures } = await renewing();
    refuse('worker-busy');
    await advanceTo(30_000);
    expect(told).toEqual(['the lease was not renewed: not every node took the renewed ticket: n2: not now']);
    refuse(undefined);
    await advanceTo(50_000 - 1);
    expect(renewals()).toBe(1);
    await advanceTo(50_000);
    expect(renewals()).toBe(2);
    // The next one counts from the one that went well.
    await advanceTo(50_000 + 30_000 - 1);
    expect(renewals()).toBe(2);
    await advanceTo(50_000 + 30_000);
    expect(renewals()).toBe(3);
    await renewal.stop();
    expect(told).toHaveLength(1);
    expect(failures).toEqual([]);
  });

  test('is given up once, with an eighth of the time left, in time to end the job', async () => {
    const { refuse, renewals, advanceTo, failures, renewal } = await renewing();
    refuse('worker-busy');
    await advanceTo((TTL_MS * 7) / 8 - 5000);
    expect(failures).toEqual([]);
    await advanceTo(TTL_MS - 5000);
    expect(failures).toMatchObject([{ code: 'worker-busy' }]);
    const tries = renewals();
    await advanceTo(TTL_MS * 3);
    expect(failures).toHaveLength(1);
    expect(renewals()).toBe(tries);
    expect(vi.getTimerCount()).toBe(0);
    await renewal.stop();
  });

  test('is given up with the code of the log when that is not ours any more', async () => {
    const { log, asked, advanceTo, failures, told } = await renewing();
    log.failure = new XceError('log-fenced', 'another controller owns the log');
    await advanceTo(TTL_MS);
    expect(failures).toMatchObject([{ code: 'log-fenced', message: 'another controller owns the log' }]);
    expect(told.length).toBeGreaterThan(1);
    expect(asked('challenge')).toEqual([]);
  });

  test('may fail once although the launch began late in the term of its lease', async () => {
    const { refuse, advanceTo, failures, renewal } = await renewing({ leftMs: TTL_MS / 10 });
    refuse('worker-busy');
    await advanceTo(TTL_MS / 30);
    refuse(undefined);
    await advanceTo(TTL_MS / 10);
    expect(failures).toEqual([]);
    await renewal.stop();
  });

  test('is given up by what the last one gave, also where the launch began late in the term', async () => {
    const { refuse, advanceTo, failures, renewal } = await renewing({ leftMs: TTL_MS / 10 });
    await advanceTo(TTL_MS / 30);
    refuse('worker-busy');
    await advanceTo(TTL_MS / 30 + TTL_MS - 7000);
    expect(failures).toHaveLength(1);
    await renewal.stop();
  });

  test('counts from before its questions, because a node counts from its nonce', async () => {
    const { at, renewal, renewals, advanceTo } = await renewing();
    const n3 = at('n3');
    n3.on('challenge', async () => {
      await new Promise((resolve) => setTimeout(resolve, 15_000));
      return n3.challenge();
    });
    await advanceTo(45_000);
    expect(renewals()).toBe(1);
    // Asked at 30 s for 90 s, of which 15 s were over when the log was asked: until 105 s, in three parts from 45 s.
    await advanceTo(65_000 - 1);
    expect(renewals()).toBe(1);
    await advanceTo(65_000);
    expect(renewals()).toBe(2);
    const stopped = renewal.stop();
    await advanceTo(90_000);
    await stopped;
  });

  test('keeps the term that was asked for last, by whoever', async () => {
    const { leases, renewal, advanceTo } = await renewing();
    await leases.renew(LEASE, 10 * TTL_MS);
    await advanceTo(TTL_MS / 3);
    expect((await leases.show(LEASE)).ttlMs).toBe(10 * TTL_MS);
    await renewal.stop();
  });

  test('of a lease longer than a timer takes does not come at once', async () => {
    const { journal, renewal, renewals, advanceTo } = await renewing({ ttlMs: 300 * DAY_MS });
    await advanceTo(99 * DAY_MS);
    expect(journal).toEqual([]);
    await advanceTo(100 * DAY_MS);
    expect(renewals()).toBe(1);
    await renewal.stop();
  });

  test('of many nodes raises no warning about listeners', async () => {
    const names = Array.from({ length: 40 }, (_, index) => `n${index + 1}`);
    const { all, renewal, advanceTo, asked } = await renewing({ names });
    for (const worker of all) {
      worker.on('renew', async () => {
        await new Promise((resolve) => setTimeout(resolve, 10));
        return { remainingMs: 1 };
      });
    }
    await advanceTo(TTL_MS / 3 + 20);
    expect(asked('renew')).toHaveLength(40);
    await renewal.stop();
  });
});

describe('the end of renewals', () => {
  test('comes at once between two of them, and leaves no timer', async () => {
    const { renewal, renewals, advanceTo } = await renewing();
    await renewal.stop();
    await renewal.stop();
    expect(vi.getTimerCount()).toBe(0);
    await advanceTo(TTL_MS);
    expect(renewals()).toBe(0);
  });

  test.each(['challenge', 'renew'] as const)(
    'gives up a question (%s) that is open, and nothing follows it',
    async (verb) => {
      const { at, journal, renewal, advanceTo, told, failures } = await renewing();
      at('n2').on(verb, () => new Promise(() => undefined));
      await advanceTo(TTL_MS / 3);
      const before = journal.length;
      await renewal.stop();
      await advanceTo(TTL_MS * 2);
      expect(journal).toHaveLength(before);
      expect([told, failures, vi.getTimerCount()]).toEqual([[], [], 0]);
    },
  );

  test('waits for a commit that is under way: the log must not be closed under it', async () => {
    const { log, journal, renewal, advanceTo } = await renewing();
    log.delayMs = 1000;
    await advanceTo(TTL_MS / 3 + 500);
    let stopped = false;
    const stopping = renewal.stop().then(() => {
      stopped = true;
    });
    await settle();
    expect([stopped, journal]).toEqual([false, []]);
    await advanceTo(TTL_MS / 3 + 1000);
    await stopping;
    expect(journal).toEqual(['log renew']);
    expect(vi.getTimerCount()).toBe(0);
  });
});
