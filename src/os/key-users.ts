/** What the kernel says of its keys (keyrings(7)). */
import { readFileSync } from 'node:fs';
import { errnoOf, XceError } from '../base/errors.ts';

const PATH = '/proc/key-users';

/** A line for each uid that has keys; undefined for a kernel without any. Throws XceError 'os'. */
export const readKeyUsers = (): string | undefined => {
  try {
    return readFileSync(PATH, 'latin1');
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw new XceError('os', `cannot read ${PATH}: ${errnoOf(error) ?? String(error)}`, { cause: error });
  }
};
