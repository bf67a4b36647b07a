import { closeSync, constants, fchmodSync, fsyncSync, mkdirSync, openSync, unlinkSync } from 'node:fs';
import { dirname } from 'node:path';
import { errnoOf, XceError } from '../base/errors.ts';
import { syncDirectory, writeAll } from './files.ts';

/** Creates a file that must not exist, with exactly that mode, and makes it durable. Leaves nothing when it throws. */
export const createFile = (path: string, bytes: Uint8Array, mode: number): void => {
  let fd: number;
  try {
    fd = openSync(
      path,
      constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW,
      0o600,
    );
  } catch (error) {
    throw new XceError('io', `cannot create ${path}: ${errnoOf(error) ?? String(error)}`, {
      at: path,
      cause: error,
    });
  }
  try {
    writeAll(fd, bytes);
    fchmodSync(fd, mode);
    fsyncSync(fd);
  } catch (error) {
    unlinkSync(path);
    throw new XceError('io', `cannot write ${path}: ${errnoOf(error) ?? String(error)}`, {
      at: path,
      cause: error,
    });
  } finally {
    closeSync(fd);
  }
  syncDirectory(dirname(path));
};

/** Creates a directory, and those above it, where they do not exist. */
export const createDirectory = (path: string, mode: number): void => {
  try {
    mkdirSync(path, { recursive: true, mode });
  } catch (error) {
    throw new XceError('io', `cannot create the directory ${path}: ${errnoOf(error) ?? String(error)}`, {
      at: path,
      cause: error,
    });
  }
};
