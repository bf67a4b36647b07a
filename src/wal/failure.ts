/** What a failed system call means for the log, and what takes several calls to be done. */
import { dirname } from 'node:path';
import { type Answer, after, attempt } from '../base/answer.ts';
import { errnoOf, XceError } from '../base/errors.ts';
import type { LogFile, LogFiles } from '../os/log-files.ts';
import { adviseOnStorage } from './damage.ts';

/** The errno, or what the system says where Node has no name for it. */
export const reasonOf = (error: unknown): string =>
  errnoOf(error) ?? (error instanceof Error ? error.message : String(error));

/** Wraps an error of the storage; one that has a code of ours passes through. */
export const storageFailure = (what: string, path: string, error: unknown): XceError =>
  error instanceof XceError
    ? error
    : new XceError('log-io', `cannot ${what} ${path}: ${reasonOf(error)}`, {
        at: path,
        next: adviseOnStorage(errnoOf(error), path),
        cause: error,
      });

/** Runs one step of the storage; its failure says what could not be done. */
export const onStorage = <T>(what: string, path: string, step: () => Answer<T>): Answer<T> =>
  attempt(step, (error) => {
    throw storageFailure(what, path, error);
  });

/** Answers to a lock call that say there is no such lock here, and not that the storage is in trouble. */
const NO_LOCK = ['ENOLCK', 'ENOSYS', 'EOPNOTSUPP', 'ENOTSUP', 'EBADF', 'EINVAL', 'EPERM'];

export const lockFailure = (path: string, error: unknown): XceError =>
  NO_LOCK.includes(errnoOf(error) ?? '')
    ? new XceError('storage-unfit', `no cluster-wide lock on ${path}: ${reasonOf(error)}`, {
        at: path,
        unchanged: 'nothing was written to the lease log',
        next: 'mount the storage with locks that hold for the whole cluster (no nolock, no local_lock)',
        cause: error,
      })
    : storageFailure('lock', path, error);

/** Answers to link(2) that say the file system has no hard links. */
const NO_LINK = ['EPERM', 'ENOSYS', 'EOPNOTSUPP', 'ENOTSUP', 'EMLINK'];

export const linkFailure = (path: string, error: unknown): XceError =>
  NO_LINK.includes(errnoOf(error) ?? '')
    ? new XceError('storage-unfit', `no hard link can be made to ${path}: ${reasonOf(error)}`, {
        at: path,
        cause: error,
      })
    : storageFailure('create', path, error);

/** Whether there was such a name. Throws the system's error, but not for a name that is gone already. */
export const unlinkIfThere = async (files: LogFiles, path: string): Promise<boolean> => {
  try {
    await files.unlink(path);
    return true;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return false;
    throw error;
  }
};

/** A system call may take fewer bytes than it was given; one that takes none would be asked for ever. */
const writeAll = (
  bytes: Uint8Array,
  write: (rest: Uint8Array, done: number) => Answer<number>,
  done = 0,
): Answer<void> =>
  done === bytes.length
    ? undefined
    : after(write(done === 0 ? bytes : bytes.subarray(done), done), (count) => {
        if (count === 0) throw new Error('the system wrote nothing');
        return writeAll(bytes, write, done + count);
      });

/** Appends all of the bytes. Throws the system's error. */
export const appendAll = (file: LogFile, bytes: Uint8Array): Answer<void> =>
  writeAll(bytes, (rest) => file.append(rest));

/** Writes all of the bytes over what stands at a position. Throws the system's error. */
export const overwriteAll = (file: LogFile, bytes: Uint8Array, position: number): Answer<void> =>
  writeAll(bytes, (rest, done) => file.overwrite(rest, position + done));

/**
 * Makes or replaces a file of this host, in a directory for root alone, as one step that survives a crash. Throws the
 * system's error.
 */
export const replaceHostFile = async (
  files: LogFiles,
  path: string,
  processId: number,
  bytes: Uint8Array,
): Promise<void> => {
  const temporary = `${path}.new-${processId}`;
  await files.makeDirectory(dirname(path), 0o700);
  await unlinkIfThere(files, temporary);
  const file = await files.open(temporary, 'create');
  try {
    await appendAll(file, bytes);
    await file.sync();
  } finally {
    await file.close();
  }
  await files.rename(temporary, path);
  await files.syncDirectory(dirname(path));
};
