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
import { createHash } from 'node:crypto';
import { assert, XceError } from '../base/errors.ts';
import type { Attempt, Epoch, JobId, LeaseNumber, NodeName, Uid } from '../base/ids.ts';
import { EndedAttempts } from './ended.ts';
import type {
  DrainNonce,
  EventKind,
  EventOf,
  LeaseEvent,
  LeaseRoot,
  LeaseWorkspace,
  MountFacts,
  Quarantine,
  Submitter,
} from './event.ts';
import { type LeaseNode, LeaseNodes, UNTOUCHED_NODE } from './nodes.ts';
import type { Term } from './term.ts';
import { IdQueue, IdRanges } from './uids.ts';
import { WithheldNodes } from './withheld.ts';

export const LEASE_STATUSES = ['active', 'draining', 'normalising', 'quarantined'] as const;
export type LeaseStatus = (typeof LEASE_STATUSES)[number];

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

/** A mount, with the first node that reported it. */
export type RecordedMount = { readonly node: NodeName; readonly mount: MountFacts };
export type FinishedScope = { readonly path: string; readonly walked: number; readonly changed: number };

/** There may be 100,000 of these at once, so a new one holds no collection that is empty. */
export type Lease = {
  readonly number: LeaseNumber;
  readonly uid: Uid;
  readonly job: JobId;
  readonly attempt: Attempt;
  readonly schedulerStartS: number | null;
  readonly submitter: Submitter;
  readonly roots: readonly LeaseRoot[];
  readonly workspace: LeaseWorkspace | null;
  status: LeaseStatus;
  epoch: Epoch;
  term: Term;
  readonly nodes: LeaseNodes;
  /** At most one for each scope. */
  mounts: readonly RecordedMount[];
  /** Scopes whose verify pass found nothing. */
  finished: readonly FinishedScope[];
  /** The last reason for quarantine; kept through a retry, replaced by the next. */
  quarantine: Quarantine | null;
};

export type LeaseState = {
  /** Highest epoch of any event. */
  epoch: number;
  nextLease: number;
  /** Ascending by number. */
  readonly leases: Map<LeaseNumber, Lease>;
  readonly byUid: Map<Uid, Lease>;
  readonly byJob: Map<JobId, Lease[]>;
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
  readonly leases: Pick<ReadonlyMap<LeaseNumber, Lease>, 'get'>;
  readonly byJob: Pick<ReadonlyMap<JobId, readonly Lease[]>, 'get'>;
  readonly ended: Pick<EndedAttempts, 'ofJob'>;
};

export const emptyState = (): LeaseState => ({
  epoch: 0,
  nextLease: 1,
  leases: new Map(),
  byUid: new Map(),
  byJob: new Map(),
  used: new IdRanges(),
  freed: new IdQueue(),
  ended: new EndedAttempts(),
  withheld: new WithheldNodes(),
});

/** Paths that a verify pass must cover before the uid may be free. */
export const scopesOf = ({ roots, workspace }: Pick<Lease, 'roots' | 'workspace'>): readonly string[] => {
  const paths = roots.map((root) => root.path);
  return workspace === null ? paths : [workspace.path, ...paths];
};

const isUncertified = (node: LeaseNode): boolean => node.certificate === null;
const isUnaccounted = (node: LeaseNode): boolean => node.certificate === null && node.reclaim === null;

/** Nodes without a certificate, in the order of the lease. */
export const uncertifiedNodes = (lease: Lease): readonly NodeName[] =>
  [...lease.nodes].filter(([, node]) => isUncertified(node)).map(([name]) => name);

/** Nodes that have neither certified nor been reclaimed: with one of them no file changes its owner. */
export const unaccountedNodes = (lease: Lease): readonly NodeName[] =>
  [...lease.nodes].filter(([, node]) => isUnaccounted(node)).map(([name]) => name);

/**
 * Names the certificates that a lease has at one moment. It changes whenever a node certifies, or joins and has to
 * certify again; equal texts mean that nothing of the lease can have run in between.
 */
export const proofOf = ({ nodes }: Lease): string => {
  const proof = createHash('sha256');
  for (const [name, { certificate }] of nodes) proof.update(`${name} ${certificate ?? '-'}\n`);
  return proof.digest('hex');
};

export const isFinished = (lease: Lease, path: string): boolean =>
  lease.finished.some((scope) => scope.path === path);

/** Scopes without a finished verify pass. */
export const unfinishedScopes = (lease: Lease): readonly string[] =>
  scopesOf(lease).filter((path) => !isFinished(lease, path));

const impossible = (event: LeaseEvent, problem: string): XceError =>
  new XceError('log-corrupt', `the lease log does not add up: ${event.kind}: ${problem}`, {
    ...('lease' in event ? { at: `lease ${event.lease}` } : {}),
  });

export const NO_MOUNTS: readonly RecordedMount[] = [];
export const NONE_FINISHED: readonly FinishedScope[] = [];

/** The lease as it is right after it was granted. */
export const newLease = (event: EventOf<'allocate'>): Lease => ({
  number: event.lease,
  uid: event.uid,
  job: event.job,
  attempt: event.attempt,
  schedulerStartS: event.schedulerStartS,
  submitter: event.submitter,
  roots: event.roots,
  workspace: event.workspace,
  status: 'active',
  epoch: event.epoch,
  term: event.term,
  nodes: LeaseNodes.untouched(event.nodes),
  mounts: NO_MOUNTS,
  finished: NONE_FINISHED,
  quarantine: null,
});

/** A copy that can be changed without the original. */
const cloneLease = (lease: Lease): Lease => ({
  ...lease,
  nodes: lease.nodes.clone(),
});

const nodeOf = (lease: Lease, event: LeaseEvent, name: NodeName): LeaseNode => {
  const node = lease.nodes.get(name);
  if (node === undefined) throw impossible(event, `${name} is not a node of the lease`);
  return node;
};

const setNonces = (lease: Lease, event: EventOf<'drain' | 'ask'>, nonces: readonly DrainNonce[]): void => {
  for (const { node: name, nonce } of nonces) {
    const node = nodeOf(lease, event, name);
    if (node.certificate !== null) throw impossible(event, `${name} has certified already`);
    lease.nodes.set(name, { ...node, nonce });
  }
};

/** An event of a lease that exists. */
export type ExistingEvent = Exclude<LeaseEvent, { kind: 'allocate' | 'forget' }>;

/** Changes the lease alone; returns false when it is no more. */
const applyToLease = (lease: Lease, event: ExistingEvent): boolean => {
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
  const lease = cloneLease(before);
  return events.every((event) => applyToLease(lease, event)) ? lease : undefined;
};

const addLease = (state: LeaseState, lease: Lease): void => {
  state.leases.set(lease.number, lease);
  state.byUid.set(lease.uid, lease);
  const ofJob = state.byJob.get(lease.job);
  if (ofJob === undefined) state.byJob.set(lease.job, [lease]);
  else ofJob.push(lease);
};

const removeLease = (state: LeaseState, lease: Lease): void => {
  state.leases.delete(lease.number);
  state.byUid.delete(lease.uid);
  const ofJob = state.byJob.get(lease.job);
  assert(ofJob?.includes(lease) === true, 'a lease is one of its job');
  if (ofJob.length === 1) state.byJob.delete(lease.job);
  else ofJob.splice(ofJob.indexOf(lease), 1);
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
  const holder = state.byUid.get(event.uid);
  if (holder !== undefined) throw impossible(event, `uid ${event.uid} is held by lease ${holder.number}`);
  const living = state.byJob.get(event.job)?.find((other) => other.attempt === event.attempt);
  if (living !== undefined) throw impossible(event, `lease ${living.number} is of the same attempt`);
  if (event.nodes.length === 0 || !isSet(event.nodes)) throw impossible(event, 'its nodes are not a set');
  if (!isSet(scopesOf(event))) throw impossible(event, 'its paths are not a set');
  addLease(state, newLease(event));
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
  const lease = state.leases.get(event.lease);
  if (lease === undefined) throw impossible(event, 'there is no such lease');
  const lives = applyToLease(lease, event);
  if (event.kind === 'renew') countRenewed(state, event);
  if (event.kind === 'reclaim') state.withheld.withhold(event.node, event.lease);
  if (event.kind === 'certify') state.withheld.giveBack(event.node, event.lease);
  if (lives) return;
  assert(event.kind === 'free', 'only free ends a lease');
  removeLease(state, lease);
  state.freed.push(lease.uid);
  state.ended.add({
    job: lease.job,
    attempt: lease.attempt,
    schedulerStartS: lease.schedulerStartS,
    lease: lease.number,
    uid: lease.uid,
    endedWallMs: event.wallMs,
  });
};

/** Adds a lease of a snapshot. Returns false when its number, uid or attempt is held by another. */
export const restoreLease = (state: LeaseState, lease: Lease): boolean => {
  const clash =
    lease.number >= state.nextLease ||
    state.leases.has(lease.number) ||
    state.byUid.has(lease.uid) ||
    state.freed.has(lease.uid) ||
    !state.used.has(lease.uid) ||
    state.byJob.get(lease.job)?.some((other) => other.attempt === lease.attempt) === true;
  if (!clash) addLease(state, lease);
  return !clash;
};
