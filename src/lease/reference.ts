import type { Attempt, JobId, LeaseNumber } from '../base/ids.ts';
import { isEarlierRun } from './ended.ts';
import type { Lease } from './lease.ts';
import { accept, refuse, type Verdict } from './refusal.ts';
import type { JobState } from './state.ts';

/** How callers name a lease. A job without an attempt means the latest attempt that still has a lease. */
export type LeaseRef =
  | { readonly lease: LeaseNumber }
  | { readonly job: JobId; readonly attempt?: Attempt | undefined };

const shellWord = (text: string): string =>
  /^[A-Za-z0-9_.,:+@%/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;

/** A command about one attempt, as an operator can paste it: without it the latest attempt would be meant. */
export const commandFor = (verb: string, { job, attempt }: Pick<Lease, 'job' | 'attempt'>): string =>
  `xce-sandbox ${verb} --job ${shellWord(job)} --attempt ${attempt}`;

/** One lease in words. */
export const nameLease = ({ number, job, attempt }: Pick<Lease, 'number' | 'job' | 'attempt'>): string =>
  `lease ${number} (job ${job}, attempt ${attempt})`;

/** Refused with 'lease-ended' for what is known to have ended, else with 'lease-missing'. */
export const findLease = (state: JobState, ref: LeaseRef): Verdict<Lease> => {
  const next = 'xce-sandbox lease list';
  if ('lease' in ref) {
    const lease = state.leases.get(ref.lease);
    if (lease !== undefined) return accept(lease);
    return ref.lease < state.nextLease
      ? refuse('lease-ended', `lease ${ref.lease} has ended and its uid was freed`, { next })
      : refuse('lease-missing', `there is no lease ${ref.lease}`, { next });
  }
  const { job, attempt } = ref;
  const living = state.leases.ofJob(job).filter((lease) => (attempt ?? lease.attempt) === lease.attempt);
  const [first, ...others] = living;
  if (first !== undefined)
    return accept(others.reduce((latest, lease) => (isEarlierRun(latest, lease) ? lease : latest), first));
  const ended = state.ended.ofJob(job).findLast((one) => (attempt ?? one.attempt) === one.attempt);
  if (ended !== undefined)
    return refuse('lease-ended', `attempt ${ended.attempt} of job ${job} has ended and its uid was freed`, {
      next,
      detail: { lease: ended.lease, uid: ended.uid, attempt: ended.attempt, endedWallMs: ended.endedWallMs },
    });
  const name = attempt === undefined ? `job ${job}` : `attempt ${attempt} of job ${job}`;
  return refuse('lease-missing', `${name} has no lease`, { next });
};
