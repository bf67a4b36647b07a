/**
 * A private directory of small files, each written as one step that survives a crash. Only root may enter it,
 * so its names can be trusted; what stands in the files still has to check when it is read.
 */
import { closeSync, constants, fstatSync, mkdirSync, openSync, readdirSync, unlinkSync } from 'node:fs';
import { join } from 'node:path';
import { errnoOf, XceError } from '../base/errors.ts';
import { readBounded, replaceFile, syncDirectory } from './files.ts';

export type StateFiles = {
  /** The bytes of a file, or undefined when there is none. Throws XceError 'io' or 'too-large'. */
  read(name: string): Buffer | undefined;
  /** Replaces or makes a file. When it returns the new bytes are durable; when it throws, the old or the new are. */
  write(name: string, bytes: Uint8Array): void;
  /** Removes a file durably; without effect when there is none. */
  remove(name: string): void;
  /** Names of all files, in no order. */
  list(): readonly string[];
};

const NAME = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$/;
/** replaceFile's temporary; one that is seen here is what a killed process left. */
const TEMPORARY = /\.new-\d+$/;

const failed = (path: string, what: string, error: unknown): XceError =>
  error instanceof XceError
    ? error
    : new XceError('io', `cannot ${what} ${path}: ${errnoOf(error) ?? String(error)}`, {
        at: path,
        cause: error,
      });

const makeDirectory = (path: string): void => {
  try {
    mkdirSync(path, { mode: 0o700 });
  } catch (error) {
    if (errnoOf(error) !== 'EEXIST') throw failed(path, 'make', error);
    return;
  }
  syncDirectory(join(path, '..'));
};

const checkDirectory = (path: string): void => {
  let fd: number;
  try {
    fd = openSync(path, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
  } catch (error) {
    throw failed(path, 'open', error);
  }
  try {
    const facts = fstatSync(fd);
    if (facts.uid !== process.geteuid?.() || (facts.mode & 0o7777) !== 0o700) {
      throw new XceError('config-unsafe', `${path} must belong to root with mode 0700`, {
        at: path,
        next: `chown root:root ${path} && chmod 0700 ${path}`,
      });
    }
  } finally {
    closeSync(fd);
  }
};

/**
 * Opens a directory of state, making its last component where it is missing, and refuses one that others may
 * enter. Throws XceError 'io' or 'config-unsafe'.
 */
export const openStateFiles = (directory: string, fileBytesMax: number): StateFiles => {
  makeDirectory(directory);
  checkDirectory(directory);
  const pathOf = (name: string): string => {
    if (!NAME.test(name) || TEMPORARY.test(name)) {
      throw new XceError('bug', `internal rule broken: ${JSON.stringify(name)} is no name of a state file`);
    }
    return join(directory, name);
  };
  const removeFile = (path: string): void => {
    try {
      unlinkSync(path);
    } catch (error) {
      if (errnoOf(error) !== 'ENOENT') throw failed(path, 'remove', error);
    }
  };
  const listAll = (): readonly string[] => {
    try {
      return readdirSync(directory);
    } catch (error) {
      throw failed(directory, 'list', error);
    }
  };
  for (const name of listAll()) if (TEMPORARY.test(name)) removeFile(join(directory, name));
  return {
    read: (name) => {
      const path = pathOf(name);
      try {
        return readBounded(path, fileBytesMax);
      } catch (error) {
        if (error instanceof XceError && errnoOf(error.facts.cause) === 'ENOENT') return undefined;
        throw failed(path, 'read', error);
      }
    },
    write: (name, bytes) => {
      const path = pathOf(name);
      if (bytes.length > fileBytesMax) {
        throw new XceError('too-large', `${path} would be over ${fileBytesMax} bytes`, { at: path });
      }
      try {
        replaceFile(path, bytes, 0o600);
      } catch (error) {
        throw failed(path, 'write', error);
      }
    },
    remove: (name) => {
      const path = pathOf(name);
      removeFile(path);
      try {
        syncDirectory(directory);
      } catch (error) {
        throw failed(directory, 'sync', error);
      }
    },
    list: () => listAll().filter((name) => NAME.test(name) && !TEMPORARY.test(name)),
  };
};
