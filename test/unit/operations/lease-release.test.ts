import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { Uid } from '../../../src/base/ids.ts';
import type { CertificateClaims } from '../../../src/lease/certificate.ts';
import { releaseLease } from '../../../src/operations/lease-release.ts';
import { makeWorker } from '../lease/scene.ts';
import { setUpClean } from './clean-scene.ts';
import { errorOf, LEASE, selection, useFakeTime } from './scene.ts';

beforeEach(useFakeTime);
afterEach(() => {
  vi.useRealTimers();
});

describe('a release', () => {
  test('is blocked by storage that is not there, although nothing was ever seen mounted there', async () => {
    const workspace = { storage: 'scratch', path: '/scratch/xce' };
    const { context, status } = await setUpClean({ workspace });
    const { code, message } = await errorOf(releaseLease(context, selection));
    expect([code, message]).toEqual([
      'release-blocked',
      expect.stringContaining('[storage scratch] /scratch'),
    ]);
    expect(await status()).toEqual(['quarantined', 'mount-changed', null]);
  });

  test('asks each node who it is, and for no nonce of a ticket', async () => {
    const { context, purposes } = await setUpClean();
    await releaseLease(context, selection);
    expect(purposes).toEqual(['hello', 'hello', 'hello']);
  });

  test('frees the uid once every node has certified: drain in the log, drains, certificates in the log, free', async () => {
    const { context, journal, drained, told } = await setUpClean();
    expect(await releaseLease(context, selection)).toEqual({
      lease: 1,
      job: '42',
      attempt: 0,
      uid: 70_000,
      status: 'free',
      nodes: ['n1', 'n2', 'n3'],
      roots: [],
    });
    expect(journal).toEqual([
      ...['n1 challenge', 'n2 challenge', 'n3 challenge'],
      ...['log drain', 'log bind', 'log bind', 'log bind'],
      ...['n1 drain', 'n2 drain', 'n3 drain'],
      ...['log certify', 'log certify', 'log certify'],
      ...['log normalise', 'log free'],
    ]);
    expect(new Set(drained.map(({ nonce }) => nonce)).size).toBe(3);
    expect(drained[0]).toMatchObject({ epoch: 1, lease: 1, uid: 70_000, job: '42', attempt: 0 });
    expect(told).toEqual([]);
    expect((await errorOf(releaseLease(context, selection))).code).toBe('lease-ended');
  });

  test('of an epoch that a node has left behind says how the epoch is raised', async () => {
    const { context, at } = await setUpClean();
    at('n2').on('drain', () => {
      throw new XceError('ticket-epoch', 'the request is of epoch 2, epoch 3 was seen');
    });
    const { message, facts } = await errorOf(releaseLease(context, selection));
    expect(message).toBe('lease 1: n2: the request is of epoch 2, epoch 3 was seen');
    expect(facts.next).toMatch(/lease verify.*lease takeover.*, then: xce-sandbox lease release --job 42/);
  });

  test('with something left on one node keeps the uid, says what, and later asks only that node again', async () => {
    const { context, at, certify, status, asked, journal } = await setUpClean();
    at('n2').on('drain', () => {
      throw new XceError('node-dirty', 'lease 1: process 4711 sleep');
    });
    const error = await errorOf(releaseLease(context, selection));
    expect(error).toMatchObject({ code: 'release-blocked', exitStatus: 69 });
    expect(error.message).toBe('lease 1: n2: lease 1: process 4711 sleep');
    expect(error.facts.detail).toMatchObject({ missing: [{ code: 'node-dirty', node: 'n2' }] });
    expect(await status()).toEqual(['quarantined', 'node-dirty', 'n2']);

    journal.length = 0;
    at('n2').on('drain', (request) => certify('n2', request));
    expect(await releaseLease(context, selection)).toMatchObject({ status: 'free' });
    expect(asked('drain')).toEqual(['n2']);
  });

  test('without an answer of one node keeps the uid', async () => {
    const { context, at, status, asked } = await setUpClean();
    at('n3').die();
    const error = await errorOf(releaseLease(context, selection));
    expect(error.facts.detail).toMatchObject({ missing: [{ code: 'node-unreachable', node: 'n3' }] });
    expect(await status()).toEqual(['quarantined', 'node-unreachable', 'n3']);
    expect(asked('drain')).toEqual(['n1', 'n2']);
    expect(error.facts.unchanged).toMatch(/^uid 70000 stays with lease 1, which is in quarantine now/);
    expect(error.facts.next).toMatch(/; for a node that is lost.*: xce-sandbox lease reclaim .* --node n3 /);
    const again = await errorOf(releaseLease(context, selection));
    expect(again.facts.unchanged).toBe('uid 70000 is kept in quarantine and will not be leased');
  });

  test('without an answer of many nodes says each reason once, and keeps it so in the log', async () => {
    const names = Array.from({ length: 100 }, (_, index) => `n${index + 1}`);
    const { context, all, at, leases } = await setUpClean({ names });
    for (const worker of all) if (worker.node !== 'n7') worker.die();
    at('n7').on('drain', () => {
      throw new XceError('node-dirty', 'lease 1: process 4711 sleep');
    });
    const error = await errorOf(releaseLease(context, selection));
    const lost = 'n[1-6,8-100]';
    const text = `${lost}: no connection to ${lost}: ECONNREFUSED; n7: lease 1: process 4711 sleep`;
    expect(error.message).toBe(`lease 1: ${text}`);
    expect(error.facts.next).toContain('--node NODE --reason TEXT');
    expect((await leases.show(LEASE)).quarantine?.text).toBe(text);
    expect(error.facts.detail).toMatchObject({ missing: { length: 100 } });
  });

  test.each<[string, Partial<CertificateClaims>, string]>([
    ['answers another request', { nonce: '00'.repeat(16) }, 'n2'],
    ['is of another boot', { bootId: 'boot-2' }, 'n2'],
    ['is about another uid', { uid: 70_001 as Uid }, 'n2'],
    ['is signed by another node', {}, 'n1'],
  ])('with a certificate that %s keeps the uid', async (_, changes, signer) => {
    const { context, at, certify, status } = await setUpClean();
    at('n2').on('drain', (request) => certify('n2', request, changes, signer));
    expect((await errorOf(releaseLease(context, selection))).code).toBe('release-blocked');
    expect(await status()).toEqual(['quarantined', 'certificate', 'n2']);
  });

  test('leaves the lease to another one that has asked since', async () => {
    const { context, at, certify, leases, status, journal } = await setUpClean();
    at('n2').on('drain', async (request) => {
      await leases.beginDrain(LEASE, []);
      return certify('n2', request);
    });
    const error = await errorOf(releaseLease(context, selection));
    expect(error).toMatchObject({ code: 'lease-state', exitStatus: 77 });
    expect(error.message).toBe('another release of lease 1 has begun since this one');
    expect(await status()).toEqual(['draining', undefined, undefined]);
    expect(journal).not.toContain('log quarantine');

    at('n2').on('drain', (request) => certify('n2', request));
    expect(await releaseLease(context, selection)).toMatchObject({ status: 'free' });
  });

  test('of a node whose worker has another key than the job was bound to keeps the uid', async () => {
    const { context, at, leases, status } = await setUpClean();
    await leases.bind(LEASE, [{ ...at('n1').challenge(), workerKey: makeWorker().hex }]);
    const error = await errorOf(releaseLease(context, selection));
    expect(error.message).toMatch(/n1 answers with another worker key/);
    expect(error.facts.next).toMatch(
      /^if n1 was installed anew .*lease reclaim .* --node n1 --reason TEXT, then:/,
    );
    expect(await status()).toEqual(['quarantined', 'certificate', 'n1']);
  });

  test('that the log does not take drains nothing', async () => {
    const { context, log, asked } = await setUpClean();
    log.failure = new XceError('log-fenced', 'another controller owns the log');
    expect((await errorOf(releaseLease(context, selection))).code).toBe('log-fenced');
    expect(asked('drain')).toEqual([]);
  });
});
