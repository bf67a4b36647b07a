/**
 * Which uid comes next, and the proof that the name service does not know it. The look-up takes its time, so it
 * happens outside the log's lock: candidates are listed, looked up, and the grant then takes only a candidate that
 * was looked up and is still free.
 */
import { XceError } from '../base/errors.ts';
import type { Uid } from '../base/ids.ts';
import type { IdRange } from '../config/settings.ts';
import type { LeaseState } from './state.ts';

/** By-number look-ups of passwd and group together. Only 'absent' proves anything. */
export type NameService = {
  lookUp(uid: number): Promise<'absent' | 'present' | 'unknown'>;
};

/** Whether a lease may take the uid, as far as the log knows. */
export const isFree = (state: LeaseState, pool: IdRange, uid: Uid): boolean =>
  uid >= pool.first && uid <= pool.last && !state.byUid.has(uid);

function* freeUids(state: LeaseState, pool: IdRange): Generator<Uid> {
  for (const uid of state.used.absent(pool)) yield uid as Uid;
  for (const uid of state.freed) if (uid >= pool.first && uid <= pool.last) yield uid as Uid;
}

/** Up to `wanted` free uids without the skipped ones: never used before, ascending, then the longest free. */
export const listCandidates = (
  state: LeaseState,
  pool: IdRange,
  wanted: number,
  skipped: ReadonlySet<Uid>,
): readonly Uid[] => {
  const candidates: Uid[] = [];
  for (const uid of freeUids(state, pool)) {
    if (candidates.length >= wanted) break;
    if (!skipped.has(uid)) candidates.push(uid);
  }
  return candidates;
};

export type LookedUp = { readonly absent: readonly Uid[]; readonly present: readonly Uid[] };

const noAnswer = (problem: string): XceError =>
  new XceError('name-service', `the name service is not answering: ${problem}`, {
    unchanged: 'no uid was leased',
    next: 'check nsswitch.conf and the directory with: getent passwd',
  });

/**
 * Looks candidates up. Throws XceError 'name-service' when any answer is unknown, or when `controlUid`, which must
 * resolve, does not: before and after the candidates, since a service may fail in between.
 */
export const lookUpCandidates = async (
  service: NameService,
  controlUid: number,
  candidates: readonly Uid[],
): Promise<LookedUp> => {
  const checkControl = async (): Promise<void> => {
    const answer = await service.lookUp(controlUid);
    if (answer !== 'present') throw noAnswer(`uid ${controlUid}, which must be known, is ${answer}`);
  };
  await checkControl();
  const answers = await Promise.all(
    candidates.map(async (uid) => ({ uid, answer: await service.lookUp(uid) })),
  );
  const unknown = answers.find(({ answer }) => answer === 'unknown');
  if (unknown !== undefined) throw noAnswer(`uid ${unknown.uid} is neither known nor unknown to it`);
  await checkControl();
  const withAnswer = (wanted: 'absent' | 'present') =>
    answers.filter(({ answer }) => answer === wanted).map(({ uid }) => uid);
  return { absent: withAnswer('absent'), present: withAnswer('present') };
};
