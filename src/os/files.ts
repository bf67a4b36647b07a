import {
  closeSync,
  constants,
  fstatSync,
  fsyncSync,
  openSync,
  readSync,
  renameSync,
  type Stats,
  unlinkSync,
  writeSync,
} from 'node:fs';
import { dirname } from 'node:path';
import { errnoOf, XceError } from '../base/errors.ts';

/** Writes all bytes; write(2) may be short, and one that writes nothing would be asked for ever. */
export const writeAll = (fd: number, bytes: Uint8Array): void => {
  for (let done = 0; done < bytes.length; ) {
    const count = writeSync(fd, bytes, done, bytes.length - done);
    if (count === 0) throw new Error('the system wrote nothing');
    done += count;
  }
};

/** Makes the names in a directory durable. */
export const syncDirectory = (path: string): void => {
  const fd = openSync(path, constants.O_RDONLY | constants.O_DIRECTORY);
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
};

/** Replaces a file as one step that survives a crash: new file, fsync, rename, fsync of the directory. */
export const replaceFile = (path: string, bytes: Uint8Array, mode: number): void => {
  const temporary = `${path}.new-${process.pid}`;
  const fd = openSync(
    temporary,
    constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW,
    mode,
  );
  try {
    writeAll(fd, bytes);
    fsyncSync(fd);
    renameSync(temporary, path);
  } catch (error) {
    unlinkSync(temporary);
    throw error;
  } finally {
    closeSync(fd);
  }
  syncDirectory(dirname(path));
};

const FIRST_BYTES = 4 << 10;

/**
 * Reads a regular file of at most `bytesMax` bytes; `check` sees the facts of the very file that is read. Throws
 * XceError 'io' or 'too-large', and what `check` throws.
 */
export const readBounded = (path: string, bytesMax: number, check?: (facts: Stats) => void): Buffer => {
  let fd: number;
  try {
    fd = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (error) {
    throw new XceError('io', `cannot open ${path}: ${errnoOf(error) ?? String(error)}`, {
      at: path,
      cause: error,
    });
  }
  try {
    const facts = fstatSync(fd);
    if (!facts.isFile()) throw new XceError('io', `${path} is not a regular file`, { at: path });
    check?.(facts);
    // What the kernel makes up says that it has no bytes.
    let buffer = Buffer.alloc(Math.min(bytesMax, Math.max(facts.size, FIRST_BYTES)) + 1);
    let length = 0;
    for (;;) {
      const count = readSync(fd, buffer, length, buffer.length - length, null);
      if (count === 0) break;
      length += count;
      if (length > bytesMax)
        throw new XceError('too-large', `${path} is over ${bytesMax} bytes`, { at: path });
      if (length === buffer.length) {
        const larger = Buffer.alloc(Math.min(bytesMax, 2 * length) + 1);
        buffer.copy(larger, 0, 0, length);
        buffer = larger;
      }
    }
    return buffer.subarray(0, length);
  } catch (error) {
    if (error instanceof XceError) throw error;
    throw new XceError('io', `cannot read ${path}: ${errnoOf(error) ?? String(error)}`, {
      at: path,
      cause: error,
    });
  } finally {
    closeSync(fd);
  }
};

/** Refuses a secret that others than its owner root may read or write. */
export const requirePrivate =
  (path: string) =>
  (facts: Stats): void => {
    if (facts.uid !== 0 || (facts.mode & 0o077) !== 0) {
      throw new XceError('config-unsafe', `${path} must belong to root with mode 0600`, {
        at: path,
        next: `chown root:root ${path} && chmod 0600 ${path}`,
      });
    }
  };

/** Refuses a file that others than root may write. */
export const requireRootOnlyWrites =
  (path: string) =>
  (facts: Stats): void => {
    if (facts.uid !== 0 || (facts.mode & 0o022) !== 0) {
      throw new XceError('config-unsafe', `${path} must belong to root and be writable by root alone`, {
        at: path,
        next: `chown root:root ${path} && chmod go-w ${path}`,
      });
    }
  };
