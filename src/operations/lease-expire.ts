/** Ends the right to run of leases whose time is over. Their uids stay where they are: time never frees one. */
import { countOf } from '../base/count.ts';
import { XceError } from '../base/errors.ts';
import { CLOCK_ADVICE, type Expiries } from '../lease/rules.ts';
import type { Context } from './context.ts';
import { type LeaseSelection, requireLeaseRef } from './lease-reference.ts';
import { tellNotices } from './notices.ts';

export type ExpireResult = Omit<Expiries, 'more'>;

/**
 * Judges one lease, or all that are active. One that still lives is an error ('lease-state') only if it was asked
 * for; a clock that proves nothing about one of all is no error here: see requireSure.
 */
export const expireLeases = async (
  context: Context,
  which: LeaseSelection | 'all',
): Promise<ExpireResult> => {
  if (which === 'all') {
    const { result, notices } = await context.leases.expireAll();
    tellNotices(context, notices);
    return result;
  }
  const { result, notices } = await context.leases.expire(requireLeaseRef(which));
  tellNotices(context, notices);
  const { lease, uid, job, attempt } = result;
  return { outcomes: [{ lease, uid, job, attempt, outcome: 'expired' }], doubt: null };
};

/** Throws 'clock-skew' where this host could not tell of some lease whether its time is over. */
export const requireSure = ({ outcomes, doubt }: ExpireResult): void => {
  if (doubt === null) return;
  const unsure = outcomes.filter(({ outcome }) => outcome === 'unsure');
  throw new XceError('clock-skew', `${countOf(unsure.length, 'lease')}: ${doubt}`, {
    unchanged: 'leases of which this host cannot tell',
    next: CLOCK_ADVICE,
    detail: { outcomes },
  });
};
