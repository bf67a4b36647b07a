/**
 * What several controllers did to one lease log, as their callers saw it. A process writes one line when it begins
 * a call and one when the call has ended, with the machine's monotonic time; a process that is killed writes no more.
 */

/** The rule that a call is for, named after the event that it leaves in the log. */
export const CALL_KINDS = [
  'allocate',
  'renew',
  'drain',
  'certify',
  'normalise',
  'normalised',
  'free',
  'takeover',
] as const;
export type CallKind = (typeof CALL_KINDS)[number];

/** An attempt of a job, 'job/attempt'; empty for a takeover. */
export type AttemptName = string;

export type Position = { readonly epoch: number; readonly sequence: number };

export type Outcome =
  | { readonly kind: 'acknowledged'; readonly at: Position; readonly lease: number; readonly uid: number }
  /** The caller was told that nothing was written. */
  | { readonly kind: 'denied'; readonly code: string }
  /** The caller was told that nobody knows, or was killed before it was told anything. */
  | { readonly kind: 'unknown' };

export type Call = {
  readonly process: string;
  readonly host: string;
  readonly kind: CallKind;
  readonly attempt: AttemptName;
  /** Microseconds of the machine's monotonic clock. */
  readonly beganUs: number;
  /** Infinity for a call that has not ended. */
  readonly endedUs: number;
  readonly outcome: Outcome;
};

export type Line =
  | {
      readonly call: number;
      readonly us: number;
      readonly begins: { readonly kind: CallKind; readonly attempt: AttemptName };
    }
  | { readonly call: number; readonly us: number; readonly ends: Outcome };

const UNKNOWN: Outcome = { kind: 'unknown' };

/** The calls of one process, in the order in which they began. */
export const callsOf = (process: string, host: string, lines: readonly Line[]): readonly Call[] => {
  const calls = new Map<number, Call>();
  for (const line of lines) {
    if ('begins' in line) {
      const { kind, attempt } = line.begins;
      const open = { endedUs: Number.POSITIVE_INFINITY, outcome: UNKNOWN };
      calls.set(line.call, { process, host, kind, attempt, beganUs: line.us, ...open });
      continue;
    }
    const call = calls.get(line.call);
    if (call === undefined) throw new Error(`${process} ends call ${line.call}, which it did not begin`);
    calls.set(line.call, { ...call, endedUs: line.us, outcome: line.ends });
  }
  return [...calls.values()];
};

/** Numbers from 0 to 1, the same for the same seed. */
export const randomOf = (seed: number): (() => number) => {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
};
