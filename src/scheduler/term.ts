/** How long the lease of a job lives whose batch system says when it will end it. */
import { LIMITS } from '../base/limits.ts';

/**
 * The time that is left until `endsS` (Unix seconds) and `graceMs` for the epilog, within what a lease may have.
 * Null where nothing says when the job ends. The clock decides nothing here but how soon a forgotten job is ended:
 * a lease that ran out frees no uid.
 */
export const leaseTimeMs = (endsS: number | null, wallMs: number, graceMs: number): number | null => {
  if (endsS === null) return null;
  const leftMs = Math.max(0, endsS * 1000 - wallMs) + graceMs;
  return Math.min(Math.max(Math.ceil(leftMs), LIMITS.ttlMsMin), LIMITS.ttlMsMax);
};
