import { describe, expect, test } from 'vitest';
import { LIMITS } from '../../../src/base/limits.ts';
import { decodeEvent, EVENT_KINDS, encodeEvent, type LeaseEvent } from '../../../src/lease/event.ts';
import { leaseMachine } from '../../../src/lease/machine.ts';
import { attempt, BOOT, codeOf, epoch, job, leaseNumber, node, nodes, T0, uid } from './scene.ts';

const lease = leaseNumber(7);
const term = { ttlMs: 60_000, issued: { wallMs: T0, monotonicMs: 5, bootId: BOOT } };
const hex = (digit: string, bytes: number) => digit.repeat(bytes * 2);

const allocate: LeaseEvent = {
  kind: 'allocate',
  lease,
  uid: uid(70_001),
  job: job('1234[7].pbs01.example'),
  attempt: attempt(3),
  schedulerStartS: 1_800_000_000,
  submitter: { uid: 1001, gid: 100 },
  nodes: nodes('n1', 'n2.example'),
  roots: [{ path: '/scratch/Müller', storage: 'scratch' }],
  workspace: { path: '/scratch/xce', storage: 'scratch' },
  term,
  epoch: epoch(2),
};

const samples: readonly LeaseEvent[] = [
  allocate,
  { ...allocate, schedulerStartS: null, roots: [], workspace: null },
  { kind: 'renew', lease, term, epoch: epoch(2) },
  { kind: 'bind', lease, node: node('n1'), binding: { workerKey: hex('a', 32), bootId: BOOT } },
  { kind: 'join', lease, node: node('n9') },
  {
    kind: 'mounts',
    lease,
    node: node('n1'),
    mounts: [{ path: '/scratch/xce', source: 'srv:/vol', type: 'fuse.glusterfs', fsid: '0' }],
  },
  { kind: 'drain', lease, nonces: [{ node: node('n1'), nonce: hex('0', 16) }] },
  { kind: 'ask', lease, nonces: [{ node: node('n1'), nonce: hex('f', 16) }] },
  { kind: 'certify', lease, node: node('n1'), digest: hex('1', 32), certificate: 'xcc1.e30.AA' },
  { kind: 'normalise', lease },
  { kind: 'normalised', lease, path: '/scratch/xce', walked: 2 ** 40, changed: 0 },
  { kind: 'free', lease, wallMs: T0 },
  {
    kind: 'quarantine',
    lease,
    quarantine: { code: 'node-dirty', text: 'pid 7 "\u001b[2K…"', node: node('n1'), wallMs: T0 },
  },
  { kind: 'quarantine', lease, quarantine: { code: 'operator', text: '', node: null, wallMs: 0 } },
  {
    kind: 'reclaim',
    lease,
    node: node('n1'),
    reclaim: { by: 'root', reason: 'power supply "burnt\u001b[2K…"', wallMs: T0 },
  },
  { kind: 'forget', count: 64 },
];

describe('bytes of an event', () => {
  test('every kind has a sample here', () => {
    expect(new Set(samples.map(({ kind }) => kind))).toEqual(new Set(EVENT_KINDS));
  });

  test.each(samples.map((event) => [event.kind, event] as const))('%s comes back as it was', (_, event) => {
    expect(decodeEvent(encodeEvent(event))).toEqual(event);
    const between = Buffer.concat([encodeEvent(event), encodeEvent(event), encodeEvent(event)]);
    expect(decodeEvent(between, between.length / 3, (between.length * 2) / 3)).toEqual(event);
  });

  test('these are the bytes of version 1', () => {
    const text = (event: LeaseEvent) => Buffer.from(encodeEvent(event)).toString('hex');
    expect(text({ kind: 'normalise', lease })).toBe('010907');
    expect(text({ kind: 'free', lease: leaseNumber(300), wallMs: 127 })).toBe('010bac027f');
    expect(text({ kind: 'join', lease, node: node('n9') })).toBe('010407026e39');
    expect(text({ kind: 'forget', count: 64 })).toBe('010d40');
    const reclaim = { by: 'me', reason: 'off', wallMs: 127 };
    expect(text({ kind: 'reclaim', lease, node: node('n1'), reclaim })).toBe('010e07026e31026d65036f66667f');
    expect(
      text({
        ...allocate,
        job: job('42'),
        nodes: nodes('n1'),
        roots: [],
        term: { ttlMs: 60_000, issued: { wallMs: 1, monotonicMs: 2, bootId: 'b' } },
      }),
    ).toBe(
      '010107f1a204023432030180a4a7da06e907640102' +
        '6e3100010c2f736372617463682f78636507736372617463' +
        '68e0d4030102016202',
    );
    expect(text({ kind: 'drain', lease, nonces: [{ node: node('n1'), nonce: hex('f', 16) }] })).toBe(
      `01060701026e31${'ff'.repeat(16)}`,
    );
    expect(
      text({
        kind: 'quarantine',
        lease,
        quarantine: { code: 'node-dirty', text: 'é', node: null, wallMs: 3 },
      }),
    ).toBe('010c070202c3a90003');
  });

  test('job ids that differ in the last of 17 digits stay different', () => {
    const ids = ['18014398509481984', '18014398509481985'].map((id) => {
      const event = decodeEvent(encodeEvent({ ...allocate, job: job(id) }));
      return event.kind === 'allocate' ? event.job : '';
    });
    expect(ids).toEqual(['18014398509481984', '18014398509481985']);
  });

  test.each(samples.map((event) => [event.kind, event] as const))('no part of %s decodes', (_, event) => {
    const bytes = encodeEvent(event);
    for (let length = 0; length < bytes.length; length += 1)
      expect(codeOf(() => decodeEvent(bytes, 0, length))).toBe('log-corrupt');
    expect(codeOf(() => decodeEvent(Buffer.concat([bytes, Buffer.of(0)])))).toBe('log-corrupt');
  });

  test.each([
    ['a number in a longer form than it needs', '01098700'],
    ['a number of more than 53 bits', `0109${'ff'.repeat(7)}7f`],
    ['lease 0', '010900'],
    ['a node name with an upper-case letter', '010407024e39'],
    ['a text that is not UTF-8', '010a0701ff0000'],
    ['a flag that is neither 0 nor 1', '010c0708000200'],
    ['a text longer than the record', '010407ff016e'],
    ['version 0', '000907'],
  ])('%s is corrupt', (_, hexBytes) => {
    expect(codeOf(() => decodeEvent(Buffer.from(hexBytes, 'hex')))).toBe('log-corrupt');
  });

  test.each([
    ['a higher version', '020907'],
    ['an unknown kind', '01ff07'],
    ['the first kind that is not known', `01${(EVENT_KINDS.length + 1).toString(16).padStart(2, '0')}07`],
    ['an unknown reason for quarantine', '010c0763000000'],
  ])('%s was written by a newer suite', (_, hexBytes) => {
    expect(codeOf(() => decodeEvent(Buffer.from(hexBytes, 'hex')))).toBe('log-version');
  });

  test('what the decoder would refuse is never handed to the disk', () => {
    const tooLong = 'x'.repeat(LIMITS.pathBytesMax + 1);
    const event: LeaseEvent = { kind: 'normalised', lease, path: tooLong, walked: 0, changed: 0 };
    expect(codeOf(() => leaseMachine.encode(event))).toBe('bug');
    expect(codeOf(() => leaseMachine.encode({ ...event, path: '/a\ud800' }))).toBe('bug');
  });
});
