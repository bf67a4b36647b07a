/**
 * What all events together say: the leases that hold a uid, the uids that were ever used, the order in which
 * they came back, and the attempts that have ended. `applyEvent` is the only thing that changes it.
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
import { assert, XceError } from '../base/errors.ts';
import type { NodeName } from '../base/ids.ts';
import { EndedAttempts } from './ended.ts';
import type { DrainNonce, EventKind, EventOf, LeaseEvent } from './event.ts';
import {
  isFinished,
  isUnaccounted,
  isUncertified,
  type Lease,
  type LeaseStatus,
  NONE_FINISHED,
  newLease,
  scopesOf,
  unfinishedScopes,
} from './lease.ts';
import { LeaseRow, LeaseTable } from './lease-table.ts';
import { type LeaseNode, UNTOUCHED_NODE } from './nodes.ts';
import { IdQueue, IdRanges } from './uids.ts';
import { WithheldNodes } from './withheld.ts';

/** Events that happen to a lease that exists. */
export type LeaseEventKind = Exclude<EventKind, 'allocate' | 'forget'>;

/** Status x event -> status after it; 'free' means that the lease is no more. What is absent is refused. */
export const TRANSITIONS: Readonly<
  Record<LeaseStatus, Readonly<Partial<Record<LeaseEventKind, LeaseStatus | 'free'>>>>
> = {
  active: {
    renew: 'active',
    bind: 'active',
    join: 'active',
    mounts: 'active',
    drain: 'draining',
    quarantine: 'quarantined',
    reclaim: 'quarantined',
  },
  draining: {
    bind: 'draining',
    join: 'draining',
    ask: 'draining',
    certify: 'draining',
    normalise: 'normalising',
    quarantine: 'quarantined',
    reclaim: 'quarantined',
  },
  normalising: {
    bind: 'normalising',
    join: 'normalising',
    ask: 'normalising',
    certify: 'normalising',
    normalised: 'normalising',
    free: 'free',
    quarantine: 'quarantined',
    reclaim: 'quarantined',
  },
  quarantined: {
    drain: 'draining',
    quarantine: 'quarantined',
    reclaim: 'quarantined',
  },
};

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

const impossible = (event: LeaseEvent, problem: string): XceError =>
  new XceError('log-corrupt', `the lease log does not add up: ${event.kind}: ${problem}`, {
    ...('lease' in event ? { at: `lease ${event.lease}` } : {}),
  });

const nodeOf = (lease: LeaseRow, event: LeaseEvent, name: NodeName): LeaseNode => {
  const node = lease.nodes.get(name);
  if (node === undefined) throw impossible(event, `${name} is not a node of the lease`);
  return node;
};

const setNonces = (lease: LeaseRow, event: EventOf<'drain' | 'ask'>, nonces: readonly DrainNonce[]): void => {
  for (const { node: name, nonce } of nonces) {
    const node = nodeOf(lease, event, name);
    if (node.certificate !== null) throw impossible(event, `${name} has certified already`);
    lease.nodes.set(name, { ...node, nonce });
  }
};

/** An event of a lease that exists. */
export type ExistingEvent = Exclude<LeaseEvent, { kind: 'allocate' | 'forget' }>;

/** Changes the lease alone; returns false when it is no more. */
const applyToLease = (lease: LeaseRow, event: ExistingEvent): boolean => {
  const next = TRANSITIONS[lease.status][event.kind];
  if (next === undefined) throw impossible(event, `the lease is ${lease.status}`);
  switch (event.kind) {
    case 'renew':
      if (event.epoch < lease.epoch) throw impossible(event, `epoch ${event.epoch} is over`);
      lease.term = event.term;
      lease.epoch = event.epoch;
      break;
    case 'bind': {
      const node = nodeOf(lease, event, event.node);
      if (node.certificate !== null) throw impossible(event, `${event.node} has certified already`);
      if (node.binding !== null && node.binding.workerKey !== event.binding.workerKey)
        throw impossible(event, `${event.node} is bound to another worker key`);
      lease.nodes.set(event.node, { ...node, binding: event.binding });
      break;
    }
    case 'join': {
      const node = lease.nodes.get(event.node);
      if (node !== undefined && node.certificate === null)
        throw impossible(event, `${event.node} is a node of the lease already`);
      // What it certified no longer holds: something of the lease runs there again.
      lease.nodes.set(
        event.node,
        node === undefined ? UNTOUCHED_NODE.helper : { ...node, nonce: null, certificate: null },
      );
      break;
    }
    case 'mounts':
      nodeOf(lease, event, event.node);
      for (const mount of event.mounts) {
        if (!scopesOf(lease).includes(mount.path))
          throw impossible(event, `${mount.path} is not of the lease`);
        if (lease.mounts.some((one) => one.mount.path === mount.path))
          throw impossible(event, `${mount.path} is recorded already`);
        lease.mounts = [...lease.mounts, { node: event.node, mount }];
      }
      break;
    case 'drain':
      setNonces(lease, event, event.nonces);
      lease.finished = NONE_FINISHED;
      break;
    case 'ask':
      setNonces(lease, event, event.nonces);
      break;
    case 'certify': {
      const node = nodeOf(lease, event, event.node);
      if (node.binding === null || node.nonce === null || node.certificate !== null)
        throw impossible(event, `${event.node} was not asked`);
      lease.nodes.set(event.node, { ...node, certificate: event.digest, reclaim: null });
      // Until now the node may have written.
      if (node.reclaim !== null) lease.finished = NONE_FINISHED;
      break;
    }
    case 'normalise': {
      const missing = lease.nodes.find(isUnaccounted);
      if (missing !== undefined) throw impossible(event, `${missing} has not certified`);
      break;
    }
    case 'normalised':
      if (!scopesOf(lease).includes(event.path)) throw impossible(event, `${event.path} is not of the lease`);
      if (isFinished(lease, event.path)) throw impossible(event, `${event.path} is finished already`);
      lease.finished = [
        ...lease.finished,
        { path: event.path, walked: event.walked, changed: event.changed },
      ];
      break;
    case 'free': {
      const missing = lease.nodes.find(isUncertified) ?? unfinishedScopes(lease)[0];
      if (missing !== undefined) throw impossible(event, `the proof of ${missing} is missing`);
      break;
    }
    case 'quarantine':
      lease.quarantine = event.quarantine;
      break;
    case 'reclaim': {
      const { node: name, reclaim } = event;
      const node = nodeOf(lease, event, name);
      if (node.certificate !== null) throw impossible(event, `${name} has certified already`);
      // It may come back with another worker key; that is what the operator answers for.
      lease.nodes.set(name, { ...UNTOUCHED_NODE[node.role], reclaim });
      lease.quarantine = { code: 'reclaimed', text: reclaim.reason, node: name, wallMs: reclaim.wallMs };
      break;
    }
    default:
      event satisfies never;
  }
  if (next === 'free') return false;
  lease.status = next;
  return true;
};

/**
 * The lease as it will be after events of its own, without touching the state; undefined when they free it. An
 * event that does not apply is a bug of the rule that made it, and throws.
 */
export const previewLease = (before: Lease, events: readonly ExistingEvent[]): Lease | undefined => {
  const lease = LeaseRow.alone(before);
  return events.every((event) => applyToLease(lease, event)) ? lease.read() : undefined;
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

const countRenewed = (state: LeaseState, event: EventOf<'renew'>): void => {
  if (event.epoch < state.epoch) throw impossible(event, `epoch ${event.epoch} is over`);
  state.epoch = event.epoch;
};

const isSet = (texts: readonly string[]): boolean => texts.length < 2 || new Set(texts).size === texts.length;

const applyAllocate = (state: LeaseState, event: EventOf<'allocate'>): void => {
  checkNext(state, event);
  const holder = state.leases.rowOfUid(event.uid);
  if (holder !== undefined) throw impossible(event, `uid ${event.uid} is held by lease ${holder.number}`);
  const living = state.leases.rowsOfJob(event.job).find((other) => other.attempt === event.attempt);
  if (living !== undefined) throw impossible(event, `lease ${living.number} is of the same attempt`);
  if (event.nodes.length === 0 || !isSet(event.nodes)) throw impossible(event, 'its nodes are not a set');
  if (!isSet(scopesOf(event))) throw impossible(event, 'its paths are not a set');
  state.leases.add(newLease(event));
  countGranted(state, event);
};

/** Applies an event of a lease that the state leaves out: only the next number, the uid that is used, the epoch. */
export const applyForeign = (state: LeaseState, event: EventOf<'allocate' | 'renew'>): void => {
  if (event.kind === 'renew') {
    countRenewed(state, event);
    return;
  }
  checkNext(state, event);
  countGranted(state, event);
};

/**
 * Applies one event in place. Deterministic: the same events give the same state on every host and in every
 * version. Throws XceError 'log-corrupt' for an event that the state does not allow; the state is of no use then.
 */
export const applyEvent = (state: LeaseState, event: LeaseEvent): void => {
  if (event.kind === 'allocate') {
    applyAllocate(state, event);
    return;
  }
  if (event.kind === 'forget') {
    if (!state.ended.forget(event.count)) throw impossible(event, 'there are not so many');
    return;
  }
  const lease = state.leases.row(event.lease);
  if (lease === undefined) throw impossible(event, 'there is no such lease');
  const lives = applyToLease(lease, event);
  if (event.kind === 'renew') countRenewed(state, event);
  if (event.kind === 'reclaim') state.withheld.withhold(event.node, event.lease);
  if (event.kind === 'certify') state.withheld.giveBack(event.node, event.lease);
  if (lives) return;
  assert(event.kind === 'free', 'only free ends a lease');
  state.freed.push(lease.uid);
  state.ended.add({
    job: lease.job,
    attempt: lease.attempt,
    schedulerStartS: lease.schedulerStartS,
    lease: lease.number,
    uid: lease.uid,
    endedWallMs: event.wallMs,
  });
  state.leases.remove(lease);
};

/** Adds a lease of a snapshot. Returns false when its number, uid or attempt is held by another. */
export const restoreLease = (state: LeaseState, lease: Lease): boolean => {
  const clash =
    lease.number >= state.nextLease ||
    state.leases.has(lease.number) ||
    state.leases.isHeld(lease.uid) ||
    state.freed.has(lease.uid) ||
    !state.used.has(lease.uid) ||
    state.leases.rowsOfJob(lease.job).some((other) => other.attempt === lease.attempt);
  if (!clash) state.leases.add(lease);
  return !clash;
};
