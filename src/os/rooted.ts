/**
 * Directories reached from the root component by component, no link followed, through directories that only
 * root can change. Node has no openat(2); a path through /proc/self/fd/N is the same thing: the kernel starts
 * at the open directory itself, whatever its name has become.
 */
import {
  chmodSync,
  chownSync,
  closeSync,
  constants,
  fstatSync,
  lstatSync,
  mkdirSync,
  openSync,
  type Stats,
} from 'node:fs';
import { errnoOf, XceError } from '../base/errors.ts';
import { O_PATH } from './open-flags.ts';

const OPEN_DIRECTORY = O_PATH | constants.O_DIRECTORY | constants.O_NOFOLLOW;
const STICKY = 0o1000;
const OTHERS_WRITE = 0o022;
const DEPTH_MAX = 128;

/** An open directory (O_PATH). Whoever gets one closes it. */
export type DirectoryHandle = { readonly fd: number; readonly path: string };

export const closeDirectory = (directory: DirectoryHandle): void => {
  closeSync(directory.fd);
};

const refuse = (path: string, why: string): XceError =>
  new XceError('sandbox-refused', `${path} ${why}`, { at: path });

const openOne = (at: string, path: string): number => {
  try {
    return openSync(at, OPEN_DIRECTORY);
  } catch (error) {
    const errno = errnoOf(error);
    if (errno === 'ENOTDIR' || errno === 'ELOOP')
      throw refuse(path, 'is not a directory (links are not followed)');
    throw refuse(path, `cannot be opened: ${errno ?? String(error)}`);
  }
};

/** Whether nobody but root can replace a name in the directory that root made there. */
const isRootsAlone = (facts: Stats): boolean =>
  facts.uid === 0 && ((facts.mode & OTHERS_WRITE) === 0 || (facts.mode & STICKY) !== 0);

const componentsOf = (path: string): readonly string[] => {
  const parts = path.split('/').filter((part) => part !== '');
  if (!path.startsWith('/') || parts.length > DEPTH_MAX || parts.includes('.') || parts.includes('..')) {
    throw refuse(path, 'is not an absolute path without . and ..');
  }
  return parts;
};

/**
 * Opens a directory whose parents all belong to root and can be changed by root alone (a sticky directory
 * counts: what root made in it stays). `last` says what the directory itself must be. Throws XceError
 * 'sandbox-refused'.
 */
export const openRooted = (path: string, last: 'roots' | 'anyones'): DirectoryHandle => {
  const parts = componentsOf(path);
  let here: DirectoryHandle = { fd: openOne('/', '/'), path: '/' };
  try {
    for (const part of parts) {
      if (!isRootsAlone(fstatSync(here.fd))) throw refuse(here.path, 'can be changed by others than root');
      const next = here.path === '/' ? `/${part}` : `${here.path}/${part}`;
      const fd = openOne(`/proc/self/fd/${here.fd}/${part}`, next);
      closeDirectory(here);
      here = { fd, path: next };
    }
    if (last === 'roots' && !isRootsAlone(fstatSync(here.fd))) {
      throw refuse(here.path, 'can be changed by others than root');
    }
    return here;
  } catch (error) {
    closeDirectory(here);
    throw error;
  }
};

export type Ownership = { readonly uid: number; readonly gid: number; readonly mode: number };

/**
 * Makes a directory in an open one, or takes the one that is there if root or the wanted owner owns it, and
 * gives it the owner and at least the bits of `mode`. Several hosts may do so at the same time: a directory that is still root's is one
 * that another host has just made. Throws XceError 'sandbox-exists' for anything else of that name.
 */
export const ensureDirectory = (parent: DirectoryHandle, name: string, owner: Ownership): DirectoryHandle => {
  const at = `/proc/self/fd/${parent.fd}/${name}`;
  const path = `${parent.path}/${name}`;
  try {
    mkdirSync(at, 0o700);
  } catch (error) {
    if (errnoOf(error) !== 'EEXIST') throw refuse(path, `cannot be made: ${errnoOf(error) ?? String(error)}`);
  }
  const facts = lstatSync(at);
  if (!facts.isDirectory())
    throw new XceError('sandbox-exists', `${path} is there and not a directory`, { at: path });
  const fd = openOne(at, path);
  try {
    const opened = fstatSync(fd);
    const ours = opened.uid === owner.uid && opened.gid === owner.gid;
    if (!ours && opened.uid !== 0) {
      throw new XceError('sandbox-exists', `${path} belongs to uid ${opened.uid}, not to ${owner.uid}`, {
        at: path,
      });
    }
    // The descriptor is O_PATH; its /proc name leads to the very directory and nowhere else.
    const self = `/proc/self/fd/${fd}`;
    if (!ours) chownSync(self, owner.uid, owner.gid);
    if ((opened.mode & owner.mode) !== owner.mode) chmodSync(self, (opened.mode & 0o7777) | owner.mode);
    const after = fstatSync(fd);
    if (after.uid !== owner.uid || after.gid !== owner.gid || (after.mode & owner.mode) !== owner.mode) {
      throw refuse(path, 'does not keep the owner and mode that root gives it (is root squashed here?)');
    }
    return { fd, path };
  } catch (error) {
    closeSync(fd);
    if (error instanceof XceError) throw error;
    throw refuse(path, `cannot be given to uid ${owner.uid}: ${errnoOf(error) ?? String(error)}`);
  }
};

/** Gives an open directory of root's exactly this owner and mode. Throws XceError 'sandbox-refused'. */
export const setOwner = (directory: DirectoryHandle, owner: Ownership): void => {
  const { fd, path } = directory;
  const self = `/proc/self/fd/${fd}`;
  try {
    chownSync(self, owner.uid, owner.gid);
    chmodSync(self, owner.mode);
  } catch (error) {
    throw refuse(path, `cannot be given its owner and mode: ${errnoOf(error) ?? String(error)}`);
  }
  const after = fstatSync(fd);
  if (after.uid !== owner.uid || after.gid !== owner.gid || (after.mode & 0o7777) !== owner.mode) {
    throw refuse(path, 'does not keep the owner and mode that root gives it (is root squashed here?)');
  }
};
