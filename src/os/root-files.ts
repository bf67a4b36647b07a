/**
 * Small files and directories in places that only root can write (below /run, mostly). Paths are our own; the
 * functions that remove are idempotent. Failures are XceError 'os' or 'sandbox-exists'.
 */
import {
  closeSync,
  constants,
  fchmodSync,
  fchownSync,
  fstatSync,
  fsyncSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readlinkSync,
  realpathSync,
  rmdirSync,
  type Stats,
  symlinkSync,
  unlinkSync,
} from 'node:fs';
import { dirname } from 'node:path';
import { errnoOf, XceError } from '../base/errors.ts';
import { readBounded, syncDirectory, writeAll } from './files.ts';

export type Owner = { readonly uid: number; readonly gid: number; readonly mode: number };

const failed = (what: string, path: string, error: unknown): XceError =>
  new XceError('os', `cannot ${what} ${path}: ${errnoOf(error) ?? String(error)}`, {
    at: path,
    cause: error,
  });

const ENTRIES_MAX = 1 << 20;

/** Opens a directory that stands under this very name. */
const openDirectory = (path: string, owner: Owner): number => {
  try {
    return openSync(path, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
  } catch (error) {
    const errno = errnoOf(error);
    throw errno === 'ENOTDIR' || errno === 'ELOOP'
      ? foreignDirectory(path, owner)
      : failed('open', path, error);
  }
};

const foreignDirectory = (path: string, { uid }: Owner): XceError =>
  new XceError('sandbox-exists', `${path} is there and not a directory of uid ${uid}`, { at: path });

/** Makes a directory, or takes the one of that name if it has that owner; gives it mode and owner. */
export const makeDirectory = (path: string, owner: Owner): void => {
  let isNew = true;
  try {
    mkdirSync(path, 0o700);
  } catch (error) {
    if (errnoOf(error) !== 'EEXIST') throw failed('make', path, error);
    isNew = false;
  }
  const fd = openDirectory(path, owner);
  try {
    if (isNew) fchownSync(fd, owner.uid, owner.gid);
    const facts = fstatSync(fd);
    if (facts.uid !== owner.uid || facts.gid !== owner.gid) throw foreignDirectory(path, owner);
    if ((facts.mode & 0o7777) !== owner.mode) fchmodSync(fd, owner.mode);
  } catch (error) {
    throw error instanceof XceError ? error : failed('make', path, error);
  } finally {
    closeSync(fd);
  }
};

/** Makes a directory of this process's owner, and those above it, where they do not exist. */
export const makeDirectories = (path: string, mode: number): void => {
  try {
    mkdirSync(path, { recursive: true, mode });
  } catch (error) {
    throw failed('make', path, error);
  }
};

/**
 * Makes a new file with all its bytes, which survives a crash if it is `durable`. False when the name is taken.
 * Leaves nothing when it throws.
 */
export const createFile = (
  path: string,
  bytes: Uint8Array,
  owner: Owner,
  kind: 'durable' | 'volatile' = 'volatile',
): boolean => {
  let fd: number;
  try {
    fd = openSync(
      path,
      constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW,
      0o600,
    );
  } catch (error) {
    if (errnoOf(error) === 'EEXIST') return false;
    throw failed('make', path, error);
  }
  try {
    writeAll(fd, bytes);
    fchownSync(fd, owner.uid, owner.gid);
    fchmodSync(fd, owner.mode);
    if (kind === 'durable') {
      fsyncSync(fd);
      syncDirectory(dirname(path));
    }
  } catch (error) {
    unlinkSync(path);
    throw failed('write', path, error);
  } finally {
    closeSync(fd);
  }
  return true;
};

/** Makes a symbolic link. False when the name is taken. */
export const createLink = (path: string, target: string): boolean => {
  try {
    symlinkSync(target, path);
    return true;
  } catch (error) {
    if (errnoOf(error) === 'EEXIST') return false;
    throw failed('make', path, error);
  }
};

/** What a link says; undefined when there is none of that name, or no link. */
export const readLink = (path: string): string | undefined => {
  try {
    return readlinkSync(path);
  } catch (error) {
    const errno = errnoOf(error);
    if (errno === 'ENOENT' || errno === 'EINVAL' || errno === 'ENOTDIR') return undefined;
    throw failed('read', path, error);
  }
};

/** The bytes of a file, or undefined where there is none. */
export const readFileIfThere = (path: string, bytesMax: number): Buffer | undefined =>
  kindOf(path) === 'none' ? undefined : readBounded(path, bytesMax);

/** What has that name, the name itself and not what a link leads to. */
export const kindOf = (path: string): 'none' | 'file' | 'directory' | 'link' | 'other' => {
  try {
    const facts = lstatSync(path);
    if (facts.isFile()) return 'file';
    if (facts.isDirectory()) return 'directory';
    return facts.isSymbolicLink() ? 'link' : 'other';
  } catch (error) {
    const errno = errnoOf(error);
    if (errno === 'ENOENT' || errno === 'ENOTDIR') return 'none';
    throw failed('look at', path, error);
  }
};

/** lstat(2) of a directory; undefined for anything else, a link to one included. */
const lookAtDirectory = (path: string): Stats | undefined => {
  try {
    const facts = lstatSync(path);
    return facts.isDirectory() ? facts : undefined;
  } catch (error) {
    const errno = errnoOf(error);
    if (errno === 'ENOENT' || errno === 'ENOTDIR' || errno === 'ESRCH') return undefined;
    throw failed('look at', path, error);
  }
};

/** What tells a directory from every other one of this host; undefined for anything else. */
export const identityOfDirectory = (path: string): string | undefined => {
  const facts = lookAtDirectory(path);
  return facts && `${facts.dev}:${facts.ino}`;
};

/** Owner and mode of a directory; undefined for anything else. */
export const ownerOfDirectory = (path: string): Owner | undefined => {
  const facts = lookAtDirectory(path);
  return facts && { uid: facts.uid, gid: facts.gid, mode: facts.mode & 0o7777 };
};

/** The names in a directory; none where there is no such directory. */
export const listNames = (path: string): readonly string[] => {
  try {
    const names = readdirSync(path);
    if (names.length > ENTRIES_MAX) throw new XceError('too-large', `${path} has ${names.length} entries`);
    return names;
  } catch (error) {
    const errno = errnoOf(error);
    if (errno === 'ENOENT' || errno === 'ENOTDIR') return [];
    throw error instanceof XceError ? error : failed('list', path, error);
  }
};

/** Where a path leads to in the end; undefined where it leads nowhere. */
export const resolvePath = (path: string): string | undefined => {
  try {
    return realpathSync(path);
  } catch (error) {
    const errno = errnoOf(error);
    if (errno === 'ENOENT' || errno === 'ELOOP' || errno === 'ENOTDIR') return undefined;
    throw failed('follow', path, error);
  }
};

/** The device nodes that a path or a path with `*` in its last component names; ones that are absent are not there. */
export const listDevices = (pattern: string): readonly string[] => {
  const slash = pattern.lastIndexOf('/');
  const directory = pattern.slice(0, slash);
  const last = pattern.slice(slash + 1);
  const shape = new RegExp(`^${last.replaceAll(/[.+?^${}()|[\]\\]/g, '\\$&').replaceAll('*', '[^/]*')}$`);
  const names = last.includes('*') ? listNames(directory).filter((name) => shape.test(name)) : [last];
  return names
    .map((name) => `${directory}/${name}`)
    .filter((path) => {
      try {
        const facts = lstatSync(path);
        return facts.isCharacterDevice() || facts.isBlockDevice();
      } catch (error) {
        if (errnoOf(error) === 'ENOENT') return false;
        throw failed('look at', path, error);
      }
    })
    .toSorted();
};

/** Removes a name that is not a directory. */
export const removeFile = (path: string): void => {
  try {
    unlinkSync(path);
  } catch (error) {
    if (errnoOf(error) !== 'ENOENT') throw failed('remove', path, error);
  }
};

/** Removes a directory that holds nothing. */
export const removeDirectory = (path: string): void => {
  try {
    rmdirSync(path);
  } catch (error) {
    if (errnoOf(error) !== 'ENOENT') throw failed('remove', path, error);
  }
};
