/** What a call does instead of what it should: shim.c. */
export type Fault = {
  readonly calls: string;
  readonly mode: 'once' | 'always' | 'after' | 'short';
  readonly errno: string;
};

/** What process.ts found out about one operation. */
export type Report = {
  /** Calls of the operation when nothing fails. */
  calls: number;
  /** Runs in which a call failed. */
  faults: number;
  /** How often the operation ended with which code, 'done' for none. */
  readonly codes: Record<string, number>;
  readonly problems: string[];
};
