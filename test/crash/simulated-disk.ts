/**
 * Disks and hosts in memory, behind the port that the lease log uses. What was written and not fsynced is kept
 * apart from what is durable; every call of a process is a step at which it can be killed, stopped, failed or cut
 * short. Nothing here knows of logs.
 */
import { basename, dirname } from 'node:path';
import type { FileFacts, LogFile, LogFiles, OpenPurpose } from '../../src/os/log-files.ts';

export type Call =
  | 'open'
  | 'facts'
  | 'read'
  | 'append'
  | 'overwrite'
  | 'sync'
  | 'empty'
  | 'freeBytes'
  | 'tryLock'
  | 'unlock'
  | 'close'
  | 'identify'
  | 'changedAt'
  | 'list'
  | 'link'
  | 'rename'
  | 'unlink'
  | 'syncDirectory'
  | 'makeDirectory';

export type Step = { readonly number: number; readonly call: Call; readonly path: string };

/**
 * What happens at a step. fail: nothing is done. failAfter: it is done, and the answer is lost. short: an append
 * or overwrite takes half of the bytes. killHalf: it takes half of them and the process ends. killLate: the process ends
 * with its append on the way, at the offset that the client has chosen for it.
 */
export type Fate =
  | { readonly kind: 'go' }
  | { readonly kind: 'kill' }
  | { readonly kind: 'killHalf' }
  | { readonly kind: 'killLate' }
  | { readonly kind: 'short' }
  | { readonly kind: 'fail' | 'failAfter'; readonly errno: string }
  | { readonly kind: 'stop'; readonly until: Promise<void> };

/** Called before each step of a process. */
export type Plan = (step: Step) => Fate;
export const GO: Fate = { kind: 'go' };

/**
 * What a power failure does to data that was written and not fsynced, and to names in directories that were not.
 * Data that is lost, halved or zero keeps its names.
 */
export const LOSSES = ['all lost', 'all kept', 'data lost', 'half of the data', 'zeros for data'] as const;
export type Loss = (typeof LOSSES)[number];

class SystemError extends Error {
  readonly code: string;
  constructor(errno: string, call: Call, path: string) {
    super(`${errno}: ${call} ${path}`);
    this.code = errno;
  }
}

/** A process that was killed gets no answer; its code ends by this. */
export class Killed extends Error {}

type Inode = {
  readonly id: number;
  readonly isRegular: boolean;
  bytes: Buffer;
  durable: Buffer;
  /** Ranges of which an fsync has failed: later ones do not write them any more. */
  lost: (readonly [number, number])[];
  writtenMs: number;
  lock: object | undefined;
};

/** As coarse as the clock by which a kernel stamps its files. */
const TICK_MS = 10;

/**
 * What a host keeps of directories that other hosts change as well: a listing, and that a name is not there, count for
 * as long as the time of change of the directory is the same. Its own changes it knows.
 */
export class NameCache {
  readonly #listings = new Map<string, { readonly changedAt: string; readonly names: ReadonlySet<string> }>();

  list(directory: string, changedAt: string, read: () => readonly string[]): ReadonlySet<string> {
    const kept = this.#listings.get(directory);
    if (kept?.changedAt === changedAt) return kept.names;
    const names = new Set(read());
    this.#listings.set(directory, { changedAt, names });
    return names;
  }

  /** Whether it believes, without asking, that a name is not there. */
  knowsAbsent(path: string, changedAt: string): boolean {
    const kept = this.#listings.get(dirname(path));
    return kept?.changedAt === changedAt && !kept.names.has(basename(path));
  }

  forget(directory: string): void {
    this.#listings.delete(directory);
  }
}

export class SimulatedDisk {
  readonly #names = new Map<string, Inode>();
  readonly #durableNames = new Map<string, Inode>();
  readonly #directories = new Set<string>();
  readonly #changedMs = new Map<string, number>();
  /** Counts what was done behind everyone's back; no host is to miss it. */
  #interventions = 0;
  #inodes = 0;
  readonly #late: (() => void)[] = [];
  freeBytes = 1 << 30;
  /** The storage's clock. */
  nowMs = 1_700_000_000_000;

  addDirectory(path: string): void {
    this.#directories.add(path);
  }

  /** Puts durable bytes under a name, over whatever is there. */
  put(path: string, bytes: Uint8Array, isRegular = true): void {
    this.#interventions += 1;
    const inode = this.#newInode(isRegular);
    inode.bytes = Buffer.from(bytes);
    inode.durable = inode.bytes;
    this.#names.set(path, inode);
    this.#durableNames.set(path, inode);
  }

  /** Changes the bytes of a file behind everyone's back, in place. */
  alter(path: string, change: (bytes: Buffer) => Buffer): void {
    const inode = this.#names.get(path);
    if (inode !== undefined) inode.bytes = change(Buffer.from(inode.bytes));
  }

  remove(path: string): void {
    this.#interventions += 1;
    this.#names.delete(path);
    this.#durableNames.delete(path);
  }

  bytesOf(path: string): Buffer | undefined {
    const inode = this.#names.get(path);
    return inode === undefined ? undefined : Buffer.from(inode.bytes);
  }

  pathsBelow(directory: string): readonly string[] {
    return [...this.#names.keys()].filter((path) => path.startsWith(`${directory}/`)).sort();
  }

  /** Everything below a directory as it is, to be compared or put back. */
  copyOf(directory: string): ReadonlyMap<string, Buffer> {
    return new Map(this.pathsBelow(directory).map((path) => [path, this.bytesOf(path) ?? Buffer.alloc(0)]));
  }

  putBack(directory: string, copy: ReadonlyMap<string, Buffer>): void {
    for (const path of this.pathsBelow(directory)) this.remove(path);
    for (const [path, bytes] of copy) this.put(path, bytes);
  }

  #newInode(isRegular: boolean): Inode {
    this.#inodes += 1;
    const id = this.#inodes;
    const none = Buffer.alloc(0);
    return { id, isRegular, bytes: none, durable: none, lost: [], writtenMs: this.nowMs, lock: undefined };
  }

  /** The power fails: names and data below a directory that were not fsynced meet their loss. */
  powerCut(directory: string, loss: Loss): void {
    this.#interventions += 1;
    const below = (path: string): boolean => path.startsWith(`${directory}/`);
    if (loss === 'all lost') {
      for (const path of [...this.#names.keys()].filter(below)) this.#names.delete(path);
      for (const [path, inode] of this.#durableNames) if (below(path)) this.#names.set(path, inode);
    }
    for (const [path, inode] of this.#names) {
      if (!below(path)) continue;
      const { bytes, durable } = inode;
      const fresh = Math.max(bytes.length - durable.length, 0);
      inode.lock = undefined;
      switch (loss) {
        case 'all lost':
        case 'data lost':
          inode.bytes = durable;
          break;
        case 'all kept':
          break;
        case 'half of the data':
          inode.bytes = Buffer.concat([
            durable,
            bytes.subarray(durable.length, durable.length + (fresh >> 1)),
          ]);
          break;
        case 'zeros for data':
          inode.bytes = Buffer.concat([durable, Buffer.alloc(fresh)]);
          break;
      }
      inode.durable = inode.bytes;
      inode.lost = [];
      this.#durableNames.set(path, inode);
    }
  }

  /** Lets the writes of killed processes arrive that were on the way. */
  landLateWrites(): void {
    for (const land of this.#late.splice(0)) land();
  }

  delay(write: () => void): void {
    this.#late.push(write);
  }

  /** What is in memory only, as below /run: gone after a boot. */
  erase(directory: string): void {
    for (const path of this.pathsBelow(directory)) this.remove(path);
  }

  /** The port as one process sees it. `plan` may be replaced between calls; `host` is shared by those of one host. */
  process(plan: Plan = () => GO, host: NameCache = new NameCache()): SimulatedProcess {
    return new SimulatedProcess(this, plan, host);
  }

  /** When names in a directory last changed, in ticks of the storage's clock. */
  changedAt(directory: string): string {
    return `${this.#interventions}.${Math.floor((this.#changedMs.get(directory) ?? 0) / TICK_MS)}`;
  }

  changed(path: string): void {
    this.#changedMs.set(dirname(path), this.nowMs);
  }

  /** For SimulatedProcess: the state behind the calls. */
  get inner(): {
    readonly names: Map<string, Inode>;
    readonly durableNames: Map<string, Inode>;
    readonly directories: Set<string>;
    newInode(isRegular: boolean): Inode;
  } {
    return {
      names: this.#names,
      durableNames: this.#durableNames,
      directories: this.#directories,
      newInode: (isRegular) => this.#newInode(isRegular),
    };
  }
}

export class SimulatedProcess {
  readonly #disk: SimulatedDisk;
  readonly #host: NameCache;
  readonly #held = new Map<object, Inode>();
  readonly steps: Step[] = [];
  plan: Plan;
  #isKilled = false;

  constructor(disk: SimulatedDisk, plan: Plan, host: NameCache) {
    this.#disk = disk;
    this.#host = host;
    this.plan = plan;
  }

  get isKilled(): boolean {
    return this.#isKilled;
  }

  kill(): void {
    this.#isKilled = true;
    for (const [owner, inode] of this.#held) if (inode.lock === owner) inode.lock = undefined;
    this.#held.clear();
  }

  /** One step: decides its fate, and does it. `half` does it in part, where that can be. */
  async #step<T>(call: Call, path: string, act: () => T, half?: () => T, later?: () => void): Promise<T> {
    if (this.#isKilled) throw new Killed();
    const step = { number: this.steps.length, call, path };
    this.steps.push(step);
    const fate = this.plan(step);
    switch (fate.kind) {
      case 'go':
        return act();
      case 'stop':
        await fate.until;
        if (this.#isKilled) throw new Killed();
        return act();
      case 'kill':
        this.kill();
        throw new Killed();
      case 'killHalf':
        half?.();
        this.kill();
        throw new Killed();
      case 'killLate':
        if (later !== undefined) this.#disk.delay(later);
        this.kill();
        throw new Killed();
      case 'short':
        return half === undefined ? act() : half();
      case 'failAfter':
        act();
        throw new SystemError(fate.errno, call, path);
      case 'fail':
        throw new SystemError(fate.errno, call, path);
    }
  }

  /** Lock calls do not wait, so nothing can be stopped in them. */
  #stepAtOnce<T>(call: Call, path: string, act: () => T): T {
    if (this.#isKilled) throw new Killed();
    const step = { number: this.steps.length, call, path };
    this.steps.push(step);
    const fate = this.plan(step);
    switch (fate.kind) {
      case 'kill':
      case 'killHalf':
      case 'killLate':
        this.kill();
        throw new Killed();
      case 'failAfter':
        act();
        throw new SystemError(fate.errno, call, path);
      case 'fail':
        throw new SystemError(fate.errno, call, path);
      default:
        return act();
    }
  }

  /** A change of names that this host made. */
  #changed(path: string): void {
    this.#disk.changed(path);
    this.#host.forget(dirname(path));
  }

  #file(inode: Inode, path: string): LogFile {
    const disk = this.#disk;
    const owner = {};
    const put = (bytes: Uint8Array, position: number): number => {
      const end = Math.max(inode.bytes.length, position + bytes.length);
      const next = Buffer.alloc(end);
      inode.bytes.copy(next);
      next.set(bytes, position);
      inode.bytes = next;
      inode.writtenMs = disk.nowMs;
      return bytes.length;
    };
    const append = (bytes: Uint8Array): number => put(bytes, inode.bytes.length);
    const halfOf = (bytes: Uint8Array): Uint8Array => bytes.subarray(0, (bytes.length + 1) >> 1);
    return {
      facts: () =>
        this.#step('facts', path, (): FileFacts => {
          const { bytes, isRegular, id, writtenMs } = inode;
          return { bytes: bytes.length, isRegular, identity: String(id), writtenMs };
        }),
      read: (into, position) =>
        this.#step('read', path, () => {
          const bytes = inode.bytes.subarray(position, position + into.length);
          into.set(bytes);
          return bytes.length;
        }),
      append: (bytes) => {
        const position = inode.bytes.length;
        return this.#step(
          'append',
          path,
          () => append(bytes),
          () => append(halfOf(bytes)),
          () => put(bytes, position),
        );
      },
      overwrite: (bytes, position) =>
        this.#step(
          'overwrite',
          path,
          () => put(bytes, position),
          () => put(halfOf(bytes), position),
        ),
      empty: () =>
        this.#step('empty', path, () => {
          inode.bytes = Buffer.alloc(0);
          inode.lost = [];
          inode.writtenMs = disk.nowMs;
        }),
      sync: async () => {
        try {
          await this.#step('sync', path, () => {
            const durable = Buffer.from(inode.bytes);
            for (const [from, to] of inode.lost) durable.fill(0, from, to);
            inode.durable = durable;
          });
        } catch (error) {
          // After a failed fsync the pages count as clean: a later one does not write them, and does not say so.
          if (error instanceof SystemError) inode.lost.push([inode.durable.length, inode.bytes.length]);
          throw error;
        }
      },
      tryLock: () =>
        this.#stepAtOnce('tryLock', path, () => {
          if (inode.lock !== undefined && inode.lock !== owner) return false;
          inode.lock = owner;
          this.#held.set(owner, inode);
          return true;
        }),
      unlock: () =>
        this.#stepAtOnce('unlock', path, () => {
          if (inode.lock === owner) inode.lock = undefined;
        }),
      close: async () => {
        const giveBack = (): void => {
          if (inode.lock === owner) inode.lock = undefined;
          this.#held.delete(owner);
        };
        try {
          await this.#step('close', path, giveBack);
        } catch (error) {
          if (!(error instanceof SystemError)) throw error;
          giveBack();
        }
      },
    };
  }

  readonly files: LogFiles = {
    open: (path, purpose: OpenPurpose) =>
      this.#step('open', path, () => {
        const { names, directories, newInode } = this.#disk.inner;
        const existing = names.get(path);
        const makes = purpose === 'create' || purpose === 'token';
        if (!makes && this.#host.knowsAbsent(path, this.#disk.changedAt(dirname(path)))) {
          throw new SystemError('ENOENT', 'open', path);
        }
        if (existing !== undefined) {
          if (purpose === 'create') throw new SystemError('EEXIST', 'open', path);
          return this.#file(existing, path);
        }
        if (!makes || !directories.has(dirname(path))) throw new SystemError('ENOENT', 'open', path);
        const inode = newInode(true);
        names.set(path, inode);
        this.#changed(path);
        return this.#file(inode, path);
      }),
    identify: (path) =>
      this.#step('identify', path, () => {
        const { names, directories } = this.#disk.inner;
        if (directories.has(path)) return `directory ${path}`;
        const inode = names.get(path);
        return inode && String(inode.id);
      }),
    changedAt: (directory) => this.#step('changedAt', directory, () => this.#disk.changedAt(directory)),
    list: (directory) =>
      this.#step('list', directory, () => {
        if (!this.#disk.inner.directories.has(directory)) throw new SystemError('ENOENT', 'list', directory);
        const read = (): readonly string[] =>
          this.#disk.pathsBelow(directory).map((path) => path.slice(directory.length + 1));
        return [...this.#host.list(directory, this.#disk.changedAt(directory), read)];
      }),
    freeBytes: (path) => this.#step('freeBytes', path, () => this.#disk.freeBytes),
    link: (existing, path) =>
      this.#step('link', path, () => {
        const { names } = this.#disk.inner;
        const inode = names.get(existing);
        if (inode === undefined) throw new SystemError('ENOENT', 'link', existing);
        if (names.has(path)) throw new SystemError('EEXIST', 'link', path);
        names.set(path, inode);
        this.#changed(path);
      }),
    rename: (from, to) =>
      this.#step('rename', to, () => {
        const { names } = this.#disk.inner;
        const inode = names.get(from);
        if (inode === undefined) throw new SystemError('ENOENT', 'rename', from);
        names.delete(from);
        names.set(to, inode);
        this.#changed(from);
        this.#changed(to);
      }),
    unlink: (path) =>
      this.#step('unlink', path, () => {
        if (!this.#disk.inner.names.delete(path)) throw new SystemError('ENOENT', 'unlink', path);
        this.#changed(path);
      }),
    syncDirectory: (path) =>
      this.#step('syncDirectory', path, () => {
        const { names, durableNames } = this.#disk.inner;
        const isIn = (name: string): boolean => dirname(name) === path;
        for (const name of [...durableNames.keys()]) if (isIn(name)) durableNames.delete(name);
        for (const [name, inode] of names) if (isIn(name)) durableNames.set(name, inode);
      }),
    makeDirectory: (path) =>
      this.#step('makeDirectory', path, () => {
        this.#disk.addDirectory(path);
      }),
  };
}
