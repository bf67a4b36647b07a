import { dirname, join } from 'node:path';
import { XceError } from '../base/errors.ts';
import { readBounded } from './files.ts';

const LEVELS_MAX = 5;
const BYTES_MAX = 64 << 10;

const readVersion = (path: string): string | undefined => {
  let document: unknown;
  try {
    document = JSON.parse(readBounded(path, BYTES_MAX).toString('utf8'));
  } catch {
    return undefined; // no package begins in this directory
  }
  if (typeof document !== 'object' || document === null) return undefined;
  if (!('name' in document) || document.name !== 'xce-sandbox' || !('version' in document)) return undefined;
  return typeof document.version === 'string' ? document.version : undefined;
};

/** The installed package that a module belongs to: its directory and its version. */
export const findPackage = (modulePath: string): { readonly root: string; readonly version: string } => {
  let root = dirname(modulePath);
  for (let level = 0; level < LEVELS_MAX; level += 1) {
    const version = readVersion(join(root, 'package.json'));
    if (version !== undefined) return { root, version };
    root = dirname(root);
  }
  throw new XceError('bug', `the package of ${modulePath} cannot be found`);
};
