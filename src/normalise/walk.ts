/**
 * One pass over one tree. The stack is explicit, so depth costs memory of its own size only; directories are
 * read in blocks, so width costs none; at most a few dozen descriptors are open, because the directories near
 * the root are closed while the walk is far below them and found again through `..`, with proof that it is
 * the same directory.
 *
 * A name is looked up once. What is done is done to the inode that the look-up pinned: a name that leads
 * somewhere else a moment later changes nothing. A name that is listed as a directory is pinned when its turn
 * comes, judged, and only then opened for reading.
 *
 * The walk is a generator that stops after every block and every directory. A directory with the descriptor it
 * is read through is all the state that a slice of work has, so slices can be given to other threads.
 */
import { assert } from '../base/errors.ts';
import { ERRNO } from '../os/libc.ts';
import {
  type CName,
  decodeBlock,
  type InodeFacts,
  type InodeKind,
  nameBytes,
  PARENT,
  type PinnedInodes,
  positionAfter,
} from '../os/pinned.ts';
import { type Failure, findAttributes, handOver, stripAcls } from './hand-over.ts';
import { LinkTable } from './links.ts';
import { Findings, type Mode, PATH_BYTES_MAX, type Reason, zeroCounts } from './report.ts';
import { isSameInode } from './root.ts';
import { decide, type Terms } from './verdict.ts';

/** What one pass did and saw. */
export type PassTally = {
  readonly names: Record<InodeKind, number>;
  /** Inodes of the uid that were handed over in this pass. */
  readonly changed: Record<InodeKind, number>;
  /** Inodes of the uid that it left (plan, verify: every one), each once. */
  readonly left: Record<InodeKind, number>;
  /** Inodes of others that it left with the leased gid or with ACL entries. */
  leftOther: number;
  regrouped: number;
  aclsStripped: number;
  capabilitiesStripped: number;
  modesCleared: number;
  /** Names that were listed and were gone when they were looked at. */
  vanished: number;
  /** Names that the server did not know any more, or that came and went; another pass may see them. */
  stale: number;
  /** The way back to a parent was gone: a part of the tree was not walked. */
  lost: boolean;
  readonly findings: Findings;
};

export type WalkRoot = {
  /** Pin of the root directory; stays open. */
  readonly pin: number;
  readonly facts: InodeFacts;
  /** Raw path of the root, for findings. */
  readonly path: Buffer;
  /** Whether attributes may be found by listing them (one call) instead of asking for each. */
  readonly listed: boolean;
};

type Frame = {
  /** Descriptor for reading, or -1 while suspended. */
  fd: number;
  readonly facts: InodeFacts;
  /** Name in the parent; undefined for the root. */
  readonly name: CName | undefined;
  /** Names of directories still to descend into, one after another, each with its NUL. */
  pending: Buffer;
  at: number;
  /** Every block has been read. */
  finished: boolean;
  /** Where the next block starts. */
  position: bigint;
  /** Names that were listed and could not be found, as latin1; they get a second look at the end. */
  missing: Set<string> | undefined;
};

/** Directories that are open at a time, besides the root. */
const OPEN_MAX = 64;
/** Deeper than this is not walked, and reported: each level costs up to about a kilobyte. */
const DEPTH_MAX = 200_000;
const BLOCK_BYTES = 64 << 10;
const SMALL_BLOCK_BYTES = 1 << 10;
/** A directory is read on before its subdirectories are entered while it has fewer bytes of names pending … */
const PENDING_BYTES_MAX = 256 << 10;
/** … and all directories together fewer than this; above it, blocks are small as well. */
const PENDING_TOTAL_BYTES_MAX = 16 << 20;
/** Missing names that one directory remembers, and how often it is listed again for them. */
const MISSING_MAX = 10_000;
const SECOND_LOOKS_MAX = 3;
/** Inodes with several names whose path is kept until all names were met. */
const LINK_SAMPLES_MAX = 1000;

const NOTHING = Buffer.alloc(0);
const SLASH = Buffer.from('/');
const ENOENT = -(ERRNO['ENOENT'] ?? 0);
const ESTALE = -(ERRNO['ESTALE'] ?? 0);

export class Walk {
  readonly tally: PassTally;
  readonly #pins: PinnedInodes;
  readonly #root: WalkRoot;
  readonly #terms: Terms;
  readonly #mode: Mode;
  readonly #links = new LinkTable();
  readonly #linkPaths = new Map<bigint, Buffer>();
  readonly #stack: Frame[] = [];
  readonly #block = Buffer.alloc(BLOCK_BYTES);
  /** Frames from 1 to this index (exclusive) are suspended. */
  #firstOpen = 1;
  #pendingBytes = 0;

  constructor(pins: PinnedInodes, root: WalkRoot, terms: Terms, mode: Mode) {
    this.#pins = pins;
    this.#root = root;
    this.#terms = terms;
    this.#mode = mode;
    this.tally = {
      names: zeroCounts(),
      changed: zeroCounts(),
      left: zeroCounts(),
      leftOther: 0,
      regrouped: 0,
      aclsStripped: 0,
      capabilitiesStripped: 0,
      modesCleared: 0,
      vanished: 0,
      stale: 0,
      lost: false,
      findings: new Findings(),
    };
  }

  /** Walks the tree. The root's own inode is not judged here: apply hands it over last (see `visitRoot`). */
  *run(): Generator<void, void, void> {
    const fd = this.#pins.openDirectory(this.#root.pin);
    if (fd < 0) {
      this.#note('list', fd, undefined);
      return;
    }
    this.#push({ fd, facts: this.#root.facts, name: undefined });
    try {
      for (let frame = this.#stack.at(-1); frame !== undefined; frame = this.#stack.at(-1)) {
        if (this.#wantsBlock(frame)) this.#readBlock(frame);
        else if (frame.at < frame.pending.length) this.#descend(frame, this.#takePending(frame));
        else if (frame.missing !== undefined) this.#lookAgain(frame, frame.missing);
        else if (!this.#pop()) return;
        yield;
      }
      this.#noteLinks();
    } finally {
      for (const frame of this.#stack.splice(0)) if (frame.fd >= 0) this.#pins.close(frame.fd);
    }
  }

  /** Judges the root's own inode. */
  visitRoot(): void {
    const facts = this.#pins.readFacts(this.#root.pin, true);
    if (typeof facts === 'number') this.#note('look', facts, undefined);
    else this.#visit(this.#root.pin, facts, undefined);
  }

  #push(opened: Pick<Frame, 'fd' | 'facts' | 'name'>): void {
    this.#stack.push({
      ...opened,
      pending: NOTHING,
      at: 0,
      finished: false,
      position: 0n,
      missing: undefined,
    });
    if (this.#stack.length - this.#firstOpen <= OPEN_MAX) return;
    const oldest = this.#stack[this.#firstOpen];
    assert(oldest !== undefined && oldest.fd >= 0, 'the oldest open directory is open');
    this.#pins.close(oldest.fd);
    oldest.fd = -1;
    this.#firstOpen += 1;
  }

  /** Leaves the directory on top. False when its parent cannot be found again: the rest is for another pass. */
  #pop(): boolean {
    const child = this.#stack.pop();
    assert(child !== undefined && child.fd >= 0, 'the directory on top is open');
    const parent = this.#stack.at(-1);
    const found = parent === undefined || parent.fd >= 0 || this.#resume(parent, child.fd);
    this.#pins.close(child.fd);
    if (!found) this.tally.lost = true;
    return found;
  }

  #resume(parent: Frame, child: number): boolean {
    const pin = this.#pins.pin(child, PARENT);
    if (pin < 0) return false;
    const facts = this.#pins.readFacts(pin, false);
    const isParent = typeof facts !== 'number' && isSameInode(facts, parent.facts);
    const fd = isParent ? this.#pins.openDirectory(pin) : -1;
    this.#pins.close(pin);
    if (fd < 0) return false;
    if (!parent.finished && this.#pins.seek(fd, parent.position) < 0) {
      this.#pins.close(fd);
      return false;
    }
    parent.fd = fd;
    this.#firstOpen = this.#stack.length - 1;
    return true;
  }

  #wantsBlock(frame: Frame): boolean {
    if (frame.finished) return false;
    const pending = frame.pending.length - frame.at;
    return pending === 0 || (pending < PENDING_BYTES_MAX && this.#pendingBytes < PENDING_TOTAL_BYTES_MAX);
  }

  #takePending(frame: Frame): CName {
    const end = frame.pending.indexOf(0, frame.at) + 1;
    // A copy: the frame that this name goes into must not keep the whole list alive.
    const name = Buffer.from(frame.pending.subarray(frame.at, end)) as CName;
    frame.at = end;
    this.#pendingBytes -= name.length;
    if (frame.at === frame.pending.length) {
      frame.pending = NOTHING;
      frame.at = 0;
    }
    return name;
  }

  #readBlock(frame: Frame): void {
    const block =
      this.#pendingBytes < PENDING_TOTAL_BYTES_MAX ? this.#block : this.#block.subarray(0, SMALL_BLOCK_BYTES);
    const length = this.#pins.readBlock(frame.fd, block);
    if (length <= 0) {
      frame.finished = true;
      if (length < 0) this.#missList(length, undefined);
      return;
    }
    frame.position = positionAfter(block, length);
    const directories: Buffer[] = [frame.pending.subarray(frame.at)];
    for (const { name, isDirectory } of decodeBlock(block, length)) {
      if (isDirectory === true || this.#leaf(frame, name)) {
        directories.push(name);
        this.#pendingBytes += name.length;
      }
    }
    if (directories.length === 1) return;
    frame.pending = Buffer.concat(directories);
    frame.at = 0;
  }

  /** Pins a name, or notes why not. */
  #pin(frame: Frame, name: CName): { readonly pin: number; readonly facts: InodeFacts } | undefined {
    const pin = this.#pins.pin(frame.fd, name);
    if (pin < 0) {
      this.#miss(frame, name, pin);
      return undefined;
    }
    const facts = this.#pins.readFacts(pin, this.#mode === 'verify');
    if (typeof facts !== 'number') return { pin, facts };
    this.#pins.close(pin);
    this.#miss(frame, name, facts);
    return undefined;
  }

  #miss(frame: Frame, name: CName, errno: number): void {
    if (errno === ENOENT) {
      frame.missing ??= new Set();
      if (frame.missing.size < MISSING_MAX) {
        frame.missing.add(name.toString('latin1'));
        return;
      }
    }
    if (errno === ESTALE) this.tally.stale += 1;
    this.#note('look', errno, name);
  }

  /** A directory that was removed has nothing to list; one that the server lost may be there in another pass. */
  #missList(errno: number, name: CName | undefined): void {
    if (errno === ENOENT) {
      this.tally.vanished += 1;
      return;
    }
    if (errno === ESTALE) this.tally.stale += 1;
    this.#note('list', errno, name);
  }

  /**
   * A name that was listed and could not be found has gone meanwhile, which is the business of whoever removed
   * it; or the file system lists what it does not find, which leaves an inode unseen. Listing again tells.
   */
  #lookAgain(frame: Frame, missing: Set<string>): void {
    frame.missing = undefined;
    let unseen = missing;
    for (let looks = 0; unseen.size > 0 && looks < SECOND_LOOKS_MAX; looks += 1) {
      const listed = this.#listAgain(frame, unseen);
      this.tally.vanished += unseen.size - listed.size;
      unseen = listed;
    }
    if (missing.size > unseen.size) {
      this.tally.findings.note('vanished', 0, () => this.#pathOf(undefined), missing.size - unseen.size);
    }
    for (const name of unseen) this.#note('look', ENOENT, Buffer.from(name, 'latin1') as CName);
  }

  /** Those of the names that are listed again and still cannot be found. */
  #listAgain(frame: Frame, names: ReadonlySet<string>): Set<string> {
    const unseen = new Set<string>();
    let length = this.#pins.seek(frame.fd, 0n);
    while (length >= 0) {
      length = this.#pins.readBlock(frame.fd, this.#block);
      if (length === 0 || length === ENOENT) return unseen;
      if (length < 0) break;
      for (const { name } of decodeBlock(this.#block, length)) {
        const text = name.toString('latin1');
        if (!names.has(text)) continue;
        const pin = this.#pins.pin(frame.fd, name);
        if (pin === ENOENT) unseen.add(text);
        else if (pin < 0) this.#note('look', pin, name);
        else {
          // It is back, unjudged: another pass has to see it.
          this.#pins.close(pin);
          this.tally.stale += 1;
        }
      }
    }
    this.#missList(length, undefined);
    return unseen;
  }

  /** Handles a name that is not a directory. True when it is one after all, and has its turn later. */
  #leaf(frame: Frame, name: CName): boolean {
    const pinned = this.#pin(frame, name);
    if (pinned === undefined) return false;
    const isDirectory = pinned.facts.kind === 'directory';
    if (!isDirectory) this.#visit(pinned.pin, pinned.facts, name);
    this.#pins.close(pinned.pin);
    return isDirectory;
  }

  #descend(frame: Frame, name: CName): void {
    const pinned = this.#pin(frame, name);
    if (pinned === undefined) return;
    const { pin, facts } = pinned;
    const isInside = this.#visit(pin, facts, name);
    const enters = isInside && facts.kind === 'directory';
    if (enters && this.#stack.length >= DEPTH_MAX) this.#note('depth', 0, name);
    else if (enters) {
      const fd = this.#pins.openDirectory(pin);
      if (fd >= 0) this.#push({ fd, facts, name });
      else this.#missList(fd, name);
    }
    this.#pins.close(pin);
  }

  /** Judges one pinned inode and does what is to be done. False when it is not of this file system and mount. */
  #visit(pin: number, facts: InodeFacts, name: CName | undefined): boolean {
    const { facts: root } = this.#root;
    this.tally.names[facts.kind] += 1;
    if (facts.mountId !== root.mountId || facts.device !== root.device) {
      this.#note(facts.mountId === root.mountId ? 'device-changes' : 'mount', 0, name);
      return false;
    }
    const verdict = decide(facts, this.#terms);
    const isOwned = facts.uid === this.#terms.uid;
    // Every name of a hard link leads to the same inode: it is judged at the first.
    if (facts.links > 1 && facts.kind !== 'directory' && !this.#meetLink(facts, isOwned, name)) return true;

    if (verdict.kind === 'report') {
      this.#leave(facts, isOwned);
      this.#note(verdict.reason, 0, name);
      return true;
    }
    if (verdict.kind === 'keep' && verdict.lease) this.#note('other-lease', 0, name);

    const attributes = findAttributes(this.#pins, pin, facts, this.#root.listed);
    if (typeof attributes === 'number') {
      this.#fail(facts, isOwned, { reason: 'attributes', errno: attributes }, name);
      return true;
    }
    if (verdict.kind === 'change') {
      if (this.#mode !== 'apply') {
        this.#leave(facts, isOwned);
        if (this.#mode === 'verify') this.#note(isOwned ? 'left-owner' : 'left-group', 0, name);
      } else {
        const done = handOver(this.#pins, pin, verdict, attributes);
        if (done.capability) this.tally.capabilitiesStripped += 1;
        if (done.mode) this.tally.modesCleared += 1;
        if (done.failure !== undefined) {
          this.#fail(facts, isOwned, done.failure, name);
          return true;
        }
        if (isOwned) this.tally.changed[facts.kind] += 1;
        else this.tally.regrouped += 1;
      }
    }
    this.#stripAcls(pin, facts, attributes, name);
    return true;
  }

  #stripAcls(
    pin: number,
    facts: InodeFacts,
    attributes: Parameters<typeof stripAcls>[2],
    name: CName | undefined,
  ): void {
    if (attributes.length === 0) return;
    const acls = stripAcls(this.#pins, pin, attributes, this.#terms, this.#mode === 'apply');
    this.tally.aclsStripped += acls.stripped;
    if (acls.failure !== undefined) {
      this.tally.leftOther += 1;
      this.#note(acls.failure.reason, acls.failure.errno, name);
    } else if (acls.stripped > 0 && this.#mode !== 'apply') {
      if (facts.uid !== this.#terms.uid) this.tally.leftOther += 1;
      if (this.#mode === 'verify') this.#note('left-acl', 0, name);
    }
  }

  /** False for an inode of the uid that was met before in this pass. */
  #meetLink(facts: InodeFacts, isOwned: boolean, name: CName | undefined): boolean {
    if (!isOwned && !this.#links.has(facts.inode)) return true;
    const met = this.#links.meet(facts.inode, facts.links);
    if (met.missing === 0) this.#linkPaths.delete(facts.inode);
    else if (met.first && this.#linkPaths.size < LINK_SAMPLES_MAX) {
      this.#linkPaths.set(facts.inode, this.#pathOf(name));
    }
    return met.first;
  }

  #noteLinks(): void {
    const paths = [...this.#linkPaths.values()];
    const missing = this.#links.countMissing();
    paths.slice(0, missing).forEach((path) => {
      this.tally.findings.note('links-outside', 0, () => path);
    });
    const unnamed = missing - Math.min(missing, paths.length);
    if (unnamed > 0) this.tally.findings.note('links-outside', 0, undefined, unnamed);
    if (this.#links.untracked > 0) {
      this.tally.findings.note('links-untracked', 0, undefined, this.#links.untracked);
    }
  }

  #leave(facts: InodeFacts, isOwned: boolean): void {
    if (isOwned) this.tally.left[facts.kind] += 1;
    else this.tally.leftOther += 1;
  }

  #fail(facts: InodeFacts, isOwned: boolean, failure: Failure, name: CName | undefined): void {
    this.#leave(facts, isOwned);
    this.#note(failure.reason, failure.errno, name);
  }

  /** Notes a finding on a name of the directory on top, or on that directory itself. */
  #note(reason: Reason, errno: number, name: CName | undefined): void {
    this.tally.findings.note(reason, errno, () => this.#pathOf(name));
  }

  /** The raw path of a name, or so much of its end that it is too long to be a path: names are hostile. */
  #pathOf(name: CName | undefined): Buffer {
    const parts: Buffer[] = [];
    let length = 0;
    const add = (part: CName): void => {
      parts.push(SLASH, nameBytes(part));
      length += part.length;
    };
    const names = this.#stack.length;
    if (name !== undefined) add(name);
    for (let index = names - 1; index >= 0 && length <= PATH_BYTES_MAX; index -= 1) {
      const part = this.#stack[index]?.name;
      if (part !== undefined) add(part);
    }
    // Each name was put after its slash, the last name first.
    const ordered = [this.#root.path];
    for (let index = parts.length - 2; index >= 0; index -= 2) ordered.push(...parts.slice(index, index + 2));
    return Buffer.concat(length > PATH_BYTES_MAX ? ordered.slice(1) : ordered);
  }
}
