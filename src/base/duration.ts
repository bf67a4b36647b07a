/** Durations as people write and read them: a whole number and one unit going in, two units coming out. */

const UNIT_MS: ReadonlyMap<string, number> = new Map([
  ['ms', 1],
  ['s', 1000],
  ['m', 60_000],
  ['h', 3_600_000],
  ['d', 86_400_000],
]);

/** `30s`, `10m`, `2h`, `7d`, `250ms` to milliseconds; no sign, blank, fraction, leading zero or missing unit. */
export const parseDurationMs = (text: string): number | undefined => {
  const [, digits, unit] = /^([1-9][0-9]{0,9})(ms|s|m|h|d)$/.exec(text) ?? [];
  const unitMs = unit === undefined ? undefined : UNIT_MS.get(unit);
  if (digits === undefined || unitMs === undefined) return undefined;
  const valueMs = Number(digits) * unitMs;
  return Number.isSafeInteger(valueMs) ? valueMs : undefined;
};

const STEPS: readonly (readonly [unit: string, unitMs: number, minor: string, minorMs: number])[] = [
  ['d', 86_400_000, 'h', 3_600_000],
  ['h', 3_600_000, 'm', 60_000],
  ['m', 60_000, 's', 1000],
];

/**
 * Milliseconds as at most two units, cut off and not rounded: a lease never looks longer than it is.
 * `9m58s`, `2h`, `3d4h`, `58s`, `850ms`, `0s`; a negative duration gets a minus sign.
 */
export const formatDuration = (durationMs: number): string => {
  if (durationMs < 0) return `-${formatDuration(-durationMs)}`;
  for (const [unit, unitMs, minor, minorMs] of STEPS) {
    if (durationMs < unitMs) continue;
    const rest = Math.floor((durationMs % unitMs) / minorMs);
    return `${Math.floor(durationMs / unitMs)}${unit}${rest === 0 ? '' : `${rest}${minor}`}`;
  }
  if (durationMs >= 1000) return `${Math.floor(durationMs / 1000)}s`;
  return durationMs >= 1 ? `${Math.floor(durationMs)}ms` : '0s';
};
