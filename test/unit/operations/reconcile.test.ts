import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { Attempt, JobId, LeaseNumber } from '../../../src/base/ids.ts';
import { releaseLease } from '../../../src/operations/lease-release.ts';
import { reconcile, requireAgreement } from '../../../src/operations/reconcile.ts';
import { request } from '../lease/scene.ts';
import { setUpClean } from './clean-scene.ts';
import { LEASE, selection, useFakeTime, withParts } from './scene.ts';

beforeEach(() => {
  useFakeTime();
});
afterEach(() => {
  vi.useRealTimers();
});

/** Workers that have what the test gives them, and a configuration without storage. */
const setUp = async () => {
  const scene = await setUpClean();
  const strays = new Map<string, number[]>();
  const boxes = new Map<string, object[]>();
  for (const worker of scene.all) {
    worker.on('status', () => ({
      node: worker.node,
      bootId: 'boot-1',
      sandboxes: boxes.get(worker.node) ?? [],
    }));
    worker.on('strays', () => ({ node: worker.node, leases: strays.get(worker.node) ?? [] }));
  }
  const context = withParts(scene.context, { settings: { ...scene.context.settings, storage: [] } });
  /** Something of lease 1 on a node, until a drain ends it. */
  const plant = (name: string): void => {
    strays.set(name, [1]);
    scene.at(name).on('drain', (asking) => {
      strays.delete(name);
      scene.drained.push(asking);
      return scene.certify(name, asking);
    });
  };
  const kinds = async (apply = false) =>
    (await reconcile(context, apply)).differences.map(({ kind }) => kind);
  return { ...scene, context, strays, boxes, plant, kinds };
};

test('without --apply nothing is written and no node is told to do anything', async () => {
  const { kinds, log, journal, strays } = await setUp();
  strays.set('n2', [99]);
  vi.setSystemTime(Date.now() + 3_600_000);
  const before = log.records.length;
  expect(await kinds()).toEqual(['lease-overdue', 'sandbox-without-lease']);
  expect(log.records.length).toBe(before);
  expect(new Set(journal.map((line) => line.split(' ')[1]))).toEqual(new Set(['status', 'strays']));
});

test('a lease whose time is over is released by proof; one that may run is not touched', async () => {
  const { context, leases } = await setUp();
  const other = request({ job: '43' as JobId, nodes: [...context.settings.nodes.hosts], ttlMs: 86_400_000 });
  const { result } = await leases.allocate(other);
  vi.setSystemTime(Date.now() + 3_600_000);
  const { mended, differences } = await reconcile(context, true);
  expect(mended).toMatchObject([{ difference: { lease: 1, mend: 'release' }, failed: null }]);
  expect(differences).toMatchObject([{ kind: 'lease-without-sandbox', lease: result.lease.lease }]);
  expect(() => requireAgreement({ mended, differences })).not.toThrow();
  expect((await leases.list()).map(({ lease }) => lease)).toEqual([result.lease.lease]);
});

test('what a lease that has ended left on a node is drained there, as that lease, and only there', async () => {
  const { context, plant, drained, asked, journal } = await setUp();
  await releaseLease(context, selection);
  drained.length = 0;
  journal.length = 0;
  plant('n2');
  const { mended, differences } = await reconcile(context, true);
  expect(mended).toMatchObject([{ difference: { kind: 'sandbox-without-lease' }, failed: null }]);
  expect(differences).toEqual([]);
  expect(asked('drain')).toEqual(['n2']);
  expect(drained).toMatchObject([{ epoch: 1, lease: 1, uid: 70_000, job: '42', attempt: 0 }]);
});

test('a node that has something again certifies again before the uid is free', async () => {
  const { context, plant, at, asked, leases } = await setUp();
  at('n3').die();
  await expect(releaseLease(context, selection)).rejects.toMatchObject({ code: 'release-blocked' });
  at('n3').revive();
  // n2 has certified, and something of the lease is there all the same.
  plant('n2');
  const { mended, differences } = await reconcile(context, true);
  expect(mended).toMatchObject([{ difference: { kind: 'lease-quarantined', rejoin: ['n2'] }, failed: null }]);
  expect(differences).toEqual([]);
  expect(asked('drain').filter((node) => node === 'n2')).toHaveLength(2);
  expect(await leases.list()).toEqual([]);
});

test('a log that this controller lost ends the command, which says what was mended until then', async () => {
  const { context, leases, log } = await setUp();
  const other = request({ job: '43' as JobId, nodes: [...context.settings.nodes.hosts], ttlMs: 60_000 });
  await leases.allocate(other);
  vi.setSystemTime(Date.now() + 3_600_000);
  const commit = log.commit.bind(log);
  let frees = 0;
  log.commit = async (decide) => {
    if (frees > 0) throw new XceError('log-fenced', 'another controller owns the log');
    const committed = await commit(decide);
    if ((await leases.list()).length === 1) frees += 1;
    return committed;
  };
  await expect(reconcile(context, true)).rejects.toMatchObject({
    code: 'log-fenced',
    facts: { detail: { mended: [{ difference: { lease: 1 }, failed: null }] } },
  });
});

test('what cannot be mended is told, and keeps the others from nothing', async () => {
  const { context, leases, at, boxes } = await setUp();
  const other = request({ job: '43' as JobId, nodes: [...context.settings.nodes.hosts], ttlMs: 60_000 });
  await leases.allocate(other);
  const sandbox = {
    lease: 1,
    job: '42',
    attempt: 0 as Attempt,
    uid: 70_000,
    unit: 'anchor.service',
    state: 'dirty',
    remainingMs: 0,
    steps: [],
  };
  boxes.set('n1', [sandbox]);
  const certifies = at('n1');
  certifies.on('drain', ({ lease }) => {
    throw lease === 1
      ? new XceError('node-dirty', 'lease 1: process 4711 sleep')
      : new XceError('timeout', 'no answer');
  });
  vi.setSystemTime(Date.now() + 3_600_000);
  const { mended, differences } = await reconcile(context, true);
  expect(mended.map(({ failed }) => failed?.code)).toEqual(['release-blocked', 'release-blocked']);
  expect(differences.map(({ kind, lease }) => [kind, lease])).toEqual([
    ['lease-quarantined', 1],
    ['lease-quarantined', 2 as LeaseNumber],
  ]);
  expect(() => requireAgreement({ mended, differences })).toThrow(
    expect.objectContaining({
      code: 'reconcile-differs',
      exitStatus: 69,
      message: '2 differences: 2 lease-quarantined',
    }),
  );
  expect((await leases.show(LEASE)).status).toBe('quarantined');
});

test('a node that gives no answer differs, and a storage that is not mounted does too', async () => {
  const { context, at } = await setUp();
  at('n3').die();
  const storage = [{ name: 'gone', path: '/no/such', workspace: '/no/such/xce', local: false }];
  const blind = withParts(context, { settings: { ...context.settings, storage } });
  const { differences } = await reconcile(blind, false);
  expect(differences).toMatchObject([{ kind: 'node-silent', nodes: ['n3'] }, { kind: 'storage-silent' }]);
});
