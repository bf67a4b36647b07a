import { readFileSync } from 'node:fs';
import { errnoOf, XceError } from '../base/errors.ts';

/** What the kernel calls a session that nobody logged in to. */
const UNSET = 0xffff_ffff;
const PATH = '/proc/self/loginuid';

/**
 * The uid that somebody logged in with, whatever became of it through su or sudo (pam_loginuid(8)). The kernel keeps
 * it and lets no process without CAP_AUDIT_CONTROL change it. undefined: nobody logged in, or the kernel keeps none.
 */
export const readLoginUid = (): number | undefined => {
  let text: string;
  try {
    text = readFileSync(PATH, 'latin1');
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw new XceError('os', `cannot read ${PATH}: ${errnoOf(error) ?? String(error)}`, { cause: error });
  }
  const uid = Number(text);
  return Number.isSafeInteger(uid) && uid >= 0 && uid !== UNSET ? uid : undefined;
};
