/**
 * What is to happen to one inode, from its facts alone. Pure: the same facts always give the same verdict.
 *
 * Stated policies:
 * - Only an inode owned by the leased uid gets another owner. Its gid changes only where it is the leased gid.
 * - Setuid and setgid go before the owner changes, from directories too; sticky and permission bits stay.
 * - A device node is never handed over. A whiteout (character device 0:0) is none: any user may make one, and
 *   it opens nothing, so a job cannot block its own release with it.
 * - An inode of the submitter that has the leased group gets the submitter's group; one of anybody else is
 *   reported, because no group that we could choose is known to be right.
 */
import { type IdRange, isInRange } from '../base/id-range.ts';
import type { InodeFacts } from '../os/pinned.ts';

/** Who hands over what to whom. */
export type Terms = {
  /** Leased execution uid and the gid of its processes. */
  readonly uid: number;
  readonly gid: number;
  /** The submitter. */
  readonly to: { readonly uid: number; readonly gid: number };
  /** Pool of execution uids: inodes of other leases are counted, and left alone. */
  readonly pool: IdRange | undefined;
};

export type Verdict =
  /** Not ours. `lease`: it belongs to another execution uid. */
  | { readonly kind: 'keep'; readonly lease: boolean }
  /** Ours, and it must stay as it is. */
  | { readonly kind: 'report'; readonly reason: 'device' | 'immutable' | 'append-only' | 'foreign-group' }
  /** Give it to `uid` and `gid`; when `mode` is defined, set that mode first. */
  | {
      readonly kind: 'change';
      readonly what: 'owner' | 'group';
      readonly uid: number;
      readonly gid: number;
      readonly mode: number | undefined;
    };

const SETUID_SETGID = 0o6000;

/** Whether the uid may be that of another lease. */
export const isOfPool = (uid: number, { pool }: Pick<Terms, 'pool'>): boolean =>
  pool !== undefined && isInRange(uid, pool);

const isDevice = (facts: InodeFacts): boolean =>
  facts.kind === 'block-device' || (facts.kind === 'character-device' && facts.represents !== 0);

/** The mode without setuid and setgid, or undefined where neither is set. A link has no mode of its own. */
export const clearedMode = (facts: Pick<InodeFacts, 'kind' | 'mode'>): number | undefined =>
  facts.kind !== 'symlink' && (facts.mode & SETUID_SETGID) !== 0 ? facts.mode & ~SETUID_SETGID : undefined;

export const decide = (facts: InodeFacts, terms: Terms): Verdict => {
  const owned = facts.uid === terms.uid;
  if (!owned && facts.gid !== terms.gid) return { kind: 'keep', lease: isOfPool(facts.uid, terms) };
  if (isDevice(facts)) return { kind: 'report', reason: 'device' };
  if (!owned && facts.uid !== terms.to.uid) return { kind: 'report', reason: 'foreign-group' };
  if (facts.immutable) return { kind: 'report', reason: 'immutable' };
  if (facts.appendOnly) return { kind: 'report', reason: 'append-only' };
  return {
    kind: 'change',
    what: owned ? 'owner' : 'group',
    uid: terms.to.uid,
    gid: facts.gid === terms.gid ? terms.to.gid : facts.gid,
    mode: clearedMode(facts),
  };
};
