/** A file of this host as the lock of what stands beside it. */
import { closeSync, constants, openSync } from 'node:fs';
import { errnoOf, XceError } from '../base/errors.ts';
import { tryLockFile } from './lock.ts';

/**
 * Runs `use` while nobody else on this host does so with the same file, which must exist. The kernel gives the lock
 * back when the process ends, however it ends. Throws `busy` at once when another has it, and XceError 'io'.
 */
export const withLockedFile = async <T>(path: string, busy: XceError, use: () => Promise<T>): Promise<T> => {
  let fd: number | undefined;
  let isLocked: boolean;
  try {
    fd = openSync(path, constants.O_RDWR | constants.O_NOFOLLOW | constants.O_NONBLOCK);
    isLocked = tryLockFile(fd);
  } catch (error) {
    if (fd !== undefined) closeSync(fd);
    throw new XceError('io', `cannot lock ${path}: ${errnoOf(error) ?? String(error)}`, {
      at: path,
      cause: error,
    });
  }
  try {
    if (!isLocked) throw busy;
    return await use();
  } finally {
    closeSync(fd);
  }
};
