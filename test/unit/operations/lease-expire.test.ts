import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { Epoch, JobId, LeaseNumber, NodeName, Uid } from '../../../src/base/ids.ts';
import { LeaseStore } from '../../../src/lease/store.ts';
import { expireLeases, requireSure } from '../../../src/operations/lease-expire.ts';
import { BOOT, OTHER_BOOT, request, T0 } from '../lease/scene.ts';
import { errorOf, selection, setUp, useFakeTime, withParts } from './scene.ts';

beforeEach(useFakeTime);
afterEach(() => {
  vi.useRealTimers();
});

const setUpThree = async () => {
  const scene = await setUp({ ttlMs: 60_000 });
  for (const [job, ttlMs] of [
    ['43', 3_600_000],
    ['44', 60_000],
  ] as const)
    await scene.leases.allocate(request({ job: job as JobId, ttlMs }));
  return scene;
};

/** The same log seen from a controller of another boot. */
const elsewhere = ({ context, log }: Awaited<ReturnType<typeof setUp>>) =>
  withParts(context, {
    leases: new LeaseStore(
      { log, clock: context.clock, bootId: OTHER_BOOT, nameService: context.nameService },
      context.settings,
    ),
  });

test('one lease is expired when its time is over, and refused as long as it lives', async () => {
  const { context, leases } = await setUpThree();
  expect((await errorOf(expireLeases(context, selection))).code).toBe('lease-state');
  vi.advanceTimersByTime(60_000);
  expect(await expireLeases(context, selection)).toMatchObject({
    outcomes: [{ lease: 1, uid: 70_000, job: '42', outcome: 'expired' }],
  });
  expect((await leases.list()).map(({ status, quarantine }) => [status, quarantine?.code])).toEqual([
    ['quarantined', 'expired'],
    ['active', undefined],
    ['active', undefined],
  ]);
});

test('all leases are judged in one go, and what lives is left', async () => {
  const { context, leases, journal } = await setUpThree();
  vi.advanceTimersByTime(60_000);
  journal.length = 0;
  const result = await expireLeases(context, 'all');
  expect(result.outcomes.map(({ lease, outcome }) => [lease, outcome])).toEqual([
    [1, 'expired'],
    [2, 'live'],
    [3, 'expired'],
  ]);
  requireSure(result);
  expect(journal).toEqual(['log quarantine', 'log quarantine']);
  expect((await leases.list()).map(({ status }) => status)).toEqual(['quarantined', 'active', 'quarantined']);
  expect((await expireLeases(context, 'all')).outcomes.map(({ lease }) => lease)).toEqual([2]);
});

test('another controller waits a whole skew bound longer', async () => {
  const scene = await setUpThree();
  const other = elsewhere(scene);
  vi.advanceTimersByTime(64_999);
  expect((await expireLeases(other, 'all')).outcomes.map(({ outcome }) => outcome)).toEqual([
    'live',
    'live',
    'live',
  ]);
  vi.advanceTimersByTime(1);
  expect((await expireLeases(other, 'all')).outcomes.map(({ outcome }) => outcome)).toEqual([
    'expired',
    'live',
    'expired',
  ]);
});

test('a controller whose clock is off lets none expire of those that it cannot judge, and says so', async () => {
  const scene = await setUpThree();
  const other = elsewhere(scene);
  vi.advanceTimersByTime(9_000_000);
  scene.log.skewMs = -646_000;
  const result = await expireLeases(other, 'all');
  expect(result.outcomes.map(({ outcome }) => outcome)).toEqual(['unsure', 'unsure', 'unsure']);
  expect(() => requireSure(result)).toThrow(/^3 leases: clock skew -10m46s is over the bound of 5s/);
  expect((await errorOf(expireLeases(other, selection))).code).toBe('clock-skew');
  // The host that granted counts on no wall clock.
  const own = await expireLeases(scene.context, 'all');
  expect(own.outcomes.map(({ outcome }) => outcome)).toEqual(['expired', 'expired', 'expired']);
});

test('more than one record takes are expired all the same', async () => {
  const { context, leases, log } = await setUp({ ttlMs: 60_000 });
  log.append(
    Array.from({ length: 4200 }, (_, index) => ({
      ...request({ job: `many-${index}` as JobId, nodes: ['n1' as NodeName] }),
      kind: 'allocate' as const,
      lease: (index + 2) as LeaseNumber,
      uid: (80_000 + index) as Uid,
      term: { ttlMs: 1000, issued: { wallMs: T0, monotonicMs: 1_000_000, bootId: BOOT } },
      epoch: 1 as Epoch,
    })),
  );
  vi.advanceTimersByTime(60_000);
  const { outcomes } = await expireLeases(context, 'all');
  expect(outcomes.map(({ lease }) => lease)).toEqual(Array.from({ length: 4201 }, (_, index) => index + 1));
  expect(new Set(outcomes.map(({ outcome }) => outcome))).toEqual(new Set(['expired']));
  expect(await leases.list(['active'])).toEqual([]);
});
