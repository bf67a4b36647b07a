import { createRequire } from 'node:module';
import { errnoOf } from '../base/errors.ts';

/** Of the whole file where offset and length are 0. */
type Binding = {
  /** Throws EAGAIN when another holds it. */
  tryLock(fd: number, offset: number, length: number, exclusive: boolean): void;
  unlock(fd: number, offset: number, length: number): void;
};

/** By its path: the search of the package for its own binary costs a third of the start of Node. */
const binding: Binding = createRequire(import.meta.url)(
  `fs-native-extensions/prebuilds/linux-${process.arch}/fs-native-extensions.node`,
);

/**
 * Asks once for the exclusive lock on a whole file that belongs to this open file description (F_OFD_SETLK,
 * fcntl(2)): it excludes other descriptors in this process as well, survives the closing of another one, and ends
 * with the last copy of the descriptor. False when another holds it. Throws the system's error, with its errno as
 * `code`, when there is no such lock here; no other kind of lock is tried.
 */
export const tryLockFile = (fd: number): boolean => {
  try {
    binding.tryLock(fd, 0, 0, true);
    return true;
  } catch (error) {
    // fcntl(2) allows either errno for a lock that is held.
    const errno = errnoOf(error);
    if (errno === 'EAGAIN' || errno === 'EACCES') return false;
    throw error;
  }
};

/** Throws the system's error. On FUSE file systems a lock must be given back by this, not by closing. */
export const unlockFile = (fd: number): void => {
  binding.unlock(fd, 0, 0);
};
