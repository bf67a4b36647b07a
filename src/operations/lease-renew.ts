import type { LeaseView } from '../lease/view.ts';
import type { JobContext } from './job-context.ts';
import { type LeaseSelection, requireLeaseRef } from './lease-reference.ts';
import { tellNotices } from './notices.ts';

/** Gives the lease a new term from now on. Workers learn of it from the launch that runs, or from the next one. */
export const renewLease = async (
  context: Omit<JobContext, 'close'>,
  input: { readonly selection: LeaseSelection; readonly ttlMs: number | undefined },
): Promise<LeaseView> => {
  const ref = requireLeaseRef(input.selection);
  const { result, notices } = await context.leases.renew(ref, input.ttlMs ?? context.settings.lease.ttlMs);
  tellNotices(context, notices);
  return result;
};
