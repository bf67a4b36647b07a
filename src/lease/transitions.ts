/**
 * What each event does to the lease that it is about. Events are bytes, and are read as such in the order in which they
 * stand there: a replay goes through a million of them, and making an object of each first would take it twice as long.
 * What does not decode is found before what the lease does not allow, as if all of it were decoded first.
 */
import { assert, XceError } from '../base/errors.ts';
import type { NodeName } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import type { ByteReader } from './codec.ts';
import {
  decodeEvent,
  type EventKind,
  type LeaseEvent,
  readBinding,
  readBootId,
  readClockMs,
  readEpoch,
  readNode,
  readTtlMs,
} from './event.ts';
import {
  isFinished,
  LEASE_STATUSES,
  type LeaseStatus,
  NONE_FINISHED,
  scopesOf,
  unfinishedScopes,
} from './lease.ts';
import type { LeaseRow } from './lease-table.ts';
import { UNTOUCHED_NODE } from './nodes.ts';

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

export const impossible = (event: LeaseEvent, problem: string): XceError =>
  new XceError('log-corrupt', `the lease log does not add up: ${event.kind}: ${problem}`, {
    ...('lease' in event ? { at: `lease ${event.lease}` } : {}),
  });

/** The whole event that is being read. What does not decode at all throws as that, wherever reading has come to. */
export const eventIn = ({ bytes, start, end }: ByteReader): LeaseEvent => decodeEvent(bytes, start, end);

/** The row of a node of the lease. */
const nodeAt = (lease: LeaseRow, from: ByteReader, name: NodeName): number => {
  const node = lease.nodes.rowOf(name);
  if (node === undefined) throw impossible(eventIn(from), `${name} is not a node of the lease`);
  return node;
};

const uncertifiedAt = (lease: LeaseRow, from: ByteReader, name: NodeName): number => {
  const node = nodeAt(lease, from, name);
  if (lease.nodes.isCertifiedAt(node)) throw impossible(eventIn(from), `${name} has certified already`);
  return node;
};

const renew = (lease: LeaseRow, from: ByteReader): void => {
  const ttlMs = readTtlMs(from);
  const wallMs = readClockMs(from);
  const monotonicMs = readClockMs(from);
  const bootId = readBootId(from);
  const epoch = readEpoch(from);
  if (epoch < lease.epoch) throw impossible(eventIn(from), `epoch ${epoch} is over`);
  lease.setTerm(ttlMs, wallMs, monotonicMs, bootId);
  lease.epoch = epoch;
};

const bind = (lease: LeaseRow, from: ByteReader): void => {
  const name = readNode(from);
  const binding = readBinding(from);
  const node = uncertifiedAt(lease, from, name);
  const known = lease.nodes.bindingAt(node);
  if (known !== null && known.workerKey !== binding.workerKey)
    throw impossible(eventIn(from), `${name} is bound to another worker key`);
  lease.nodes.bindAt(node, binding);
};

const setNonces = (lease: LeaseRow, from: ByteReader): void => {
  for (let left = from.whole(LIMITS.leaseNodesMax); left > 0; left -= 1) {
    const name = readNode(from);
    const nonce = from.pass(LIMITS.nonceBytes);
    lease.nodes.askAt(uncertifiedAt(lease, from, name), from.bytes, nonce);
  }
};

const certify = (lease: LeaseRow, from: ByteReader): void => {
  const name = readNode(from);
  const digest = from.pass(LIMITS.digestBytes);
  from.passChecked(LIMITS.certificateCharsMax);
  const { nodes } = lease;
  const node = nodeAt(lease, from, name);
  if (nodes.bindingAt(node) === null || !nodes.hasNonceAt(node) || nodes.isCertifiedAt(node))
    throw impossible(eventIn(from), `${name} was not asked`);
  nodes.certifyAt(node, from.bytes, digest);
  // Until now the node may have written.
  if (!nodes.isReclaimedAt(node)) return;
  lease.finished = NONE_FINISHED;
  nodes.reclaimAt(node, null);
};

/** Events of which a log holds few: an object for each costs nothing. */
const applyRare = (lease: LeaseRow, event: LeaseEvent): void => {
  switch (event.kind) {
    case 'join': {
      const node = lease.nodes.get(event.node);
      if (node !== undefined && node.certificate === null)
        throw impossible(event, `${event.node} is a node of the lease already`);
      // What it certified no longer holds: something of the lease runs there again.
      lease.nodes.set(
        event.node,
        node === undefined ? UNTOUCHED_NODE.helper : { ...node, nonce: null, certificate: null },
      );
      return;
    }
    case 'mounts':
      if (!lease.nodes.has(event.node)) throw impossible(event, `${event.node} is not a node of the lease`);
      for (const mount of event.mounts) {
        if (!scopesOf(lease).includes(mount.path))
          throw impossible(event, `${mount.path} is not of the lease`);
        if (lease.mounts.some((one) => one.mount.path === mount.path))
          throw impossible(event, `${mount.path} is recorded already`);
        lease.mounts = [...lease.mounts, { node: event.node, mount }];
      }
      return;
    case 'normalised':
      if (!scopesOf(lease).includes(event.path)) throw impossible(event, `${event.path} is not of the lease`);
      if (isFinished(lease, event.path)) throw impossible(event, `${event.path} is finished already`);
      lease.finished = [
        ...lease.finished,
        { path: event.path, walked: event.walked, changed: event.changed },
      ];
      return;
    case 'quarantine':
      lease.quarantine = event.quarantine;
      return;
    case 'reclaim': {
      const { node: name, reclaim } = event;
      const node = lease.nodes.get(name);
      if (node === undefined) throw impossible(event, `${name} is not a node of the lease`);
      if (node.certificate !== null) throw impossible(event, `${name} has certified already`);
      // It may come back with another worker key; that is what the operator answers for.
      lease.nodes.set(name, { ...UNTOUCHED_NODE[node.role], reclaim });
      lease.quarantine = { code: 'reclaimed', text: reclaim.reason, node: name, wallMs: reclaim.wallMs };
      return;
    }
    default:
      assert(false, `${event.kind} is not rare`);
  }
};

const places: readonly string[] = LEASE_STATUSES;
/** As TRANSITIONS, but by places in LEASE_STATUSES. */
const NEXT: readonly ReadonlyMap<string, number>[] = LEASE_STATUSES.map(
  (status) =>
    new Map(Object.entries(TRANSITIONS[status]).map(([kind, next]) => [kind, places.indexOf(next)])),
);

/**
 * Changes the lease alone by the event that is being read; `from` stands behind its number. After 'free' the lease is no
 * more. Throws XceError 'log-corrupt' for an event that the lease does not allow; it is of no use then.
 */
export const applyToLease = (lease: LeaseRow, kind: LeaseEventKind, from: ByteReader): void => {
  const next = NEXT[lease.statusIndex]?.get(kind);
  if (next === undefined) throw impossible(eventIn(from), `the lease is ${lease.status}`);
  switch (kind) {
    case 'renew':
      renew(lease, from);
      break;
    case 'bind':
      bind(lease, from);
      break;
    case 'drain':
      setNonces(lease, from);
      lease.finished = NONE_FINISHED;
      break;
    case 'ask':
      setNonces(lease, from);
      break;
    case 'certify':
      certify(lease, from);
      break;
    case 'normalise': {
      const missing = lease.nodes.firstUnaccounted;
      if (missing !== undefined) throw impossible(eventIn(from), `${missing} has not certified`);
      break;
    }
    case 'free': {
      readClockMs(from);
      const missing = lease.nodes.firstUncertified ?? unfinishedScopes(lease)[0];
      if (missing !== undefined) throw impossible(eventIn(from), `the proof of ${missing} is missing`);
      break;
    }
    default:
      applyRare(lease, eventIn(from));
      lease.statusIndex = next;
      return;
  }
  from.finish();
  if (kind !== 'free') lease.statusIndex = next;
};
