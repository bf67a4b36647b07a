/**
 * A state as records of bytes, for the checkpoint of a new epoch. Each record is: format version (one byte, 1),
 * kind (one byte), then entries of that kind until its end. Order: head, used, freed, ended, leases, nodes,
 * reclaims.
 * Equal states give equal bytes.
 */
import type { JobId, LeaseNumber, NodeName, Uid } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import { ByteReader, ByteWriter, newerBytes } from './codec.ts';
import type { EndedAttempt } from './ended.ts';
import {
  type Reclaim,
  readAttempt,
  readBinding,
  readDigest,
  readEpoch,
  readJob,
  readLeaseNumber,
  readMount,
  readNode,
  readNonce,
  readQuarantine,
  readReclaim,
  readRoots,
  readSchedulerStart,
  readSubmitter,
  readTerm,
  readUid,
  readWorkspace,
  writeBinding,
  writeMount,
  writeQuarantine,
  writeReclaim,
  writeRoot,
  writeSubmitter,
  writeTerm,
} from './event.ts';
import {
  type FinishedScope,
  LEASE_STATUSES,
  type Lease,
  type LeaseFacts,
  type LeaseStatus,
  NO_MOUNTS,
  NONE_FINISHED,
  type RecordedMount,
} from './lease.ts';
import { type LeaseNode, UNTOUCHED_NODE } from './nodes.ts';
import { type LeaseState, restoreLease } from './state.ts';

const SNAPSHOT_VERSION = 1;
export const RECORD = { head: 1, used: 2, freed: 3, ended: 4, leases: 5, nodes: 6, reclaims: 7 } as const;
/** The order is the order of their bytes: append only. */
const NODE_ROLES = ['job', 'helper'] as const;
const SAFE = Number.MAX_SAFE_INTEGER;

/**
 * A record is closed once it is this long, so that who looks for one lease decodes few others. The longest single
 * entry is a lease with 65 long paths, about 1 MiB.
 */
const RECORD_BYTES = 4 << 10;
/** Nodes of one lease per entry. */
const NODES_PER_ENTRY = 512;

/** Packs entries into records of one kind. */
function* pack<Entry>(
  kind: number,
  entries: Iterable<Entry>,
  write: (to: ByteWriter, entry: Entry) => void,
): Generator<Uint8Array> {
  let to: ByteWriter | undefined;
  for (const entry of entries) {
    to ??= new ByteWriter().byte(SNAPSHOT_VERSION).byte(kind);
    write(to, entry);
    if (to.length < RECORD_BYTES) continue;
    yield to.finish();
    to = undefined;
  }
  if (to !== undefined) yield to.finish();
}

const writeEnded = (to: ByteWriter, ended: EndedAttempt): void => {
  to.text(ended.job)
    .whole(ended.attempt)
    .optional(ended.schedulerStartS, (start) => to.whole(start))
    .whole(ended.lease)
    .whole(ended.uid)
    .whole(ended.endedWallMs);
};

const readEnded = (from: ByteReader): EndedAttempt => ({
  job: readJob(from),
  attempt: readAttempt(from),
  schedulerStartS: readSchedulerStart(from),
  lease: readLeaseNumber(from),
  uid: readUid(from),
  endedWallMs: from.whole(SAFE),
});

const writeLease = (to: ByteWriter, lease: LeaseFacts): void => {
  to.whole(lease.number).whole(lease.uid).text(lease.job).whole(lease.attempt);
  to.optional(lease.schedulerStartS, (start) => to.whole(start));
  writeSubmitter(to, lease.submitter);
  to.list(lease.roots, (root) => writeRoot(to, root));
  to.optional(lease.workspace, (workspace) => writeRoot(to, workspace));
  to.byte(LEASE_STATUSES.indexOf(lease.status)).whole(lease.epoch);
  writeTerm(to, lease.term);
  to.list(lease.mounts, ({ node, mount }) => {
    to.text(node);
    writeMount(to, mount);
  });
  to.list(lease.finished, ({ path, walked, changed }) => to.text(path).whole(walked).whole(changed));
  to.optional(lease.quarantine, (quarantine) => writeQuarantine(to, quarantine));
};

const readRecordedMount = (from: ByteReader): RecordedMount => ({
  node: readNode(from),
  mount: readMount(from),
});

const readMounts = (from: ByteReader): readonly RecordedMount[] => {
  const mounts = from.list(LIMITS.leaseScopesMax, readRecordedMount);
  return mounts.length === 0 ? NO_MOUNTS : mounts;
};

const readFinishedScope = (from: ByteReader): FinishedScope => ({
  path: from.text(LIMITS.pathBytesMax),
  walked: from.whole(SAFE),
  changed: from.whole(SAFE),
});

const readFinished = (from: ByteReader): readonly FinishedScope[] => {
  const finished = from.list(LIMITS.leaseScopesMax, readFinishedScope);
  return finished.length === 0 ? NONE_FINISHED : finished;
};

const readStatus = (from: ByteReader): LeaseStatus => {
  const status = LEASE_STATUSES[from.byte()];
  if (status === undefined) throw from.corrupt('a lease has an unknown status');
  return status;
};

/** Its nodes come in records of their own. */
const readLease = (from: ByteReader): LeaseFacts => ({
  number: readLeaseNumber(from),
  uid: readUid(from),
  job: readJob(from),
  attempt: readAttempt(from),
  schedulerStartS: readSchedulerStart(from),
  submitter: readSubmitter(from),
  roots: readRoots(from),
  workspace: readWorkspace(from),
  status: readStatus(from),
  epoch: readEpoch(from),
  term: readTerm(from),
  mounts: readMounts(from),
  finished: readFinished(from),
  quarantine: from.optional(readQuarantine),
});

type NodesEntry = {
  readonly lease: Pick<Lease, 'number'>;
  readonly nodes: readonly (readonly [NodeName, LeaseNode])[];
};

function* nodesEntries(leases: Iterable<Pick<Lease, 'number' | 'nodes'>>): Generator<NodesEntry> {
  for (const lease of leases) {
    const nodes = [...lease.nodes];
    for (let start = 0; start < nodes.length; start += NODES_PER_ENTRY)
      yield { lease, nodes: nodes.slice(start, start + NODES_PER_ENTRY) };
  }
}

const writeNodes = (to: ByteWriter, entry: NodesEntry): void => {
  to.whole(entry.lease.number).list(entry.nodes, ([name, node]) => {
    to.text(name)
      .byte(NODE_ROLES.indexOf(node.role))
      .optional(node.binding, (binding) => writeBinding(to, binding))
      .optional(node.nonce, (nonce) => to.hex(nonce, LIMITS.nonceBytes))
      .optional(node.certificate, (digest) => to.hex(digest, LIMITS.digestBytes));
  });
};

const readLeaseNode = (from: ByteReader): LeaseNode => {
  const role = NODE_ROLES[from.byte()];
  if (role === undefined) throw from.corrupt('a node has an unknown role');
  const binding = from.optional(readBinding);
  const nonce = from.optional(readNonce);
  const certificate = from.optional(readDigest);
  const isUntouched = binding === null && nonce === null && certificate === null;
  return isUntouched ? UNTOUCHED_NODE[role] : { role, binding, nonce, certificate, reclaim: null };
};

/** Which leases and ended attempts a state is to have; undefined: all of them. */
export type Wanted = ((job: JobId, lease: LeaseNumber) => boolean) | undefined;

/** Goes behind the nodes of a lease that is not wanted. */
const passNodes = (from: ByteReader): void => {
  for (let left = from.whole(NODES_PER_ENTRY); left > 0; left -= 1) {
    from.passText(LIMITS.nodeNameCharsMax);
    from.byte();
    if (from.byte() !== 0) {
      from.pass(LIMITS.workerKeyBytes);
      from.passText(LIMITS.bootIdBytesMax);
    }
    if (from.byte() !== 0) from.pass(LIMITS.nonceBytes);
    if (from.byte() !== 0) from.pass(LIMITS.digestBytes);
  }
};

const restoreNodes = (state: LeaseState, from: ByteReader, wanted: Wanted): void => {
  const lease = state.leases.row(readLeaseNumber(from));
  if (lease === undefined) {
    if (wanted === undefined) throw from.corrupt('nodes of a lease that is not there');
    passNodes(from);
    return;
  }
  from.list(NODES_PER_ENTRY, () => {
    const name = readNode(from);
    if (lease.nodes.has(name)) throw from.corrupt('a node is there twice');
    const node = readLeaseNode(from);
    lease.nodes.set(name, node);
  });
};

type ReclaimEntry = {
  readonly lease: Pick<Lease, 'number'>;
  readonly node: NodeName;
  readonly reclaim: Reclaim;
};

function* reclaimEntries({ leases, withheld }: LeaseState): Generator<ReclaimEntry> {
  const holders = withheld.holders();
  for (const lease of leases.rows()) {
    if (!holders.has(lease.number)) continue;
    for (const [node, { reclaim }] of lease.nodes) if (reclaim !== null) yield { lease, node, reclaim };
  }
}

const writeReclaimed = (to: ByteWriter, { lease, node, reclaim }: ReclaimEntry): void => {
  writeReclaim(to.whole(lease.number).text(node), reclaim);
};

const restoreReclaimed = (state: LeaseState, from: ByteReader, wanted: Wanted): void => {
  const number = readLeaseNumber(from);
  const name = readNode(from);
  const reclaim = readReclaim(from);
  const nodes = state.leases.row(number)?.nodes;
  if (nodes === undefined && wanted !== undefined) return;
  const node = nodes?.get(name);
  if (node === undefined || node.certificate !== null || node.reclaim !== null)
    throw from.corrupt('a node is reclaimed that cannot be');
  nodes?.set(name, { ...node, reclaim });
  state.withheld.withhold(name, number);
};

/** The state as records of at most LIMITS.recordBytesMax bytes. */
export function* snapshotState(state: LeaseState): Generator<Uint8Array> {
  yield* pack(RECORD.head, [state], (to, { epoch, nextLease }) => to.whole(epoch).whole(nextLease));
  yield* pack(RECORD.used, state.used, (to, range) => to.whole(range.first).whole(range.last));
  yield* pack(RECORD.freed, state.freed, (to, uid) => to.whole(uid));
  yield* pack(RECORD.ended, state.ended, writeEnded);
  yield* pack(RECORD.leases, state.leases.rows(), writeLease);
  yield* pack(RECORD.nodes, nodesEntries(state.leases.rows()), writeNodes);
  yield* pack(RECORD.reclaims, reclaimEntries(state), writeReclaimed);
}

const restoreEntry = (state: LeaseState, kind: number, from: ByteReader, wanted: Wanted): void => {
  switch (kind) {
    case RECORD.head:
      if (state.nextLease !== 1) throw from.corrupt('a snapshot begins twice');
      state.epoch = from.whole(SAFE);
      state.nextLease = from.whole(SAFE, 1);
      return;
    case RECORD.used:
      if (!state.used.addRange({ first: readUid(from), last: readUid(from) }))
        throw from.corrupt('ranges of used uids overlap');
      return;
    case RECORD.freed: {
      const uid = readUid(from);
      if (!state.used.has(uid) || state.freed.has(uid)) throw from.corrupt('a freed uid was never used');
      state.freed.push(uid);
      return;
    }
    case RECORD.ended: {
      const ended = readEnded(from);
      if (wanted?.(ended.job, ended.lease) !== false) state.ended.add(ended);
      return;
    }
    case RECORD.leases: {
      const lease = readLease(from);
      if (wanted?.(lease.job, lease.number) === false) return;
      if (!restoreLease(state, lease)) throw from.corrupt('a lease is in the way of another');
      return;
    }
    case RECORD.nodes:
      restoreNodes(state, from, wanted);
      return;
    case RECORD.reclaims:
      restoreReclaimed(state, from, wanted);
      return;
    default:
      throw newerBytes('a part of the checkpoint', SNAPSHOT_VERSION, SNAPSHOT_VERSION, kind);
  }
};

/** One entry of a snapshot as plain values, for people and programs that look at a log. */
export type SnapshotEntry =
  | { readonly part: 'head'; readonly epoch: number; readonly nextLease: number }
  | { readonly part: 'used'; readonly first: Uid; readonly last: Uid }
  | { readonly part: 'freed'; readonly uid: Uid }
  | ({ readonly part: 'ended' } & EndedAttempt)
  | ({ readonly part: 'lease' } & LeaseFacts)
  | {
      readonly part: 'nodes';
      readonly lease: LeaseNumber;
      readonly nodes: readonly ({ readonly node: NodeName } & Omit<LeaseNode, 'reclaim'>)[];
    }
  | {
      readonly part: 'reclaim';
      readonly lease: LeaseNumber;
      readonly node: NodeName;
      readonly reclaim: Reclaim;
    };

const describeEntry = (kind: number, from: ByteReader): SnapshotEntry => {
  switch (kind) {
    case RECORD.head:
      return { part: 'head', epoch: from.whole(SAFE), nextLease: from.whole(SAFE, 1) };
    case RECORD.used:
      return { part: 'used', first: readUid(from), last: readUid(from) };
    case RECORD.freed:
      return { part: 'freed', uid: readUid(from) };
    case RECORD.ended:
      return { part: 'ended', ...readEnded(from) };
    case RECORD.leases:
      return { part: 'lease', ...readLease(from) };
    case RECORD.nodes: {
      const lease = readLeaseNumber(from);
      const nodes = from.list(NODES_PER_ENTRY, () => {
        const node = readNode(from);
        const { reclaim: _, ...rest } = readLeaseNode(from);
        return { node, ...rest };
      });
      return { part: 'nodes', lease, nodes };
    }
    case RECORD.reclaims: {
      const lease = readLeaseNumber(from);
      return { part: 'reclaim', lease, node: readNode(from), reclaim: readReclaim(from) };
    }
    default:
      throw newerBytes('a part of the checkpoint', SNAPSHOT_VERSION, SNAPSHOT_VERSION, kind);
  }
};

const openRecord = (record: Uint8Array): { readonly kind: number; readonly from: ByteReader } => {
  const from = new ByteReader(record, 0, record.length);
  const version = from.byte();
  if (version === 0) throw from.corrupt('its version is 0');
  const kind = from.byte();
  if (version !== SNAPSHOT_VERSION) {
    throw newerBytes('a part of the checkpoint', version, SNAPSHOT_VERSION, kind);
  }
  return { kind, from };
};

/** The kind of the record that begins there: one of RECORD, or what `restoreRecord` refuses. */
export const kindOfRecord = (bytes: Uint8Array, start: number): number =>
  bytes[start] === SNAPSHOT_VERSION ? (bytes[start + 1] ?? 0) : 0;

/**
 * The lease number with which the record of leases or nodes that begins there begins itself; none in it is smaller.
 * Only to tell records apart: the decoder has its say when one of them is restored.
 */
export const firstLeaseOf = (bytes: Uint8Array, start: number): number => {
  let value = 0;
  let scale = 1;
  for (let at = start + 2; ; at += 1) {
    const next = bytes[at] ?? 0;
    value += (next & 0x7f) * scale;
    if (next < 0x80) return value;
    scale *= 0x80;
  }
};

const eachEntry = (record: Uint8Array, visit: (kind: number, from: ByteReader) => void): void => {
  const { kind, from } = openRecord(record);
  do visit(kind, from);
  while (!from.isAtEnd);
};

/** What one record of a snapshot holds, without a state. Throws as restoreRecord does. */
export const describeRecord = (record: Uint8Array): readonly SnapshotEntry[] => {
  const entries: SnapshotEntry[] = [];
  eachEntry(record, (kind, from) => entries.push(describeEntry(kind, from)));
  return entries;
};

/**
 * Adds one record of a snapshot to a state that started empty. Throws XceError 'log-corrupt' on bytes that are
 * not exactly such a record, 'log-version' on those of a newer version.
 */
export const restoreRecord = (state: LeaseState, record: Uint8Array, wanted?: Wanted): void =>
  eachEntry(record, (kind, from) => restoreEntry(state, kind, from, wanted));
