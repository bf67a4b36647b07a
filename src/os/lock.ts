import fsNativeExtensions from 'fs-native-extensions';
import { errnoOf } from '../base/errors.ts';

/**
 * Asks once for the exclusive lock on a whole file that belongs to this open file description (F_OFD_SETLK,
 * fcntl(2)): it excludes other descriptors in this process as well, survives the closing of another one, and ends
 * with the last copy of the descriptor. False when another holds it. Throws the system's error, with its errno as
 * `code`, when there is no such lock here; no other kind of lock is tried.
 */
export const tryLockFile = (fd: number): boolean => {
  try {
    return fsNativeExtensions.tryLock(fd);
  } catch (error) {
    // fcntl(2) allows either errno for a lock that is held.
    if (errnoOf(error) === 'EACCES') return false;
    throw error;
  }
};

/** Throws the system's error. On FUSE file systems a lock must be given back by this, not by closing. */
export const unlockFile = (fd: number): void => {
  fsNativeExtensions.unlock(fd);
};
