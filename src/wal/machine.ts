/**
 * What the log needs to know of the state it keeps. The log stores bytes and replays them; the machine gives
 * them a meaning. All functions are deterministic and do no I/O.
 */
export type Machine<State, Event> = {
  /** The state before the first event. */
  empty(): State;
  /** Applies the event in bytes[start, end) to a state that the caller owns, in place. Throws as `decode` does, and
   * XceError 'log-corrupt' for an event that the state does not allow: what was acknowledged once must apply again. */
  replay(state: State, bytes: Uint8Array, start?: number, end?: number): void;
  encode(event: Event): Uint8Array;
  /** Throws XceError 'log-corrupt' where bytes[start, end) are not exactly one event. Must not keep a view of them;
   * without start and end it is all of them. */
  decode(bytes: Uint8Array, start?: number, end?: number): Event;
  /** The state as a sequence of records, each at most LIMITS.recordBytesMax; bytes once given do not change. */
  snapshot(state: State): Iterable<Uint8Array>;
  /** Adds one snapshot record to a state that started empty. Must not keep a view of it. */
  restore(state: State, record: Uint8Array): void;
};

export type SelectRecord = (start: number, end: number) => boolean;

/**
 * What replaying a log takes. A state may be less than all that the events say (what one caller needs of it), so there
 * is no way back to bytes: a checkpoint is only ever made by the whole machine.
 */
export type View<State, Event> = {
  empty(): State;
  replay(state: State, bytes: Uint8Array, start?: number, end?: number): void;
  restore(state: State, record: Uint8Array): void;
  /**
   * Which records of a part of a checkpoint are to be restored; without it all are. It is asked once for bytes[0, end),
   * which hold the part, and what it returns in turn for each record there is, bytes[start, end).
   */
  select?(state: State, bytes: Uint8Array, end: number): SelectRecord;
  /** Calls `use` with the machine whose log it is, whatever its state is. */
  withMachine<Result>(use: <Whole>(machine: Machine<Whole, Event>) => Result): Result;
};

/** The view that leaves nothing out. */
export const viewOf = <State, Event>(machine: Machine<State, Event>): View<State, Event> => ({
  empty: () => machine.empty(),
  replay: (state, bytes, start, end) => machine.replay(state, bytes, start, end),
  restore: (state, record) => machine.restore(state, record),
  withMachine: (use) => use(machine),
});
