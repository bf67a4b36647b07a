/**
 * The events of the lease log: everything that was ever decided about leases, one small record of bytes each.
 *
 * An event is: format version (one byte, 1), kind (one byte), the lease number (but for forget), then
 *
 *      1 allocate     uid, job, attempt, start?, submitter uid, gid, nodes*, (path, storage)*, (path, storage)?,
 *                     term, epoch
 *      2 renew        term, epoch
 *      3 bind         node, worker key (32 bytes), boot id
 *      4 join         node
 *      5 mounts       node, (path, source, type, fsid)*
 *      6 drain        (node, nonce (16 bytes))*
 *      7 ask          (node, nonce (16 bytes))*
 *      8 certify      node, SHA-256 (32 bytes), certificate
 *      9 normalise
 *     10 normalised   path, walked, changed
 *     11 free         wall clock
 *     12 quarantine   reason (one byte), text, node?, wall clock
 *     13 forget       count
 *     14 reclaim      node, by, reason, wall clock
 *
 * with x? an optional value, x* a list (its length, then its members), and a term the ttl, wall clock, monotonic
 * clock and boot id of the host that wrote it. Times are milliseconds; codec.ts has the coding of numbers and
 * texts. A reader that meets a higher format version, an unknown kind or an unknown reason for quarantine was
 * overtaken by an upgrade and stops with 'log-version'.
 */
import {
  type Attempt,
  type Epoch,
  type JobId,
  type LeaseNumber,
  type NodeName,
  parseJobId,
  parseNodeName,
  type Uid,
} from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import { ByteReader, ByteWriter, newerBytes, WordTable } from './codec.ts';
import type { Term } from './term.ts';

export type Submitter = { readonly uid: number; readonly gid: number };

/** A path on shared storage that steps may write besides the workspace. */
export type LeaseRoot = { readonly path: string; readonly storage: string };

/** The directory of one [storage] below which the job gets its own directory. */
export type LeaseWorkspace = { readonly storage: string; readonly path: string };

/** How a node saw the mount below one root or workspace when it prepared the sandbox. */
export type MountFacts = {
  readonly path: string;
  readonly source: string;
  readonly type: string;
  readonly fsid: string;
};

/** A worker of one boot: its raw Ed25519 public key in hex, and the kernel's boot id. */
export type Binding = { readonly workerKey: string; readonly bootId: string };

export type DrainNonce = { readonly node: NodeName; readonly nonce: string };

/** Why a uid is kept away from everybody. The order is the order of their bytes: append only. */
export const QUARANTINE_CODES = [
  'superseded',
  'node-unreachable',
  'node-dirty',
  'certificate',
  'normalise-partial',
  'normalise-refused',
  'mount-changed',
  'expired',
  'operator',
  'reclaimed',
  'uid-taken',
] as const;
export type QuarantineCode = (typeof QUARANTINE_CODES)[number];

export type Quarantine = {
  readonly code: QuarantineCode;
  /** One line for the operator; may hold bytes that a job chose, so escape it on a terminal. */
  readonly text: string;
  readonly node: NodeName | null;
  readonly wallMs: number;
};

/** An operator's word that a node is fenced off: nothing of the lease runs there, and nothing can come from there. */
export type Reclaim = {
  /** Who says so. */
  readonly by: string;
  /** One line; escape both on a terminal. */
  readonly reason: string;
  readonly wallMs: number;
};

export type LeaseEvent =
  | {
      readonly kind: 'allocate';
      readonly lease: LeaseNumber;
      readonly uid: Uid;
      readonly job: JobId;
      readonly attempt: Attempt;
      /** When the scheduler started this attempt, Unix seconds: tells a reused job id from the same one. */
      readonly schedulerStartS: number | null;
      readonly submitter: Submitter;
      readonly nodes: readonly NodeName[];
      readonly roots: readonly LeaseRoot[];
      readonly workspace: LeaseWorkspace | null;
      readonly term: Term;
      readonly epoch: Epoch;
    }
  | { readonly kind: 'renew'; readonly lease: LeaseNumber; readonly term: Term; readonly epoch: Epoch }
  /** The worker that answered for a node; the same key for the whole life of the lease. */
  | { readonly kind: 'bind'; readonly lease: LeaseNumber; readonly node: NodeName; readonly binding: Binding }
  /** A host that will do something under the lease's name (walk, fetch, stage) and must certify for it. */
  | { readonly kind: 'join'; readonly lease: LeaseNumber; readonly node: NodeName }
  | {
      readonly kind: 'mounts';
      readonly lease: LeaseNumber;
      readonly node: NodeName;
      readonly mounts: readonly MountFacts[];
    }
  /** The right to run has ended for good. A certificate must repeat the nonce of its node. */
  | { readonly kind: 'drain'; readonly lease: LeaseNumber; readonly nonces: readonly DrainNonce[] }
  /** Fresh nonces for nodes that have not certified yet. */
  | { readonly kind: 'ask'; readonly lease: LeaseNumber; readonly nonces: readonly DrainNonce[] }
  | {
      readonly kind: 'certify';
      readonly lease: LeaseNumber;
      readonly node: NodeName;
      /** SHA-256 of the certificate's text, hex. */
      readonly digest: string;
      readonly certificate: string;
    }
  | { readonly kind: 'normalise'; readonly lease: LeaseNumber }
  /** A verify pass over this root or workspace found no inode of the uid. */
  | {
      readonly kind: 'normalised';
      readonly lease: LeaseNumber;
      readonly path: string;
      readonly walked: number;
      readonly changed: number;
    }
  /** The uid may be leased again; the attempt is remembered as ended. */
  | { readonly kind: 'free'; readonly lease: LeaseNumber; readonly wallMs: number }
  | { readonly kind: 'quarantine'; readonly lease: LeaseNumber; readonly quarantine: Quarantine }
  /** The lease goes on without the node, but its uid waits until the node has certified after its return. */
  | {
      readonly kind: 'reclaim';
      readonly lease: LeaseNumber;
      readonly node: NodeName;
      readonly reclaim: Reclaim;
    }
  /** The oldest remembered attempts are forgotten. */
  | { readonly kind: 'forget'; readonly count: number };

export type EventKind = LeaseEvent['kind'];
export type EventOf<Kind extends EventKind> = Extract<LeaseEvent, { kind: Kind }>;

const EVENT_VERSION = 1;

/** Bytes of released formats: a number is never given to another kind. */
const KIND_BYTES = {
  allocate: 1,
  renew: 2,
  bind: 3,
  join: 4,
  mounts: 5,
  drain: 6,
  ask: 7,
  certify: 8,
  normalise: 9,
  normalised: 10,
  free: 11,
  quarantine: 12,
  forget: 13,
  reclaim: 14,
} as const satisfies Record<EventKind, number>;

export const EVENT_KINDS = Object.keys(KIND_BYTES) as readonly EventKind[];
const KIND_OF_BYTE: readonly (EventKind | undefined)[] = ((): (EventKind | undefined)[] => {
  const kinds: (EventKind | undefined)[] = [undefined];
  for (const kind of EVENT_KINDS) kinds[KIND_BYTES[kind]] = kind;
  return kinds;
})();

const SAFE = Number.MAX_SAFE_INTEGER;
const ID_MAX = 0xffff_ffff;
const UID_MAX = 2_147_483_647;
const ATTEMPT_MAX = 999_999;
/** A code point of a reason takes at most this many bytes of UTF-8. */
const BYTES_PER_CHAR_MAX = 4;

export const writeTerm = (to: ByteWriter, term: Term): void => {
  to.whole(term.ttlMs).whole(term.issued.wallMs).whole(term.issued.monotonicMs).text(term.issued.bootId);
};

/** Boot ids and paths: each occurs in many records. */
const knownWords = new WordTable<string>();
/** Workers by key and boot: each is in every lease of its node. */
const knownBindings = new WordTable<Binding>();
const anyWord = (text: string): string => text;
export const readBootId = (from: ByteReader): string => from.word(knownWords, LIMITS.bootIdBytesMax, anyWord);

export const readTtlMs = (from: ByteReader): number => from.whole(LIMITS.ttlMsMax, LIMITS.ttlMsMin);
export const readClockMs = (from: ByteReader): number => from.whole(SAFE);

export const readTerm = (from: ByteReader): Term => ({
  ttlMs: readTtlMs(from),
  issued: { wallMs: readClockMs(from), monotonicMs: readClockMs(from), bootId: readBootId(from) },
});

export const readLeaseNumber = (from: ByteReader): LeaseNumber => from.whole(SAFE, 1) as LeaseNumber;
export const readEpoch = (from: ByteReader): Epoch => from.whole(SAFE, 1) as Epoch;
export const readUid = (from: ByteReader): Uid => from.whole(UID_MAX, 1) as Uid;
export const readAttempt = (from: ByteReader): Attempt => from.whole(ATTEMPT_MAX) as Attempt;
export const readJob = (from: ByteReader): JobId => from.parsed(LIMITS.jobIdBytesMax, parseJobId, 'job id');
/** The same few names occur in every lease: each is checked once and kept once. */
const knownNodes = new WordTable<NodeName>();
const requireNodeName = (text: string, from: ByteReader): NodeName => {
  const name = parseNodeName(text);
  if (name !== text) throw from.corrupt('a text is not a node name');
  return name;
};
export const readNode = (from: ByteReader): NodeName =>
  from.word(knownNodes, LIMITS.nodeNameCharsMax, requireNodeName);
const readSafe = (from: ByteReader): number => from.whole(SAFE);
export const readSchedulerStart = (from: ByteReader): number | null => from.optional(readSafe);

export const writeSubmitter = (to: ByteWriter, submitter: Submitter): void => {
  to.whole(submitter.uid).whole(submitter.gid);
};

export const readSubmitter = (from: ByteReader): Submitter => ({
  uid: from.whole(ID_MAX, 1),
  gid: from.whole(ID_MAX, 1),
});

export const writeRoot = (to: ByteWriter, root: LeaseRoot | LeaseWorkspace): void => {
  to.text(root.path).text(root.storage);
};

const readRoot = (from: ByteReader): LeaseRoot => ({
  path: from.word(knownWords, LIMITS.pathBytesMax, anyWord),
  storage: from.word(knownWords, LIMITS.storageNameBytesMax, anyWord),
});

const NO_ROOTS: readonly LeaseRoot[] = [];
export const readRoots = (from: ByteReader): readonly LeaseRoot[] => {
  const roots = from.list(LIMITS.leaseRootsMax, readRoot);
  return roots.length === 0 ? NO_ROOTS : roots;
};

export const readWorkspace = (from: ByteReader): LeaseWorkspace | null => from.optional(readRoot);

export const writeMount = (to: ByteWriter, mount: MountFacts): void => {
  to.text(mount.path).text(mount.source).text(mount.type).text(mount.fsid);
};

export const readMount = (from: ByteReader): MountFacts => ({
  path: from.text(LIMITS.pathBytesMax),
  source: from.text(LIMITS.pathBytesMax),
  type: from.text(LIMITS.mountWordBytesMax),
  fsid: from.text(LIMITS.mountWordBytesMax),
});

export const writeBinding = (to: ByteWriter, binding: Binding): void => {
  to.hex(binding.workerKey, LIMITS.workerKeyBytes).text(binding.bootId);
};

const readNewBinding = (from: ByteReader): Binding => ({
  workerKey: from.hex(LIMITS.workerKeyBytes),
  bootId: readBootId(from),
});
const passBinding = (from: ByteReader): void => {
  from.pass(LIMITS.workerKeyBytes);
  from.passText(LIMITS.bootIdBytesMax);
};
export const readBinding = (from: ByteReader): Binding =>
  from.known(knownBindings, passBinding, readNewBinding);

export const writeQuarantine = (to: ByteWriter, quarantine: Quarantine): void => {
  to.byte(QUARANTINE_CODES.indexOf(quarantine.code))
    .text(quarantine.text)
    .optional(quarantine.node, (node) => to.text(node))
    .whole(quarantine.wallMs);
};

export const readQuarantine = (from: ByteReader): Quarantine => {
  const byte = from.byte();
  const code = QUARANTINE_CODES[byte];
  if (code === undefined) throw newerBytes('a reason for quarantine', EVENT_VERSION, EVENT_VERSION, byte);
  return {
    code,
    text: from.text(LIMITS.reasonCharsMax * BYTES_PER_CHAR_MAX),
    node: from.optional(readNode),
    wallMs: from.whole(SAFE),
  };
};

export const writeReclaim = (to: ByteWriter, { by, reason, wallMs }: Reclaim): void => {
  to.text(by).text(reason).whole(wallMs);
};

export const readReclaim = (from: ByteReader): Reclaim => ({
  by: from.text(LIMITS.operatorCharsMax * BYTES_PER_CHAR_MAX),
  reason: from.text(LIMITS.reasonCharsMax * BYTES_PER_CHAR_MAX),
  wallMs: from.whole(SAFE),
});

const writeNonces = (to: ByteWriter, nonces: readonly DrainNonce[]): void => {
  to.list(nonces, ({ node, nonce }) => to.text(node).hex(nonce, LIMITS.nonceBytes));
};

export const readNonce = (from: ByteReader): string => from.hex(LIMITS.nonceBytes);
export const readDigest = (from: ByteReader): string => from.hex(LIMITS.digestBytes);

const readDrainNonce = (from: ByteReader): DrainNonce => ({ node: readNode(from), nonce: readNonce(from) });

/** The bytes of one event. The caller has checked it; what cannot be written back and read is a bug. */
export const encodeEvent = (event: LeaseEvent): Uint8Array => {
  const to = new ByteWriter().byte(EVENT_VERSION).byte(KIND_BYTES[event.kind]);
  if (event.kind === 'forget') return to.whole(event.count).finish();
  to.whole(event.lease);
  switch (event.kind) {
    case 'allocate':
      to.whole(event.uid).text(event.job).whole(event.attempt);
      to.optional(event.schedulerStartS, (start) => to.whole(start));
      writeSubmitter(to, event.submitter);
      to.list(event.nodes, (node) => to.text(node));
      to.list(event.roots, (root) => writeRoot(to, root));
      to.optional(event.workspace, (workspace) => writeRoot(to, workspace));
      writeTerm(to, event.term);
      to.whole(event.epoch);
      break;
    case 'renew':
      writeTerm(to, event.term);
      to.whole(event.epoch);
      break;
    case 'bind':
      to.text(event.node);
      writeBinding(to, event.binding);
      break;
    case 'join':
      to.text(event.node);
      break;
    case 'mounts':
      to.text(event.node).list(event.mounts, (mount) => writeMount(to, mount));
      break;
    case 'drain':
    case 'ask':
      writeNonces(to, event.nonces);
      break;
    case 'certify':
      to.text(event.node).hex(event.digest, LIMITS.digestBytes).text(event.certificate);
      break;
    case 'normalise':
      break;
    case 'normalised':
      to.text(event.path).whole(event.walked).whole(event.changed);
      break;
    case 'free':
      to.whole(event.wallMs);
      break;
    case 'quarantine':
      writeQuarantine(to, event.quarantine);
      break;
    case 'reclaim':
      to.text(event.node);
      writeReclaim(to, event.reclaim);
      break;
    default:
      event satisfies never;
  }
  return to.finish();
};

const readEvent = (kind: EventKind, from: ByteReader): LeaseEvent => {
  if (kind === 'forget') return { kind, count: from.whole(SAFE, 1) };
  const lease = readLeaseNumber(from);
  switch (kind) {
    case 'allocate':
      return {
        kind,
        lease,
        uid: readUid(from),
        job: readJob(from),
        attempt: readAttempt(from),
        schedulerStartS: readSchedulerStart(from),
        submitter: readSubmitter(from),
        nodes: from.list(LIMITS.leaseNodesMax, readNode),
        roots: readRoots(from),
        workspace: readWorkspace(from),
        term: readTerm(from),
        epoch: readEpoch(from),
      };
    case 'renew':
      return { kind, lease, term: readTerm(from), epoch: readEpoch(from) };
    case 'bind':
      return { kind, lease, node: readNode(from), binding: readBinding(from) };
    case 'join':
      return { kind, lease, node: readNode(from) };
    case 'mounts':
      return {
        kind,
        lease,
        node: readNode(from),
        mounts: from.list(LIMITS.leaseScopesMax, readMount),
      };
    case 'drain':
    case 'ask':
      return { kind, lease, nonces: from.list(LIMITS.leaseNodesMax, readDrainNonce) };
    case 'certify':
      return {
        kind,
        lease,
        node: readNode(from),
        digest: readDigest(from),
        certificate: from.text(LIMITS.certificateCharsMax),
      };
    case 'normalise':
      return { kind, lease };
    case 'normalised':
      return {
        kind,
        lease,
        path: from.text(LIMITS.pathBytesMax),
        walked: from.whole(SAFE),
        changed: from.whole(SAFE),
      };
    case 'free':
      return { kind, lease, wallMs: readClockMs(from) };
    case 'quarantine':
      return { kind, lease, quarantine: readQuarantine(from) };
    case 'reclaim':
      return { kind, lease, node: readNode(from), reclaim: readReclaim(from) };
    default:
      kind satisfies never;
      throw from.corrupt('its kind has no fields');
  }
};

/**
 * One for all events: a replay decodes a million of them. decodeEvent is therefore not re-entrant: nothing that it calls
 * may decode another event before it has returned.
 */
const reader = new ByteReader(new Uint8Array(0), 0, 0);

/** The kind of the event that begins there. Throws 'log-version' for one that a newer version knows. */
export const readKind = (from: ByteReader): EventKind => {
  const version = from.byte();
  if (version === 0) throw from.corrupt('its version is 0');
  const byte = from.byte();
  const kind = version === EVENT_VERSION ? KIND_OF_BYTE[byte] : undefined;
  if (kind === undefined) throw newerBytes('an event', version, EVENT_VERSION, byte);
  return kind;
};

/** The kind of an event and the lease it is about, without the rest; the same errors for what is no event at all. */
export const peekEvent = (
  bytes: Uint8Array,
  start: number,
  end: number,
): { readonly kind: EventKind; readonly lease: LeaseNumber | undefined } => {
  const from = new ByteReader(bytes, start, end);
  const kind = readKind(from);
  return { kind, lease: kind === 'forget' ? undefined : readLeaseNumber(from) };
};

/**
 * The event in bytes[start, end), which keeps nothing of them. Throws XceError 'log-corrupt' on bytes that are not
 * exactly one event, 'log-version' on those of a newer version.
 */
export const decodeEvent = (bytes: Uint8Array, start = 0, end = bytes.length): LeaseEvent => {
  reader.open(bytes, start, end);
  const kind = readKind(reader);
  const event = readEvent(kind, reader);
  reader.finish();
  return event;
};
