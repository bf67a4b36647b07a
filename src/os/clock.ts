import { readFileSync } from 'node:fs';

/** Time as the production code sees it; tests pass their own. */
export type Clock = {
  /** Milliseconds since the Unix epoch. May jump; never used alone for safety. */
  wallMs(): number;
  /** Milliseconds since an arbitrary start, never backwards within one boot. */
  monotonicMs(): number;
};

export const systemClock: Clock = {
  wallMs: () => Date.now(),
  monotonicMs: () => Number(process.hrtime.bigint() / 1_000_000n),
};

/** The kernel's random id of this boot (proc(5)). */
export const readBootId = (): string => readFileSync('/proc/sys/kernel/random/boot_id', 'latin1').trim();
