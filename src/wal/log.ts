/**
 * What the rest of the suite sees of the lease log. `EpochLog` (epoch-log.ts) is the implementation; callers
 * take this type, so that their tests can pass a log over a simulated disk.
 */

/** Where the log ends, as a reader or writer saw it. */
export type LogPosition = {
  /** Number of the log file, and the fencing number of whoever owns it. */
  readonly epoch: number;
  /** Random token of the owner of the epoch, 32 hex digits. */
  readonly token: string;
  /** Host that took the epoch, for people; never used to decide anything. */
  readonly host: string;
  /** Sequence number of the last record within the epoch's file (the header is 0). */
  readonly sequence: number;
};

/** Something that happened on the way and that a person should read; the operation itself went well. */
export type LogNotice =
  /** The newest log ended in an incomplete record; its bytes do not count, and stay where they are. */
  | { readonly kind: 'torn-tail'; readonly path: string; readonly offset: number; readonly bytes: number }
  /** This host took the next epoch by itself; `reason` is one line. */
  | { readonly kind: 'epoch-taken'; readonly epoch: number; readonly reason: string }
  /** The log has grown long, and the owner could not go on in a short one; it goes on as it is. */
  | { readonly kind: 'not-compacted'; readonly path: string; readonly reason: string }
  /** A file that counts no more keeps its bytes. */
  | { readonly kind: 'not-emptied'; readonly path: string; readonly reason: string }
  /** The record counts, but this host could not write down that it has seen it. */
  | { readonly kind: 'not-remembered'; readonly path: string; readonly reason: string };

/** A state replayed without a lock. It may be behind, and its last record may not be acknowledged yet. */
export type LogView<State> = LogPosition & {
  /** Fresh; the caller owns it. */
  readonly state: State;
  /** True when this host holds the token of the newest epoch, that is, when `commit` would not be fenced. */
  readonly owned: boolean;
  /** Bytes of an incomplete last record, 0 when there is none. */
  readonly tornBytes: number;
};

/** What `decide` may know beside the state. */
export type CommitContext = LogPosition & {
  /** This host's clock when the decision is taken, milliseconds since the Unix epoch. */
  readonly wallMs: number;
  /** The storage's clock minus this host's, milliseconds, as the last record written shows it. */
  readonly skewMs: number;
  /** How far this host's clock was set since it owns the log, milliseconds; undefined where that is not known. */
  readonly stepMs: number | undefined;
};

/** No events: nothing is written, and the result is what a reader under the lock saw. */
export type Decision<Event, Result> = { readonly events: readonly Event[]; readonly result: Result };

export type Committed<Result> = {
  readonly result: Result;
  /** Where the record is (or, without events, where the state ended that was read). */
  readonly position: LogPosition;
  readonly notices: readonly LogNotice[];
};

export type LeaseLog<State, Event> = {
  /**
   * Creates the first epoch. Refused with 'log-exists' where any sign of an earlier log is found, and with
   * 'log-missing' where the directory does not exist: a directory is never made here.
   */
  init(): Promise<LogPosition>;

  /** Throws 'log-exists' where `init` would. */
  requireNone(): Promise<void>;

  /**
   * Replays the newest complete epoch without any lock, on any host.
   * Throws 'log-missing', 'log-corrupt', 'log-version', 'log-foreign', 'log-rollback' or 'log-io'.
   */
  read(): Promise<LogView<State>>;

  /** Whether this host has the token of an epoch, so that `commit` would not be fenced while it is the newest. */
  owns(position: Pick<LogPosition, 'epoch' | 'token'>): Promise<boolean>;

  /**
   * The only way to change the state: under the locks of this host, replays what is new, lets `decide` choose
   * events, makes them durable as one record, looks for a successor, and only then resolves.
   *
   * `decide` is pure and synchronous: it must neither change nor keep `state`, and may be called with a state
   * that never becomes durable. An XceError it throws is a refusal: nothing is written for it, and `commit`
   * rejects with that very error. Commits of one process that wait together share one record and one fsync;
   * each sees the events of the ones before it.
   *
   * No effect outside the log (ticket, drain, chown) may come before this resolves.
   *
   * Rejects with:
   * - 'log-fenced': another controller owns the log, or this host lost its token (reboot). Nothing was written.
   * - 'log-busy': another process of this host held the log until the deadline. Nothing was written.
   * - 'log-outcome-unknown': the record may or may not count; the successor log says which.
   * - 'log-io': the storage failed and it is certain that the record does not count.
   * - 'storage-unfit': the storage has no lock. Nothing was written.
   * - those of `read`; 'too-large' for events beyond one record.
   */
  commit<Result>(
    decide: (state: State, context: CommitContext) => Decision<Event, Result>,
  ): Promise<Committed<Result>>;

  /**
   * What `decide` says of the state as this process has replayed it last, without a lock or any look: only a guess, to
   * prepare what a commit will need. Undefined as long as nothing is replayed.
   */
  guess<Result>(decide: (state: State, context: CommitContext) => Result): Result | undefined;

  /**
   * Takes the next epoch for this host whoever owns the log now; the former owner's commits are fenced from
   * then on. Rejects with 'log-fenced' when another taker was faster.
   */
  takeover(): Promise<LogPosition & { readonly notices: readonly LogNotice[] }>;

  /** The same act by the owner, so that a long log becomes a short one. 'log-fenced' for anyone else. */
  compact(): Promise<LogPosition & { readonly notices: readonly LogNotice[] }>;

  /**
   * Closes the descriptors, when what goes on behind an acknowledged commit has ended; returns what nobody has been
   * told yet. The log must not be used afterwards.
   */
  close(): Promise<readonly LogNotice[]>;
};
