/** Timers for leases and jobs that last longer than the 24.8 days of LIMITS.timerMsMax. */
import { LIMITS } from '../base/limits.ts';

export type LongTimeout = { clear(): void };

/** Calls `act` once after `ms`, however long that is, unless cleared before. */
export const setLongTimeout = (act: () => void, ms: number): LongTimeout => {
  let timer: NodeJS.Timeout;
  const arm = (leftMs: number): void => {
    timer = setTimeout(
      () => {
        if (leftMs > LIMITS.timerMsMax) arm(leftMs - LIMITS.timerMsMax);
        else act();
      },
      Math.min(leftMs, LIMITS.timerMsMax),
    );
  };
  arm(ms);
  return { clear: () => clearTimeout(timer) };
};
