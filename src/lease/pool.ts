/**
 * Which uid comes next, and the proof that the name service does not know it. The look-up takes its time, so it
 * happens outside the log's lock: candidates are listed, looked up, and the grant then takes only a candidate that
 * was looked up and is still free.
 */
import { XceError } from '../base/errors.ts';
import { type IdRange, isInRange } from '../base/id-range.ts';
import type { Uid } from '../base/ids.ts';
import type { NameService } from '../os/name-service.ts';
import type { LeaseState } from './state.ts';

/** Whether a lease may take the uid, as far as the log knows. */
export const isFree = (state: LeaseState, pool: IdRange, uid: Uid): boolean =>
  isInRange(uid, pool) && !state.leases.isHeld(uid);

function* freeUids(state: LeaseState, pool: IdRange): Generator<Uid> {
  for (const uid of state.used.absent(pool)) yield uid as Uid;
  for (const uid of state.freed) if (isInRange(uid, pool)) yield uid as Uid;
}

/** Up to `wanted` free uids without the skipped ones: never used before, ascending, then the longest free. */
export const listCandidates = (
  state: LeaseState,
  pool: IdRange,
  wanted: number,
  skipped: Pick<ReadonlySet<Uid>, 'has'>,
): readonly Uid[] => {
  const candidates: Uid[] = [];
  for (const uid of freeUids(state, pool)) {
    if (candidates.length >= wanted) break;
    if (!skipped.has(uid)) candidates.push(uid);
  }
  return candidates;
};

/** Each look-up runs a few short processes. */
const LOOK_UPS_AT_ONCE = 4;

export type LookedUp = { readonly absent: readonly Uid[]; readonly present: readonly Uid[] };

/**
 * Looks candidates up. Throws XceError 'name-service' when any answer is unknown: only 'absent' proves that a uid is
 * nobody's, and a service in doubt about one cannot be believed about another.
 */
export const lookUpCandidates = async (
  service: NameService,
  candidates: readonly Uid[],
): Promise<LookedUp> => {
  const absent: Uid[] = [];
  const present: Uid[] = [];
  for (let start = 0; start < candidates.length; start += LOOK_UPS_AT_ONCE) {
    const together = candidates.slice(start, start + LOOK_UPS_AT_ONCE);
    const answers = await Promise.all(
      together.map(async (uid) => ({ uid, found: await service.lookUp(uid) })),
    );
    for (const { uid, found } of answers) {
      if (found.answer === 'unknown')
        throw new XceError('name-service', `uid ${uid} may be somebody's: ${found.reason}`, {
          unchanged: 'no uid was leased',
          detail: { uid },
        });
      (found.answer === 'absent' ? absent : present).push(uid);
    }
  }
  return { absent, present };
};
