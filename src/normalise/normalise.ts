/**
 * Hands what an execution uid owns below one root to the submitter (apply), says what would be handed over
 * (plan), or proves that nothing is left (verify). Only a verify that ends `complete` frees a uid.
 *
 * Apply walks until a pass leaves nothing behind, and proves it by a further pass that only looks, as verify does;
 * what that one finds, the next one hands over. Then it hands over the root directory itself, and looks at it again: a root that only the uid may enter keeps everybody else out of the tree until it is done. Interrupted anywhere, a
 * second run goes on: what was handed over is not the uid's any more.
 *
 * Nothing here makes a look atomic. A living process with write access can move an inode past a walk; so the
 * uid's processes are dead on every node before (the lease log knows), and looked for here before and after.
 */
import { assert, messageOf } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import type { IdRange } from '../base/id-range.ts';
import { INODE_KINDS } from '../os/pinned.ts';
import type { LiveProcess, NormalisePorts } from './ports.ts';
import { type Mode, type NormaliseReport, type Reason, sumCounts, zeroCounts } from './report.ts';
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

const isWhole = (tally: PassTally): boolean => !tally.lost && tally.stale === 0;

/** Nothing was found that keeps a uid from being free. */
const isClean = (tally: PassTally): boolean =>
  isWhole(tally) && sumCounts(tally.left) + tally.leftOther === 0 && !tally.findings.blocks;

type Pass = { readonly mode: Mode; readonly tally: PassTally };

/**
 * What the pass after this one is to be; undefined where there is none to be. What could not be changed will not be
 * changed by another pass; what changes or vanishes under the walk is looked at again.
 */
const modeOfNext = (
  asked: Mode,
  { mode, tally }: Pass,
  changing: PassTally | undefined,
): Mode | undefined => {
  const isStill = isWhole(tally) && tally.vanished === 0;
  if (asked !== 'apply') return isWhole(tally) ? undefined : asked;
  if (mode === 'verify') {
    if (isStill && isClean(tally)) return undefined;
    // What a pass that may change does not see, and a look does, another pair of them will not settle.
    const isAtOdds = isStill && changing !== undefined && countChanges(changing) === 0;
    return isAtOdds ? undefined : 'apply';
  }
  if (isClean(tally)) return 'verify';
  return isStill && countChanges(tally) === 0 ? undefined : 'apply';
};

/**
 * Whether a last pass leaves open what is there. Names that keep vanishing are the business of others; what an apply
 * still finds to change, or has not proved by a look, is not.
 */
const isUnsettled = (asked: Mode, { mode, tally }: Pass): boolean => {
  if (!isWhole(tally)) return true;
  if (asked !== 'apply') return false;
  return mode === 'apply' ? countChanges(tally) > 0 || isClean(tally) : !isClean(tally);
};

/** What keeps the root's own inode from being handed over. */
const OF_ROOT: readonly Reason[] = [
  ...(['owner', 'mode', 'attributes', 'not-kept', 'look'] as const),
  ...(['immutable', 'append-only', 'foreign-group'] as const),
];

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

/** Walks until nothing is left to do. All passes, in order. */
const walkTree = async (
  opened: OpenedRoot,
  request: NormaliseRequest,
  terms: Terms,
  ports: NormalisePorts,
  startMs: number,
): Promise<readonly Pass[]> => {
  const { signal, onProgress } = request;
  const root = {
    pin: opened.pin,
    facts: opened.facts,
    path: Buffer.from(request.root.path, 'utf8'),
    listed: LISTING_TYPES.has(opened.mount.type),
  };
  const passes: Pass[] = [];
  const tell = (tally: PassTally): void =>
    onProgress?.({
      pass: passes.length,
      names: sumCounts(tally.names),
      changed: passes.reduce((sum, each) => sum + sumCounts(each.tally.changed), 0),
      seconds: (ports.clock.monotonicMs() - startMs) / 1000,
    });
  let changing: Walk | undefined;
  for (let mode = request.mode; ; ) {
    const walk = new Walk(ports.pins, root, terms, mode);
    const { tally } = walk;
    const pass = { mode, tally };
    passes.push(pass);
    if (mode === 'apply') changing = walk;
    await runPass(walk, request, ports, tell);
    if (signal?.aborted === true) {
      tally.findings.note('cancelled', 0);
      return passes;
    }
    const next = modeOfNext(request.mode, pass, changing?.tally);
    if (next !== undefined && passes.length < PASSES_MAX) {
      mode = next;
      continue;
    }
    if (isUnsettled(request.mode, pass)) tally.findings.note('unsettled', 0);
    changing?.visitRoot();
    if (changing !== walk) walk.visitRoot();
    if (changing !== undefined && changing !== walk) tally.findings.adopt(changing.tally.findings, OF_ROOT);
    return passes;
  }
};

const addUp = (passes: readonly Pass[], value: (tally: PassTally) => number): number =>
  passes.reduce((sum, { tally }) => sum + value(tally), 0);

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

  let passes: readonly Pass[];
  try {
    if (mode === 'apply' && opened.mount.options.includes('ro')) {
      return refused(refuse('read-only', `${escapeText(root.path)} is mounted read-only`));
    }
    passes = await walkTree(opened, request, terms, ports, startMs);
  } finally {
    ports.pins.close(opened.pin);
  }

  const [first, last] = [passes[0]?.tally, passes.at(-1)?.tally];
  assert(first !== undefined && last !== undefined, 'a walk has a pass');
  const { findings } = last;
  // Later passes do not see the links of what the first one handed over.
  if (first !== last) findings.adopt(first.findings, ['links-outside', 'links-untracked']);
  if (mode !== 'plan' && checkProcesses(ports, uid) !== undefined) findings.note('process', 0);

  const changed = zeroCounts();
  for (const kind of INODE_KINDS) changed[kind] = addUp(passes, (tally) => tally.changed[kind]);
  const owned = zeroCounts();
  for (const kind of INODE_KINDS) owned[kind] = changed[kind] + last.left[kind];
  const { path, source, type, fsid } = opened.mount;
  // A pass that only looks counts what it would do, each pass all of it.
  const acting = mode === 'apply' ? passes.filter((pass) => pass.mode === mode) : passes.slice(-1);
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
    passes: passes.length,
    names: last.names,
    owned,
    changed,
    left: sumCounts(last.left) + last.leftOther,
    also: {
      regrouped: addUp(acting, (tally) => tally.regrouped),
      aclsStripped: addUp(acting, (tally) => tally.aclsStripped),
      capabilitiesStripped: addUp(acting, (tally) => tally.capabilitiesStripped),
      modesCleared: addUp(acting, (tally) => tally.modesCleared),
    },
    findings: findings.toList(),
    seconds: tookSeconds,
    namesPerSecond: Math.round(
      addUp(passes, (tally) => sumCounts(tally.names)) / Math.max(tookSeconds, 0.001),
    ),
  };
};
