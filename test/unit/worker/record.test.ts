import { describe, expect, test } from 'vitest';
import { openTicket } from '../../../src/lease/ticket.ts';
import { DEFAULT_RESOURCES } from '../../../src/sandbox/resources.ts';
import { decodeRecord, encodeRecord, type SandboxRecord } from '../../../src/worker/record.ts';
import { claimsFor, KEYS, ticketFor, WORKER_KEYS } from './fakes.ts';

const nonce = '0f'.repeat(16);
const record: SandboxRecord = {
  state: 'ready',
  bootId: 'boot-1',
  ticket: ticketFor(nonce),
  claims: claimsFor(nonce),
  grants: [{ nonce, issuedMs: 1000, deadlineMs: 61_000 }],
  deadlineMs: 61_000,
  resources: { ...DEFAULT_RESOURCES, memoryBytes: 1 << 30, cpus: [0, 1] },
  anchor: {
    unit: 'a.service',
    invocationId: 'i1',
    workspace: '/scratch/xce/main/42.0',
    mounts: [{ path: '/scratch', source: 's', type: 't', fsid: 'f' }],
  },
};
const open = (ticket: string) => openTicket(ticket, KEYS.publicKey);
const change = (changes: object): Buffer =>
  Buffer.from(JSON.stringify({ ...JSON.parse(encodeRecord(record).toString()), ...changes }));

describe('a record', () => {
  test('comes back as it was written', () => {
    expect(decodeRecord(encodeRecord(record), open)).toEqual(record);
    const early: SandboxRecord = { ...record, state: 'preparing', anchor: null };
    expect(decodeRecord(encodeRecord(early), open)).toEqual(early);
  });

  test.each([
    ['of a later version', { version: 2 }],
    ['in no known state', { state: 'running' }],
    ['with a field that nobody wrote', { more: 1 }],
    ['with a changed ticket', { ticket: `${ticketFor(nonce)}x` }],
    ['with a time that is no number', { deadlineMs: 'soon' }],
  ])('%s does not decode', (_, changes) => {
    expect(decodeRecord(change({}), open)).toEqual(record);
    expect(decodeRecord(change(changes), open)).toBeUndefined();
  });

  test('does not decode once its ticket is signed by no key of the cluster', () => {
    expect(
      decodeRecord(encodeRecord(record), (text) => openTicket(text, WORKER_KEYS.publicKey)),
    ).toBeUndefined();
  });

  test.each(['', '{', 'null', '[]'])('is not %j', (text) => {
    expect(decodeRecord(Buffer.from(text), open)).toBeUndefined();
  });
});
