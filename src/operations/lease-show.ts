import type { LeaseStatus } from '../lease/lease.ts';
import type { LeaseView } from '../lease/view.ts';
import type { Context } from './context.ts';
import { type LeaseSelection, requireLeaseRef } from './lease-reference.ts';

/** One lease as the log has it now, read without a lock. */
export const showLease = (context: Context, selection: LeaseSelection): Promise<LeaseView> =>
  context.leases.show(requireLeaseRef(selection));

/** All leases, or those in some states, by number. */
export const listLeases = (
  context: Context,
  statuses: readonly LeaseStatus[] | undefined,
): Promise<readonly LeaseView[]> => context.leases.list(statuses);
