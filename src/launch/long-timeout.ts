/** setTimeout fires at once for more than 31 bits of milliseconds, 24.8 days; leases and jobs may last longer. */
const TIMEOUT_MS_MAX = 2 ** 31 - 1;

export type LongTimeout = { clear(): void };

/** Calls `act` once after `ms`, however long that is, unless cleared before. */
export const setLongTimeout = (act: () => void, ms: number): LongTimeout => {
  let timer: NodeJS.Timeout;
  const arm = (leftMs: number): void => {
    timer = setTimeout(
      () => {
        if (leftMs > TIMEOUT_MS_MAX) arm(leftMs - TIMEOUT_MS_MAX);
        else act();
      },
      Math.min(leftMs, TIMEOUT_MS_MAX),
    );
  };
  arm(ms);
  return { clear: () => clearTimeout(timer) };
};
