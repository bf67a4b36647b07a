/**
 * What all events together say: the leases that hold a uid, the uids that were ever used, the order in which
 * they came back, and the attempts that have ended. `replayEvent` is the only thing that changes it.
 *
 *     (none) --allocate--> active --drain--> draining --normalise--> normalising --free--> (none)
 *                             \                 |  ^                     /
 *                              \--quarantine--> | drain <-- quarantine--/
 *                                               v  |
 *                                             quarantined
 *
 * `reclaim` leads from every state to quarantined.
 *
 * A lease in any state holds its uid. Only `free` gives it back, and `free` needs a certificate of every node and
 * a finished verify pass of every scope (root or workspace). `normalise` needs the same certificates but for nodes
 * that an operator has reclaimed; what was verified before such a node certified counts no more.
 */
import { ByteReader } from './codec.ts';
import { EndedAttempts } from './ended.ts';
import {
  type EventOf,
  encodeEvent,
  type LeaseEvent,
  readClockMs,
  readKind,
  readLeaseNumber,
  readNode,
} from './event.ts';
import { grantedFacts, type Lease, type LeaseFacts, scopesOf } from './lease.ts';
import { LeaseRow, LeaseTable } from './lease-table.ts';
import { applyToLease, eventIn, impossible, type LeaseEventKind } from './transitions.ts';
import { IdQueue, IdRanges } from './uids.ts';
import { WithheldNodes } from './withheld.ts';

export type LeaseState = {
  /** Highest epoch of any event. */
  epoch: number;
  nextLease: number;
  readonly leases: LeaseTable;
  /** Every uid that a lease ever held. */
  readonly used: IdRanges;
  /** Uids that were given back, oldest first. */
  readonly freed: IdQueue;
  readonly ended: EndedAttempts;
  readonly withheld: WithheldNodes;
};

/**
 * What rules about one job ask of the state. Every LeaseState is one; job-view.ts has one that leaves out other jobs'
 * leases.
 */
export type JobState = {
  readonly epoch: number;
  readonly nextLease: number;
  readonly leases: Pick<LeaseTable, 'get' | 'ofJob'>;
  readonly ended: Pick<EndedAttempts, 'ofJob'>;
};

export const emptyState = (): LeaseState => ({
  epoch: 0,
  nextLease: 1,
  leases: new LeaseTable(),
  used: new IdRanges(),
  freed: new IdQueue(),
  ended: new EndedAttempts(),
  withheld: new WithheldNodes(),
});

/** An event of a lease that exists. */
export type ExistingEvent = Extract<LeaseEvent, { kind: LeaseEventKind }>;

/**
 * The lease as it will be after events of its own, without touching the state; undefined when they free it. An
 * event that does not apply is a bug of the rule that made it, and throws.
 */
export const previewLease = (before: Lease, events: readonly ExistingEvent[]): Lease | undefined => {
  const lease = LeaseRow.alone(before);
  for (const event of events) {
    const bytes = encodeEvent(event);
    const from = new ByteReader(bytes, 0, bytes.length);
    readKind(from);
    readLeaseNumber(from);
    applyToLease(lease, event.kind, from);
    if (event.kind === 'free') return undefined;
  }
  return lease.read();
};

const checkNext = (state: LeaseState, event: EventOf<'allocate'>): void => {
  if (event.lease !== state.nextLease) throw impossible(event, `lease ${state.nextLease} is next`);
  if (event.epoch < state.epoch) throw impossible(event, `epoch ${event.epoch} is over`);
};

/** What a grant says beside the lease itself. */
const countGranted = (state: LeaseState, event: EventOf<'allocate'>): void => {
  state.freed.remove(event.uid);
  state.used.add(event.uid);
  state.nextLease += 1;
  state.epoch = event.epoch;
};

const isSet = (texts: readonly string[]): boolean => texts.length < 2 || new Set(texts).size === texts.length;

const applyAllocate = (state: LeaseState, event: EventOf<'allocate'>): void => {
  checkNext(state, event);
  const holder = state.leases.rowOfUid(event.uid);
  if (holder !== undefined) throw impossible(event, `uid ${event.uid} is held by lease ${holder.number}`);
  const living = state.leases.rowOfAttempt(event.job, event.attempt);
  if (living !== undefined) throw impossible(event, `lease ${living.number} is of the same attempt`);
  if (event.nodes.length === 0 || !isSet(event.nodes)) throw impossible(event, 'its nodes are not a set');
  if (!isSet(scopesOf(event))) throw impossible(event, 'its paths are not a set');
  const { nodes } = state.leases.add(grantedFacts(event));
  for (const name of event.nodes) nodes.add(name, 'job');
  countGranted(state, event);
};

/** Applies an event of a lease that the state leaves out: only the next number, the uid that is used, the epoch. */
export const applyForeign = (state: LeaseState, event: EventOf<'allocate' | 'renew'>): void => {
  if (event.kind === 'allocate') {
    checkNext(state, event);
    countGranted(state, event);
    return;
  }
  if (event.epoch < state.epoch) throw impossible(event, `epoch ${event.epoch} is over`);
  state.epoch = event.epoch;
};

/** One for all events that are replayed: nothing that is called here may replay another one. */
const reader = new ByteReader(new Uint8Array(0), 0, 0);

const applyExisting = (state: LeaseState, kind: LeaseEventKind, from: ByteReader): void => {
  const lease = state.leases.row(readLeaseNumber(from));
  if (lease === undefined) throw impossible(eventIn(from), 'there is no such lease');
  const behindNumber = from.offset;
  applyToLease(lease, kind, from);
  from.backTo(behindNumber);
  switch (kind) {
    case 'renew':
      if (lease.epoch < state.epoch) throw impossible(eventIn(from), `epoch ${lease.epoch} is over`);
      state.epoch = lease.epoch;
      return;
    case 'reclaim':
      state.withheld.withhold(readNode(from), lease.number);
      return;
    case 'certify':
      state.withheld.giveBack(readNode(from), lease.number);
      return;
    case 'free':
      state.freed.push(lease.uid);
      state.ended.add({
        job: lease.job,
        attempt: lease.attempt,
        schedulerStartS: lease.schedulerStartS,
        lease: lease.number,
        uid: lease.uid,
        endedWallMs: readClockMs(from),
      });
      state.leases.remove(lease);
      return;
    default:
  }
};

/**
 * Applies the event in bytes[start, end) in place, and keeps nothing of them. Deterministic: the same events give the
 * same state on every host and in every version. Throws as decodeEvent does, and XceError 'log-corrupt' for an event
 * that the state does not allow; the state is of no use then.
 */
export const replayEvent = (state: LeaseState, bytes: Uint8Array, start = 0, end = bytes.length): void => {
  reader.open(bytes, start, end);
  const kind = readKind(reader);
  if (kind !== 'allocate' && kind !== 'forget') {
    applyExisting(state, kind, reader);
    return;
  }
  const event = eventIn(reader);
  if (event.kind === 'allocate') applyAllocate(state, event);
  else if (event.kind === 'forget' && !state.ended.forget(event.count))
    throw impossible(event, 'there are not so many');
};

/** Adds a lease of a snapshot. Returns false when its number, uid or attempt is held by another. */
export const restoreLease = (state: LeaseState, lease: LeaseFacts): boolean => {
  const clash =
    lease.number >= state.nextLease ||
    state.leases.has(lease.number) ||
    state.leases.isHeld(lease.uid) ||
    state.freed.has(lease.uid) ||
    !state.used.has(lease.uid) ||
    state.leases.rowOfAttempt(lease.job, lease.attempt) !== undefined;
  if (!clash) state.leases.add(lease);
  return !clash;
};
