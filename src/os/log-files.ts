/**
 * The files of the lease log, as few operations as it needs. Each is one system call (or says which), none retries,
 * and every failure is the system's own error with its errno as `code`: what it means is for the log to say.
 */
import {
  type BigIntStats,
  close,
  closeSync,
  constants,
  fstat,
  fstatSync,
  fsync,
  ftruncate,
  ftruncateSync,
  link,
  linkSync,
  lstat,
  lstatSync,
  mkdir,
  mkdirSync,
  open,
  openSync,
  read,
  readdir,
  readdirSync,
  readSync,
  rename,
  renameSync,
  type Stats,
  type StatsFs,
  statfs,
  statfsSync,
  unlink,
  unlinkSync,
  write,
  writeSync,
} from 'node:fs';
import { promisify } from 'node:util';
import { type Answer, after, attempt } from '../base/answer.ts';
import { errnoOf } from '../base/errors.ts';
import { requireRootOnlyWrites } from './files.ts';
import { tryLockFile, unlockFile } from './lock.ts';

export type FileFacts = {
  readonly bytes: number;
  readonly isRegular: boolean;
  /** The same for the same inode as long as it is open. */
  readonly identity: string;
  /** The storage's clock at the last write, milliseconds since 1970. */
  readonly writtenMs: number;
};

export type LogFile = {
  facts(): Answer<FileFacts>;
  /** Fewer bytes than asked for may come before the end of the file; 0 only at the end. */
  read(into: Uint8Array, position: number): Answer<number>;
  /** Writes at the end of the file as the system knows it, maybe fewer bytes than given. */
  append(bytes: Uint8Array): Answer<number>;
  /** Writes over what is there; only for files that no other host sees. */
  overwrite(bytes: Uint8Array, position: number): Answer<number>;
  /** Gives up all bytes; the name stays. */
  empty(): Answer<void>;
  sync(): Answer<void>;
  /** See tryLockFile. */
  tryLock(): boolean;
  unlock(): void;
  /**
   * Never fails: close(2) gives the descriptor and its lock back whatever it answers, and of data it could only say
   * what fsync has said before.
   */
  close(): Answer<void>;
};

/**
 * read: an existing file. append: an existing one, read as well. create: the same for a file that must not exist
 * yet. update: an existing one, read and overwritten. token: the same, made with mode 0600 where it is missing.
 */
export type OpenPurpose = 'read' | 'append' | 'create' | 'update' | 'token';

export type LogFiles = {
  /**
   * No link is followed, and what is not a regular file does not make the call hang. Throws XceError 'config-unsafe'
   * for a file that others than root may write.
   */
  open(path: string, purpose: OpenPurpose): Answer<LogFile>;
  /** `identity` of what a name stands for now; undefined where there is no such name. */
  identify(path: string): Answer<string | undefined>;
  /** When names in a directory were last changed, as its storage tells it. Only to be held against another answer. */
  changedAt(directory: string): Answer<string>;
  /** Opens the directory anew and returns its names. Throws 'config-unsafe' where others than root may write. */
  list(directory: string): Answer<readonly string[]>;
  /** Room for more, as far as the file system says. */
  freeBytes(path: string): Answer<number>;
  link(existing: string, path: string): Answer<void>;
  rename(from: string, to: string): Answer<void>;
  unlink(path: string): Answer<void>;
  /** Makes the names in a directory durable. */
  syncDirectory(path: string): Answer<void>;
  /** Makes a directory, and the missing ones above it, with this mode; without effect when it is there. */
  makeDirectory(path: string, mode: number): Answer<void>;
};

type Calls = {
  close(fd: number): Answer<void>;
  fstat(fd: number): Answer<Stats>;
  fsync(fd: number): Answer<void>;
  ftruncate(fd: number, length: number): Answer<void>;
  link(existing: string, path: string): Answer<void>;
  lstat(path: string): Answer<Stats>;
  /** Undefined for a name that is not there. */
  lstatIfThere(path: string): Answer<Stats | undefined>;
  lstatBig(path: string): Answer<BigIntStats>;
  mkdir(path: string, options: { readonly recursive: true; readonly mode: number }): Answer<unknown>;
  open(path: string, flags: number, mode?: number): Answer<number>;
  read(fd: number, into: Uint8Array, from: number, length: number, position: number): Answer<number>;
  readdir(path: string): Answer<readonly string[]>;
  statfs(path: string): Answer<StatsFs>;
  rename(from: string, to: string): Answer<void>;
  unlink(path: string): Answer<void>;
  write(fd: number, bytes: Uint8Array, from: number, length: number, position: number | null): Answer<number>;
};

const lstatPooled = promisify(lstat);
const readPooled = promisify(read);
const writePooled = promisify(write);

/** Asked in the thread pool: storage that hangs holds up nobody but who asked. */
const pooled: Calls = {
  close: promisify(close),
  fstat: promisify(fstat),
  fsync: promisify(fsync),
  ftruncate: promisify<number, number>(ftruncate),
  link: promisify(link),
  lstat: lstatPooled,
  lstatIfThere: async (path) => {
    try {
      return await lstatPooled(path);
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return undefined;
      throw error;
    }
  },
  lstatBig: (path) => lstatPooled(path, { bigint: true }),
  mkdir: promisify(mkdir),
  open: promisify(open),
  read: async (...what) => (await readPooled(...what)).bytesRead,
  readdir: promisify(readdir),
  rename: promisify(rename),
  statfs: promisify(statfs),
  unlink: promisify(unlink),
  write: async (...what) => (await writePooled(...what)).bytesWritten,
};

/** Without the error: to make one takes longer than the call. */
const IF_THERE = { throwIfNoEntry: false } as const;

/**
 * Asked in place: the way to the thread pool and back takes longer than these calls on a disk of this host, and a busy
 * host makes it ten times longer. Only fsync waits for the disk itself.
 */
const inPlace: Calls = {
  close: closeSync,
  fstat: (fd) => fstatSync(fd),
  fsync: pooled.fsync,
  ftruncate: ftruncateSync,
  link: linkSync,
  lstat: (path) => lstatSync(path),
  lstatIfThere: (path) => lstatSync(path, IF_THERE),
  lstatBig: (path) => lstatSync(path, { bigint: true }),
  mkdir: mkdirSync,
  open: openSync,
  read: readSync,
  readdir: (path) => readdirSync(path),
  rename: renameSync,
  statfs: (path) => statfsSync(path),
  unlink: unlinkSync,
  write: writeSync,
};

/** See LogFile.close. */
const closeQuietly = (calls: Calls, fd: number): Answer<void> =>
  attempt(
    () => calls.close(fd),
    () => {
      // There is nothing to do about it, and nothing that it would change.
    },
  );

const { O_RDONLY, O_RDWR, O_APPEND, O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_DIRECTORY } = constants;
const FLAGS: Record<OpenPurpose, number> = {
  read: O_RDONLY,
  append: O_RDWR | O_APPEND,
  create: O_RDWR | O_APPEND | O_CREAT | O_EXCL,
  update: O_RDWR,
  token: O_RDWR | O_CREAT,
};

const identityOf = ({ dev, ino }: Pick<Stats, 'dev' | 'ino'>): string => `${dev}:${ino}`;

const factsOf = (stats: Stats): FileFacts => ({
  bytes: stats.size,
  isRegular: stats.isFile(),
  identity: identityOf(stats),
  writtenMs: stats.mtimeMs,
});

const fileOf = (calls: Calls, fd: number): LogFile => ({
  facts: () => after(calls.fstat(fd), factsOf),
  read: (into, position) => calls.read(fd, into, 0, into.length, position),
  append: (bytes) => calls.write(fd, bytes, 0, bytes.length, null),
  overwrite: (bytes, position) => calls.write(fd, bytes, 0, bytes.length, position),
  empty: () => calls.ftruncate(fd, 0),
  sync: () => calls.fsync(fd),
  tryLock: () => tryLockFile(fd),
  unlock: () => unlockFile(fd),
  close: () => closeQuietly(calls, fd),
});

const filesOf = (calls: Calls): LogFiles => ({
  open: async (path, purpose) => {
    const fd = await calls.open(path, FLAGS[purpose] | O_NOFOLLOW | O_NONBLOCK, 0o600);
    try {
      // A checksum is no secret: whoever may write the log may forge leases.
      requireRootOnlyWrites(path)(await calls.fstat(fd));
    } catch (error) {
      await closeQuietly(calls, fd);
      throw error;
    }
    return fileOf(calls, fd);
  },
  identify: (path) => after(calls.lstatIfThere(path), (stats) => stats && identityOf(stats)),
  changedAt: async (directory) => String((await calls.lstatBig(directory)).ctimeNs),
  list: async (directory) => {
    requireRootOnlyWrites(directory)(await calls.lstat(directory));
    return await calls.readdir(directory);
  },
  freeBytes: async (path) => {
    const { bavail, bsize } = await calls.statfs(path);
    return bavail * bsize;
  },
  link: calls.link,
  rename: calls.rename,
  unlink: calls.unlink,
  syncDirectory: async (path) => {
    const fd = await calls.open(path, O_RDONLY | O_DIRECTORY);
    try {
      await calls.fsync(fd);
    } finally {
      await closeQuietly(calls, fd);
    }
  },
  makeDirectory: async (path, mode) => {
    await calls.mkdir(path, { recursive: true, mode });
  },
});

/** For storage that other hosts see as well. */
export const logFiles: LogFiles = filesOf(pooled);

/** For this host's own disk. */
export const hostFiles: LogFiles = filesOf(inPlace);
