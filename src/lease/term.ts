/**
 * How long a lease still gives the right to run. Expiry ends that right and nothing else: the uid stays
 * excluded until there is proof that nothing of it is left, so a wrong clock can stop a job but can never give
 * its uid away.
 *
 * The wall clock of one host says little to another and may jump on the same one. A term therefore also keeps
 * the monotonic clock and the boot id of the host that wrote it. On that host and boot the age is exact
 * whatever the wall clock does; everywhere else it is judged by the wall clock with the configured skew bound.
 */

/** One moment as one host saw it. Milliseconds; `monotonicMs` compares only within the same boot. */
export type Instant = {
  readonly wallMs: number;
  readonly monotonicMs: number;
  readonly bootId: string;
};

export type Term = { readonly ttlMs: number; readonly issued: Instant };

/** A term from this moment on. */
export const beginTerm = (ttlMs: number, { wallMs, monotonicMs, bootId }: Instant): Term => ({
  ttlMs,
  issued: { wallMs, monotonicMs, bootId },
});

/** The moment of a judgement. */
export type Now = Instant & {
  /** Configured bound on the difference between two controllers' clocks. */
  readonly skewBoundMs: number;
  /** This host's clock against the storage's, of either sign; undefined when nothing was measured. */
  readonly skewMs: number | undefined;
  /**
   * How far this host's clock was set since it owns the log, of either sign; undefined when nothing was measured. The
   * skew is that of the last record: a clock that was set since then shows only here.
   */
  readonly stepMs: number | undefined;
};

/** 'unsure': this host's clock cannot prove it, so nothing may be ended for it. */
export type Expiry = 'live' | 'expired' | 'unsure';

const isSameBoot = (term: Term, now: Instant): boolean => term.issued.bootId === now.bootId;

/** From 0 to the ttl, both inclusive, whatever the clocks did. */
export const remainingMs = (term: Term, now: Instant): number => {
  const age = isSameBoot(term, now)
    ? now.monotonicMs - term.issued.monotonicMs
    : now.wallMs - term.issued.wallMs;
  return Math.min(term.ttlMs, Math.max(0, term.ttlMs - age));
};

/** Whether this host can prove that the bound holds between its clock and the others'. */
export const isClockTrusted = ({ skewMs, stepMs, skewBoundMs }: Now): boolean =>
  [skewMs, stepMs].every((ms) => ms !== undefined && Math.abs(ms) <= skewBoundMs);

/** Another host's term counts as expired only a whole skew bound after its end, and only by a trusted clock. */
export const judgeExpiry = (term: Term, now: Now): Expiry => {
  if (isSameBoot(term, now)) return remainingMs(term, now) > 0 ? 'live' : 'expired';
  if (!isClockTrusted(now)) return 'unsure';
  return now.wallMs - term.issued.wallMs >= term.ttlMs + now.skewBoundMs ? 'expired' : 'live';
};
