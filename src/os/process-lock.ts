import { closeSync, constants, openSync } from 'node:fs';
import koffi from 'koffi';
import { errnoOf, XceError } from '../base/errors.ts';
import { ERRNO, errnoName } from './libc.ts';

const flock: (fd: number, operation: number) => number = koffi
  .load('libc.so.6')
  .func('int flock(int fd, int operation)');

/** LOCK_EX | LOCK_NB, flock(2). */
const EXCLUSIVE_AT_ONCE = 2 | 4;

/**
 * Takes a lock file of this host that the kernel gives back when the process ends, however it ends. False when
 * another process has it. Not for shared storage: flock(2) is local. Throws XceError 'os'.
 */
export const holdProcessLock = (path: string): boolean => {
  let fd: number;
  try {
    fd = openSync(path, constants.O_RDWR | constants.O_CREAT | constants.O_NOFOLLOW, 0o600);
  } catch (error) {
    throw new XceError('os', `cannot open ${path}: ${errnoOf(error) ?? String(error)}`, {
      at: path,
      cause: error,
    });
  }
  // The descriptor stays open, and with it the lock, until the process ends.
  if (flock(fd, EXCLUSIVE_AT_ONCE) === 0) return true;
  const errno = koffi.errno();
  closeSync(fd);
  if (errno === ERRNO['EWOULDBLOCK'] || errno === ERRNO['EAGAIN']) return false;
  throw new XceError('os', `cannot lock ${path}: ${errnoName(errno)}`, { at: path });
};
