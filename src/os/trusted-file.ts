import { lstatSync, type Stats } from 'node:fs';
import { dirname, isAbsolute, normalize } from 'node:path';
import { errnoOf, XceError } from '../base/errors.ts';
import { readBounded, requireRootOnlyWrites } from './files.ts';

/** The directories above a path, from the root down. */
const parentsOf = (path: string): readonly string[] => {
  const parents: string[] = [];
  for (let parent = dirname(path); ; parent = dirname(parent)) {
    parents.unshift(parent);
    if (parent === '/') return parents;
  }
};

const requireTrustedDirectory = (path: string): void => {
  let facts: Stats;
  try {
    facts = lstatSync(path);
  } catch (error) {
    throw new XceError('io', `cannot look at ${path}: ${errnoOf(error) ?? String(error)}`, {
      at: path,
      cause: error,
    });
  }
  if (!facts.isDirectory()) {
    throw new XceError('config-unsafe', `${path} is not a directory, or is reached through a link`, {
      at: path,
      next: 'name the file by its real path',
    });
  }
  if (facts.uid !== 0 || (facts.mode & 0o022) !== 0) {
    throw new XceError('config-unsafe', `${path} must belong to root and be writable by root alone`, {
      at: path,
      // Never a chmod of the directory: it may be /tmp, or somebody's home.
      next: 'keep the file below directories that only root may write, such as /etc/xce-sandbox',
    });
  }
};

/**
 * Throws unless nobody but root can exchange what lies at an absolute path in its normal form. Judged from the root
 * down, so that no directory can be exchanged by another user after its turn.
 */
export const requireTrustedParents = (path: string): void => {
  for (const parent of parentsOf(path)) requireTrustedDirectory(parent);
};

/**
 * Reads a file of at most `bytesMax` bytes that only root can have written: the file itself, and each directory
 * above it, belongs to root, is no link and is writable by nobody else.
 */
export const readTrustedFile = (path: string, bytesMax: number): Buffer => {
  if (!isAbsolute(path) || normalize(path) !== path || path.endsWith('/')) {
    throw new XceError('io', `${path} is not an absolute path in its normal form`, { at: path });
  }
  requireTrustedParents(path);
  return readBounded(path, bytesMax, requireRootOnlyWrites(path));
};
