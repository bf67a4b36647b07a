import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { XceError } from '../../src/base/errors.ts';
import { parseJobId, parseNodeName } from '../../src/base/ids.ts';
import { LIMITS } from '../../src/base/limits.ts';
import {
  decodeEvent,
  EVENT_KINDS,
  type EventKind,
  encodeEvent,
  type LeaseEvent,
  QUARANTINE_CODES,
} from '../../src/lease/event.ts';
import { LEASE_STATUSES, type LeaseStatus } from '../../src/lease/lease.ts';
import { leaseMachine } from '../../src/lease/machine.ts';
import type { Term } from '../../src/lease/term.ts';
import { nodes, request, Scene } from '../unit/lease/scene.ts';

const SEED = 20_260_730;
const whole = (min = 0, max = Number.MAX_SAFE_INTEGER) => fc.integer({ min, max });
const hex = (bytes: number) =>
  fc.uint8Array({ minLength: bytes, maxLength: bytes }).map((value) => Buffer.from(value).toString('hex'));
/** Text of any code points but lone surrogates, within a bound of bytes. */
const text = (bytesMax: number) =>
  fc
    .string({ unit: 'binary', maxLength: 40 })
    .map((value) => Buffer.from(value).toString())
    .filter((value) => Buffer.byteLength(value) <= bytesMax);

const defined = <Value>(value: Value | undefined): value is Value => value !== undefined;
const job = fc.string({ minLength: 1, maxLength: 128 }).map(parseJobId).filter(defined);
const node = fc
  .stringMatching(/^[a-z0-9]{1,20}(\.[a-z0-9]{1,20}){0,2}$/)
  .map(parseNodeName)
  .filter(defined);
const lease = whole(1) as fc.Arbitrary<never>;
const epoch = whole(1) as fc.Arbitrary<never>;
const uid = whole(1, 2_147_483_647) as fc.Arbitrary<never>;
const attempt = whole(0, 999_999) as fc.Arbitrary<never>;
const term: fc.Arbitrary<Term> = fc.record({
  ttlMs: whole(LIMITS.ttlMsMin, LIMITS.ttlMsMax),
  issued: fc.record({ wallMs: whole(), monotonicMs: whole(), bootId: text(LIMITS.bootIdBytesMax) }),
});
const place = fc.record({ path: text(LIMITS.pathBytesMax), storage: text(LIMITS.storageNameBytesMax) });
const mount = fc.record({
  path: text(LIMITS.pathBytesMax),
  source: text(LIMITS.pathBytesMax),
  type: text(LIMITS.mountWordBytesMax),
  fsid: text(LIMITS.mountWordBytesMax),
});
const list = <Value>(one: fc.Arbitrary<Value>) => fc.array(one, { maxLength: 6 });
const nonces = list(fc.record({ node, nonce: hex(LIMITS.nonceBytes) }));

const fields: { [Kind in EventKind]: fc.Arbitrary<Omit<Extract<LeaseEvent, { kind: Kind }>, 'kind'>> } = {
  allocate: fc.record({
    lease,
    uid,
    job,
    attempt,
    schedulerStartS: fc.option(whole()),
    submitter: fc.record({ uid: whole(1, 0xffff_ffff), gid: whole(1, 0xffff_ffff) }),
    nodes: list(node),
    roots: list(place),
    workspace: fc.option(place),
    term,
    epoch,
  }),
  renew: fc.record({ lease, term, epoch }),
  bind: fc.record({
    lease,
    node,
    binding: fc.record({ workerKey: hex(LIMITS.workerKeyBytes), bootId: text(LIMITS.bootIdBytesMax) }),
  }),
  join: fc.record({ lease, node }),
  mounts: fc.record({ lease, node, mounts: list(mount) }),
  drain: fc.record({ lease, nonces }),
  ask: fc.record({ lease, nonces }),
  certify: fc.record({ lease, node, digest: hex(LIMITS.digestBytes), certificate: text(1000) }),
  normalise: fc.record({ lease }),
  normalised: fc.record({ lease, path: text(LIMITS.pathBytesMax), walked: whole(), changed: whole() }),
  free: fc.record({ lease, wallMs: whole() }),
  quarantine: fc.record({
    lease,
    quarantine: fc.record({
      code: fc.constantFrom(...QUARANTINE_CODES),
      text: text(LIMITS.reasonCharsMax),
      node: fc.option(node),
      wallMs: whole(),
    }),
  }),
  reclaim: fc.record({
    lease,
    node,
    reclaim: fc.record({
      by: text(LIMITS.operatorCharsMax),
      reason: text(LIMITS.reasonCharsMax),
      wallMs: whole(),
    }),
  }),
  forget: fc.record({ count: whole(1) }),
};

const event: fc.Arbitrary<LeaseEvent> = fc
  .constantFrom(...EVENT_KINDS)
  .chain((kind) => fields[kind].map((rest) => ({ ...rest, kind }) as LeaseEvent));

const refusesOnly = (act: () => unknown): unknown => {
  try {
    return act();
  } catch (error) {
    expect(error).toBeInstanceOf(XceError);
    if (error instanceof XceError) expect(['log-corrupt', 'log-version']).toContain(error.code);
    return undefined;
  }
};

const problemOf = (
  act: () => unknown,
): { code: string; message: string; at: string | undefined } | undefined => {
  try {
    act();
    return undefined;
  } catch (error) {
    if (!(error instanceof XceError)) throw error;
    return { code: error.code, message: error.message, at: error.facts.at };
  }
};

describe('the codec of events', () => {
  test('what is encoded is decoded as it was', () => {
    fc.assert(
      fc.property(event, (value) => {
        expect(decodeEvent(leaseMachine.encode(value))).toEqual(value);
      }),
      { seed: SEED, numRuns: 600 },
    );
  }, 30_000);

  test('bytes that decode are the only bytes of their event', () => {
    const mutation = fc.array(fc.tuple(fc.nat(), fc.integer({ min: 0, max: 255 })), {
      minLength: 1,
      maxLength: 3,
    });
    fc.assert(
      fc.property(event, mutation, (value, changes) => {
        const bytes = Buffer.from(encodeEvent(value));
        for (const [place, byte] of changes) bytes[place % bytes.length] = byte;
        const decoded = refusesOnly(() => decodeEvent(bytes));
        if (decoded !== undefined)
          expect(Buffer.from(encodeEvent(decoded as LeaseEvent)).equals(bytes)).toBe(true);
      }),
      { seed: SEED, numRuns: 1200 },
    );
  }, 30_000);

  test('what does not decode is refused by a replay in the same words, whatever the state', () => {
    const mutation = fc.array(fc.tuple(fc.nat(), fc.integer({ min: 0, max: 255 })), { maxLength: 2 });
    const statuses = fc.constantFrom<LeaseStatus>(...LEASE_STATUSES);
    const seen = { decoded: 0, applied: 0 };
    fc.assert(
      fc.property(event, mutation, statuses, fc.boolean(), (value, changes, status, isOurs) => {
        const scene = new Scene();
        const row = scene.allocate(request({ nodes: nodes('n1') }));
        row.statusIndex = LEASE_STATUSES.indexOf(status);
        // Half of the events are about the lease that is there, and its node.
        const about = 'node' in value ? { lease: row.number, node: 'n1' } : { lease: row.number };
        const bytes = Buffer.from(encodeEvent(isOurs ? ({ ...value, ...about } as LeaseEvent) : value));
        for (const [place, byte] of changes) bytes[place % bytes.length] = byte;
        const wrong = problemOf(() => decodeEvent(bytes));
        const found = problemOf(() => leaseMachine.replay(scene.state, bytes));
        if (wrong !== undefined) expect(found).toEqual(wrong);
        else {
          seen.decoded += 1;
          if (found === undefined) seen.applied += 1;
          else expect(found.message).toContain('does not add up');
        }
      }),
      { seed: SEED, numRuns: 1500 },
    );
    expect(seen.decoded).toBeGreaterThan(100);
    expect(seen.applied).toBeGreaterThan(20);
  }, 60_000);

  test('any bytes decode or are refused, as an event and as a snapshot record', () => {
    const bytes = fc.oneof(
      fc.uint8Array({ maxLength: 300 }),
      fc
        .tuple(fc.integer({ min: 1, max: 14 }), fc.uint8Array({ maxLength: 200 }))
        .map(([kind, rest]) => Buffer.concat([Buffer.of(1, kind), rest])),
    );
    fc.assert(
      fc.property(bytes, (value) => {
        refusesOnly(() => decodeEvent(value));
        refusesOnly(() => leaseMachine.restore(leaseMachine.empty(), value));
      }),
      { seed: SEED, numRuns: 1200 },
    );
  }, 30_000);
});
