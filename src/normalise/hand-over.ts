/**
 * Carries out a verdict on one pinned inode and believes nothing: after every change the inode is read again
 * through the same descriptor, because there are file systems that say yes and do nothing.
 *
 * Order: what would give rights to the new owner goes before the owner changes (capability, setuid, setgid),
 * and is proved gone; so there is no instant in which the submitter owns a privileged file. What would give
 * rights to the old uid (ACL entries) goes after, because until then the uid could put it back.
 */
import { ERRNO } from '../os/libc.ts';
import {
  ACCESS_ACL,
  type AttributeName,
  CAPABILITY,
  DEFAULT_ACL,
  type InodeFacts,
  type PinnedInodes,
} from '../os/pinned.ts';
import { stripAcl } from './acl.ts';
import type { Reason } from './report.ts';
import { clearedMode, type Terms, type Verdict } from './verdict.ts';

/** Why an inode is not as it should be. `errno` is negative, or 0 where no call failed. */
export type Failure = { readonly reason: Reason; readonly errno: number };

export type Done = { capability: boolean; mode: boolean; failure: Failure | undefined };

const ENODATA = -(ERRNO['ENODATA'] ?? 0);
const ENOTSUP = -(ERRNO['ENOTSUP'] ?? 0);
const isAbsent = (result: Buffer | number): boolean => result === ENODATA || result === ENOTSUP;

const failed = (reason: Reason, errno = 0): Failure => ({ reason, errno });

const stripCapability = (pins: PinnedInodes, pin: number): Failure | undefined => {
  const removed = pins.removeAttribute(pin, CAPABILITY);
  if (removed < 0 && !isAbsent(removed)) return failed('attributes', removed);
  const after = pins.getAttribute(pin, CAPABILITY);
  if (isAbsent(after)) return undefined;
  return typeof after === 'number' ? failed('attributes', after) : failed('not-kept');
};

/** Sets a mode without setuid and setgid, and proves that they are gone. */
const clearMode = (pins: PinnedInodes, pin: number, mode: number): Failure | undefined => {
  const changed = pins.chmod(pin, mode);
  if (changed < 0) return failed('mode', changed);
  const after = pins.readFacts(pin, false);
  if (typeof after === 'number') return failed('look', after);
  return clearedMode(after) === undefined ? undefined : failed('not-kept');
};

/** Gives the inode away as the verdict says. After a failure it is still the uid's, or it is reported. */
export const handOver = (
  pins: PinnedInodes,
  pin: number,
  verdict: Extract<Verdict, { kind: 'change' }>,
  attributes: readonly AttributeName[],
): Done => {
  const done: Done = { capability: false, mode: false, failure: undefined };
  if (attributes.includes(CAPABILITY)) {
    done.failure = stripCapability(pins, pin);
    if (done.failure !== undefined) return done;
    done.capability = true;
  }
  if (verdict.mode !== undefined) {
    done.failure = clearMode(pins, pin, verdict.mode);
    if (done.failure !== undefined) return done;
    done.mode = true;
  }
  const changed = pins.chown(pin, verdict.uid, verdict.gid);
  if (changed < 0) return { ...done, failure: failed('owner', changed) };
  const after = pins.readFacts(pin, false);
  if (typeof after === 'number') return { ...done, failure: failed('look', after) };
  if (after.uid !== verdict.uid || after.gid !== verdict.gid) return { ...done, failure: failed('not-kept') };
  // A process that still lived could set the bits again until the owner changed; now it cannot.
  const mode = clearedMode(after);
  return mode === undefined ? done : { ...done, mode: true, failure: clearMode(pins, pin, mode) };
};

/**
 * Takes the entries of the leased uid and gid out of the ACLs that the inode has. With `act` false it only
 * counts. `stripped` counts ACLs.
 */
export const stripAcls = (
  pins: PinnedInodes,
  pin: number,
  attributes: readonly AttributeName[],
  terms: Pick<Terms, 'uid' | 'gid'>,
  act: boolean,
): { readonly stripped: number; readonly failure: Failure | undefined } => {
  let stripped = 0;
  for (const name of [ACCESS_ACL, DEFAULT_ACL] as const) {
    if (!attributes.includes(name)) continue;
    const before = pins.getAttribute(pin, name);
    if (isAbsent(before)) continue;
    if (typeof before === 'number') return { stripped, failure: failed('attributes', before) };
    const acl = stripAcl(before, terms.uid, terms.gid);
    if (acl.kind === 'unreadable') return { stripped, failure: failed('attributes') };
    if (acl.kind === 'clean') continue;
    if (act) {
      const changed = pins.setAttribute(pin, name, acl.bytes);
      if (changed < 0) return { stripped, failure: failed('attributes', changed) };
      const after = pins.getAttribute(pin, name);
      if (typeof after !== 'number' && stripAcl(after, terms.uid, terms.gid).kind !== 'clean') {
        return { stripped, failure: failed('not-kept') };
      }
      if (typeof after === 'number' && !isAbsent(after)) {
        return { stripped, failure: failed('attributes', after) };
      }
    }
    stripped += 1;
  }
  return { stripped, failure: undefined };
};

/** The attributes of an inode that matter here; a link has none. */
export const findAttributes = (
  pins: PinnedInodes,
  pin: number,
  facts: InodeFacts,
  listed: boolean,
): readonly AttributeName[] | number =>
  facts.kind === 'symlink' ? [] : pins.findAttributes(pin, facts.kind === 'directory', listed);
