import { XceError } from '../base/errors.ts';
import type { Attempt, JobId, LeaseNumber } from '../base/ids.ts';
import type { LeaseRef } from '../lease/reference.ts';

/** How a caller names one lease: by its number, or by job and, if need be, attempt. */
export type LeaseSelection = {
  readonly job: JobId | undefined;
  readonly attempt: Attempt | undefined;
  readonly lease: LeaseNumber | undefined;
};

export const requireLeaseRef = (selection: LeaseSelection): LeaseRef => {
  if (selection.lease !== undefined) return { lease: selection.lease };
  if (selection.job === undefined) {
    throw new XceError('usage', 'which lease is meant?', { next: 'give --job ID or --lease N' });
  }
  return { job: selection.job, attempt: selection.attempt };
};
