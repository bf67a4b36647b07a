/**
 * The files of the lease log, as few operations as it needs. Each is one system call (or says which), none retries,
 * and every failure is the system's own error with its errno as `code`: what it means is for the log to say.
 */
import {
  close,
  constants,
  fstat,
  fsync,
  ftruncate,
  link,
  lstat,
  mkdir,
  open,
  read,
  readdir,
  rename,
  type Stats,
  statfs,
  unlink,
  write,
} from 'node:fs';
import { promisify } from 'node:util';
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
  facts(): Promise<FileFacts>;
  /** Fewer bytes than asked for may come before the end of the file; 0 only at the end. */
  read(into: Uint8Array, position: number): Promise<number>;
  /** Writes at the end of the file as the system knows it, maybe fewer bytes than given. */
  append(bytes: Uint8Array): Promise<number>;
  /** Writes over what is there; only for files that no other host sees. */
  overwrite(bytes: Uint8Array, position: number): Promise<number>;
  /** Gives up all bytes; the name stays. */
  empty(): Promise<void>;
  sync(): Promise<void>;
  /** See tryLockFile. */
  tryLock(): boolean;
  unlock(): void;
  /**
   * Never fails: close(2) gives the descriptor and its lock back whatever it answers, and of data it could only say
   * what fsync has said before.
   */
  close(): Promise<void>;
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
  open(path: string, purpose: OpenPurpose): Promise<LogFile>;
  /** `identity` of what a name stands for now. */
  identify(path: string): Promise<string>;
  /** When names in a directory were last changed, as its storage tells it. Only to be held against another answer. */
  changedAt(directory: string): Promise<string>;
  /** Opens the directory anew and returns its names. Throws 'config-unsafe' where others than root may write. */
  list(directory: string): Promise<readonly string[]>;
  /** Room for more, as far as the file system says. */
  freeBytes(path: string): Promise<number>;
  link(existing: string, path: string): Promise<void>;
  rename(from: string, to: string): Promise<void>;
  unlink(path: string): Promise<void>;
  /** Makes the names in a directory durable. */
  syncDirectory(path: string): Promise<void>;
  /** Makes a directory, and the missing ones above it, with this mode; without effect when it is there. */
  makeDirectory(path: string, mode: number): Promise<void>;
};

const calls = {
  close: promisify(close),
  fstat: promisify(fstat),
  fsync: promisify(fsync),
  ftruncate: promisify<number, number>(ftruncate),
  link: promisify(link),
  lstat: promisify(lstat),
  mkdir: promisify(mkdir),
  open: promisify(open),
  read: promisify(read),
  readdir: promisify(readdir),
  rename: promisify(rename),
  statfs: promisify(statfs),
  unlink: promisify(unlink),
  write: promisify(write),
};

/** See LogFile.close. */
const closeQuietly = async (fd: number): Promise<void> => {
  try {
    await calls.close(fd);
  } catch {
    // There is nothing to do about it, and nothing that it would change.
  }
};

const { O_RDONLY, O_RDWR, O_APPEND, O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_DIRECTORY } = constants;
const FLAGS: Record<OpenPurpose, number> = {
  read: O_RDONLY,
  append: O_RDWR | O_APPEND,
  create: O_RDWR | O_APPEND | O_CREAT | O_EXCL,
  update: O_RDWR,
  token: O_RDWR | O_CREAT,
};

const identityOf = ({ dev, ino }: Pick<Stats, 'dev' | 'ino'>): string => `${dev}:${ino}`;

const fileOf = (fd: number): LogFile => ({
  facts: async () => {
    const facts = await calls.fstat(fd);
    return {
      bytes: facts.size,
      isRegular: facts.isFile(),
      identity: identityOf(facts),
      writtenMs: facts.mtimeMs,
    };
  },
  read: async (into, position) => (await calls.read(fd, into, 0, into.length, position)).bytesRead,
  append: async (bytes) => (await calls.write(fd, bytes, 0, bytes.length, null)).bytesWritten,
  overwrite: async (bytes, position) =>
    (await calls.write(fd, bytes, 0, bytes.length, position)).bytesWritten,
  empty: () => calls.ftruncate(fd, 0),
  sync: () => calls.fsync(fd),
  tryLock: () => tryLockFile(fd),
  unlock: () => unlockFile(fd),
  close: () => closeQuietly(fd),
});

/** The real ones. */
export const logFiles: LogFiles = {
  open: async (path, purpose) => {
    const fd = await calls.open(path, FLAGS[purpose] | O_NOFOLLOW | O_NONBLOCK, 0o600);
    try {
      // A checksum is no secret: whoever may write the log may forge leases.
      requireRootOnlyWrites(path)(await calls.fstat(fd));
    } catch (error) {
      await closeQuietly(fd);
      throw error;
    }
    return fileOf(fd);
  },
  identify: async (path) => identityOf(await calls.lstat(path)),
  changedAt: async (directory) => String((await calls.lstat(directory, { bigint: true })).ctimeNs),
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
      await closeQuietly(fd);
    }
  },
  makeDirectory: async (path, mode) => {
    await calls.mkdir(path, { recursive: true, mode });
  },
};
