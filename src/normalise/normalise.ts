/**
 * Hands what an execution uid owns below one root to the submitter (apply), says what would be handed over
 * (plan), or proves that nothing is left (verify). Only a verify that ends `complete` frees a uid.
 *
 * Apply walks until a pass changes nothing, then hands over the root directory itself: a root that only the
 * uid may enter keeps everybody else out of the tree until it is done. Interrupted anywhere, a second run goes
 * on: what was handed over is not the uid's any more.
 *
 * Nothing here makes a look atomic. A living process with write access can move an inode past a walk; so the
 * uid's processes are dead on every node before (the lease log knows), and looked for here before and after.
 */
import { assert, messageOf } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import type { IdRange } from '../base/id-range.ts';
import { INODE_KINDS } from '../os/pinned.ts';
import type { LiveProcess, NormalisePorts } from './ports.ts';
import { type Mode, type NormaliseReport, sumCounts, zeroCounts } from './report.ts';
import { type OpenedRoot, openRoot, type Refusal, type RootSpec, refuse } from './root.ts';
import { isOfPool, type Terms } from './verdict.ts';
import { type PassTally, Walk } from './walk.ts';

export type Progress = {
  /** From 1. */
  readonly pass: number;
  /** Names looked at in this pass. */
  readonly names: number;
  /** Inodes handed over so far. */
  readonly changed: number;
  readonly seconds: number;
};

export type NormaliseRequest = {
  readonly root: RootSpec;
  /** The leased uid and the gid of its processes. */
  readonly uid: number;
  readonly gid: number;
  /** The submitter. */
  readonly to: { readonly uid: number; readonly gid: number };
  readonly mode: Mode;
  /** The pool of execution uids: those inodes belong to other leases. */
  readonly otherPoolRange?: IdRange;
  /** Called now and then while the walk goes on. */
  readonly onProgress?: (progress: Progress) => void;
  /** Ends the walk early; the report is then `partial`. */
  readonly signal?: AbortSignal;
};

/** Passes of one run; a tree that still changes after these is reported and not waited for. */
const PASSES_MAX = 8;
/** How long the walk keeps the event loop for itself. */
const SLICE_MS = 20;
const PROGRESS_MS = 200;
const ID_MAX = 0xffff_fffe;

/** File systems that are known to list every attribute they have; others are asked for each by name. */
const LISTING_TYPES: ReadonlySet<string> = new Set(['ext2', 'ext3', 'ext4', 'xfs', 'btrfs', 'tmpfs', 'f2fs']);

const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** The last look at who gets what. Callers have checked it before; a mistake here gives files to root. */
const checkOwners = (terms: Terms): Refusal | undefined => {
  const { uid, gid, to } = terms;
  const isId = (id: number): boolean => Number.isSafeInteger(id) && id >= 1 && id <= ID_MAX;
  if (!isId(uid) || !isId(gid)) return refuse('owners', `uid ${uid} and gid ${gid} cannot be of a lease`);
  if (!isId(to.uid) || !isId(to.gid) || to.uid === uid || to.gid === gid || isOfPool(to.uid, terms)) {
    return refuse('owners', `uid ${to.uid} and gid ${to.gid} cannot be of a submitter`);
  }
  return undefined;
};

const checkProcesses = (ports: NormalisePorts, uid: number): Refusal | undefined => {
  let living: readonly LiveProcess[];
  try {
    living = ports.processesOf(uid);
  } catch (error) {
    const why = escapeText(messageOf(error));
    return refuse('process', `cannot tell whether processes of uid ${uid} live: ${why}`);
  }
  const [first] = living;
  if (first === undefined) return undefined;
  const which = `pid ${first.pid} (${escapeText(first.command)})`;
  return refuse('process', `${living.length} processes of uid ${uid} live on this host, ${which} among them`);
};

const countChanges = (tally: PassTally): number =>
  sumCounts(tally.changed) + tally.regrouped + tally.aclsStripped;

/** Runs one pass, and lets go of the event loop now and then. */
const runPass = async (
  walk: Walk,
  request: NormaliseRequest,
  ports: NormalisePorts,
  tell: (tally: PassTally) => void,
): Promise<void> => {
  let sliceMs = ports.clock.monotonicMs();
  let toldMs = sliceMs;
  for (const _ of walk.run()) {
    const nowMs = ports.clock.monotonicMs();
    if (nowMs - sliceMs < SLICE_MS) continue;
    if (nowMs - toldMs >= PROGRESS_MS) {
      tell(walk.tally);
      toldMs = nowMs;
    }
    await nextTurn();
    if (request.signal?.aborted === true) break;
    sliceMs = ports.clock.monotonicMs();
  }
  tell(walk.tally);
};

/** Walks until nothing is left to do. The tallies of all passes, in order. */
const walkTree = async (
  opened: OpenedRoot,
  request: NormaliseRequest,
  terms: Terms,
  ports: NormalisePorts,
  startMs: number,
): Promise<readonly PassTally[]> => {
  const { mode, signal, onProgress } = request;
  const root = {
    pin: opened.pin,
    facts: opened.facts,
    path: Buffer.from(request.root.path, 'utf8'),
    listed: LISTING_TYPES.has(opened.mount.type),
  };
  const tallies: PassTally[] = [];
  const tell = (tally: PassTally): void =>
    onProgress?.({
      pass: tallies.length,
      names: sumCounts(tally.names),
      changed: tallies.reduce((sum, each) => sum + sumCounts(each.changed), 0),
      seconds: (ports.clock.monotonicMs() - startMs) / 1000,
    });
  for (;;) {
    const walk = new Walk(ports.pins, root, terms, mode);
    const { tally } = walk;
    tallies.push(tally);
    await runPass(walk, request, ports, tell);
    const changes = countChanges(tally);
    const isWhole = !tally.lost && tally.stale === 0;
    const isSettled = isWhole && (mode !== 'apply' || changes + tally.vanished === 0);
    const isCancelled = signal?.aborted === true;
    if (!isSettled && !isCancelled && tallies.length < PASSES_MAX) continue;
    if (isCancelled) tally.findings.note('cancelled', 0);
    // Names that keep vanishing are the business of others; what we still find to change is not.
    else if (!isWhole || (mode === 'apply' && changes > 0)) tally.findings.note('unsettled', 0);
    if (!isCancelled) walk.visitRoot();
    return tallies;
  }
};

const addUp = (tallies: readonly PassTally[], value: (tally: PassTally) => number): number =>
  tallies.reduce((sum, tally) => sum + value(tally), 0);

/**
 * Plans, applies or verifies one root. Refusals and failures are in the report; what is thrown is a bug.
 */
export const normaliseRoot = async (
  request: NormaliseRequest,
  ports: NormalisePorts,
): Promise<NormaliseReport> => {
  const { mode, root, uid, gid, to } = request;
  const terms: Terms = { uid, gid, to, pool: request.otherPoolRange };
  const startMs = ports.clock.monotonicMs();
  const seconds = (): number => (ports.clock.monotonicMs() - startMs) / 1000;
  const refused = (refusal: Refusal): NormaliseReport => ({
    format: 1,
    mode,
    status: 'refused',
    root: root.path,
    mount: null,
    uid,
    gid,
    to,
    refusal,
    passes: 0,
    names: zeroCounts(),
    owned: zeroCounts(),
    changed: zeroCounts(),
    left: 0,
    also: { regrouped: 0, aclsStripped: 0, capabilitiesStripped: 0, modesCleared: 0 },
    findings: [],
    seconds: seconds(),
    namesPerSecond: 0,
  });

  const refusal = checkOwners(terms) ?? (mode === 'plan' ? undefined : checkProcesses(ports, uid));
  if (refusal !== undefined) return refused(refusal);
  const opened = openRoot(ports, root, terms);
  if ('reason' in opened) return refused(opened);

  let tallies: readonly PassTally[];
  try {
    if (mode === 'apply' && opened.mount.options.includes('ro')) {
      return refused(refuse('read-only', `${escapeText(root.path)} is mounted read-only`));
    }
    tallies = await walkTree(opened, request, terms, ports, startMs);
  } finally {
    ports.pins.close(opened.pin);
  }

  const [first, last] = [tallies[0], tallies.at(-1)];
  assert(first !== undefined && last !== undefined, 'a walk has a pass');
  const { findings } = last;
  // Later passes do not see the links of what the first one handed over.
  if (first !== last) findings.adopt(first.findings, ['links-outside', 'links-untracked']);
  if (mode !== 'plan' && checkProcesses(ports, uid) !== undefined) findings.note('process', 0);

  const changed = zeroCounts();
  for (const kind of INODE_KINDS) changed[kind] = addUp(tallies, (tally) => tally.changed[kind]);
  const owned = zeroCounts();
  for (const kind of INODE_KINDS) owned[kind] = changed[kind] + last.left[kind];
  const { path, source, type, fsid } = opened.mount;
  const tookSeconds = seconds();
  return {
    format: 1,
    mode,
    status: findings.blocks ? 'partial' : 'complete',
    root: root.path,
    mount: { path, source, type, fsid },
    uid,
    gid,
    to,
    refusal: null,
    passes: tallies.length,
    names: last.names,
    owned,
    changed,
    left: sumCounts(last.left) + last.leftOther,
    also: {
      regrouped: addUp(tallies, (tally) => tally.regrouped),
      aclsStripped: addUp(tallies, (tally) => tally.aclsStripped),
      capabilitiesStripped: addUp(tallies, (tally) => tally.capabilitiesStripped),
      modesCleared: addUp(tallies, (tally) => tally.modesCleared),
    },
    findings: findings.toList(),
    seconds: tookSeconds,
    namesPerSecond: Math.round(
      addUp(tallies, (tally) => sumCounts(tally.names)) / Math.max(tookSeconds, 0.001),
    ),
  };
};
