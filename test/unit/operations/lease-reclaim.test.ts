import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { NodeName } from '../../../src/base/ids.ts';
import { reclaimNode } from '../../../src/operations/lease-reclaim.ts';
import { releaseLease } from '../../../src/operations/lease-release.ts';
import { makeWorker, request } from '../lease/scene.ts';
import { setUpClean } from './clean-scene.ts';
import { errorOf, LEASE, selection, useFakeTime } from './scene.ts';

beforeEach(useFakeTime);
afterEach(() => {
  vi.useRealTimers();
});

const word = { selection, node: 'n2' as NodeName, reason: 'power supply burnt', by: 'alice' };

/** A job was bound to every node; n2 is lost. */
const setUpLost = async () => {
  const scene = await setUpClean();
  const { leases, at, all } = scene;
  const keyOf = new Map(all.map(({ node }) => [node, makeWorker('boot-1')]));
  await leases.bind(
    LEASE,
    all.map((worker) => ({ ...worker.challenge(), workerKey: keyOf.get(worker.node)?.hex ?? '' })),
  );
  // What answers as n1 and n3 is what the job was bound to.
  for (const name of ['n1', 'n3'])
    at(name).on('challenge', () => ({ ...at(name).challenge(), workerKey: keyOf.get(at(name).node)?.hex }));
  return { ...scene, keyOf };
};

test.each([
  ['with the key of then', true],
  ['with another key', false],
])('a node that answers in the boot of the lease, %s, is not gone', async (_, isKeyOfThen) => {
  const { context, leases, journal, at, keyOf } = await setUpLost();
  const workerKey = isKeyOfThen ? keyOf.get(at('n2').node)?.hex : makeWorker('boot-1').hex;
  at('n2').on('challenge', () => ({ ...at('n2').challenge(), workerKey }));
  journal.length = 0;
  const error = await errorOf(reclaimNode(context, word));
  expect(error).toMatchObject({ code: 'lease-state', exitStatus: 77 });
  expect(error.message).toBe('n2 answers, in the boot that lease 1 is bound to');
  expect(journal.filter((line) => line.startsWith('log'))).toEqual([]);
  expect((await leases.show(LEASE)).status).toBe('active');
});

test('a node that answers in another boot, or does not answer, is reclaimed with a name', async () => {
  const { context, at } = await setUpLost();
  at('n2').die();
  expect(await reclaimNode(context, word)).toMatchObject({
    status: 'quarantined',
    quarantine: { code: 'reclaimed', node: 'n2', text: 'power supply burnt' },
  });
  const { context: other, at: otherAt } = await setUpLost();
  otherAt('n2').on('challenge', () => ({ ...otherAt('n2').challenge(), bootId: 'boot-2' }));
  const view = await reclaimNode(other, { ...word, by: undefined });
  expect(view.nodes[1]?.reclaim?.by).toMatch(/^(root|.* \(uid [0-9]+\)|uid [0-9]+)$/);
});

test('a second word for the same node is told that the first one stands', async () => {
  const { context, at, told, log } = await setUpLost();
  at('n2').die();
  await reclaimNode(context, word);
  await reclaimNode(context, word);
  expect(told).toEqual([]);
  const commits = log.records.length;
  const view = await reclaimNode(context, { ...word, by: 'bob', reason: 'rack moved' });
  expect(view.nodes[1]?.reclaim).toMatchObject({ by: 'alice', reason: 'power supply burnt' });
  expect(log.records.length).toBe(commits);
  expect(told).toEqual([
    expect.stringMatching(/^n2 was reclaimed before, by alice at \S+Z: power supply burnt; that stands/),
  ]);
});

describe('a release after a reclaim', () => {
  const setUpReclaimed = async () => {
    const scene = await setUpClean();
    scene.at('n2').die();
    expect(await errorOf(releaseLease(scene.context, selection))).toMatchObject({ code: 'release-blocked' });
    expect(await scene.status()).toEqual(['quarantined', 'node-unreachable', 'n2']);
    await reclaimNode(scene.context, word);
    return scene;
  };

  test('hands the files over, keeps the uid, and says in one line for whom it waits', async () => {
    const { context, status, leases } = await setUpReclaimed();
    const error = await errorOf(releaseLease(context, selection));
    expect(error).toMatchObject({ code: 'release-blocked', exitStatus: 69 });
    expect(error.message).toBe(
      'files are handed over; uid 70000 waits for node n2 to certify after its return',
    );
    expect(error.facts.detail).toMatchObject({ waitsFor: ['n2'] });
    expect(await status()).toEqual(['quarantined', 'reclaimed', 'n2']);
    expect((await leases.show(LEASE)).nodes.map(({ certified }) => certified)).toEqual([true, false, true]);
    const others = request({ job: 'other' as never, nodes: ['n2' as NodeName] });
    expect((await errorOf(leases.allocate(others))).code).toBe('node-withheld');
  });

  test('frees the uid once the node is back and has certified, whatever its key is then', async () => {
    const { context, at, keys, asked, journal, leases } = await setUpReclaimed();
    await errorOf(releaseLease(context, selection));
    keys.set(at('n2').node, makeWorker('boot-1'));
    at('n2').revive();
    journal.length = 0;
    expect(await releaseLease(context, selection)).toMatchObject({ status: 'free', uid: 70_000 });
    expect(asked('drain')).toEqual(['n2']);
    const others = request({ job: 'other' as never, nodes: ['n2' as NodeName] });
    expect((await leases.allocate(others)).result.created).toBe(true);
  });

  test('is blocked while what came back has something of the uid', async () => {
    const { context, at, status } = await setUpReclaimed();
    at('n2').revive();
    at('n2').on('drain', () => {
      throw new XceError('node-dirty', 'lease 1: process 4711 sleep');
    });
    expect((await errorOf(releaseLease(context, selection))).message).toBe(
      'lease 1: n2: lease 1: process 4711 sleep',
    );
    expect(await status()).toEqual(['quarantined', 'node-dirty', 'n2']);
  });

  test('is blocked by another node that gives no answer', async () => {
    const { context, at, status } = await setUpReclaimed();
    at('n3').die();
    // n3 has certified before n2 was reclaimed: it is asked no more.
    expect((await errorOf(releaseLease(context, selection))).message).toMatch(/^files are handed over/);
    expect(await status()).toEqual(['quarantined', 'reclaimed', 'n2']);

    const other = await setUpClean();
    for (const name of ['n2', 'n3']) other.at(name).die();
    await reclaimNode(other.context, word);
    expect((await errorOf(releaseLease(other.context, selection))).facts.detail).toMatchObject({
      missing: [{ code: 'node-unreachable', node: 'n3' }],
    });
  });
});
