/**
 * The lease log on a real directory: xce-sandbox-log(5), PROTOCOL. "step 3" in a comment is that page's step 3.
 */
import { type Answer, after, attempt } from '../base/answer.ts';
import { assert, XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import type { Clock } from '../os/clock.ts';
import type { LogFile, LogFiles } from '../os/log-files.ts';
import { damaged } from './damage.ts';
import { readUpTo } from './decoder.ts';
import { type EncodedFrame, encodeEvents, encodeFrame, itemBytes } from './encoder.ts';
import { EpochDirectory } from './epoch-directory.ts';
import { EpochReader } from './epoch-reader.ts';
import { EpochTaker, type Taken } from './epoch-taker.ts';
import { appendAll, onStorage, reasonOf } from './failure.ts';
import { type HeldToken, HostTokens, type KeptToken, pollLock } from './host-tokens.ts';
import type { CommitContext, Committed, Decision, LeaseLog, LogNotice, LogPosition, LogView } from './log.ts';
import { type Machine, type View, viewOf } from './machine.ts';
import { HostMemory, type Seen } from './memory.ts';
import { EVENTS_HEADER_BYTES, type LogHeader, PAYLOAD_BYTES_MAX, TYPE } from './record.ts';
import { type Mark, type Replay, readHeader } from './replay.ts';
import type { StoragePort } from './storage.ts';
import { type Clocks, stepBetween } from './token.ts';

export type EpochLogPorts = {
  readonly files: LogFiles;
  /** Of this host's own disk, for the token files and the memory; `files` where they are the same. */
  readonly hostFiles?: LogFiles;
  readonly clock: Clock;
  /** Of this boot; a token of another boot proves nothing. */
  readonly bootId: string;
  readonly processId: number;
  randomBytes(count: number): Uint8Array;
  wait(milliseconds: number): Promise<void>;
  readonly storage: StoragePort;
};

export type EpochLogOptions = {
  /** Holds leases.wal.N. Never made here. */
  readonly directory: string;
  /** Private to root and empty after a boot: token files. Made where it is missing. */
  readonly runDirectory: string;
  /** File on this host's own disk: what it has seen of the log. Its directory is made where it is missing. */
  readonly memoryPath: string;
  readonly cluster: string;
  readonly instance: string;
  /** Name of this host in the headers of its epochs. */
  readonly host: string;
  /** The log lies on a disk of this host alone: what its processes see of it is never stale. */
  readonly isLocal?: boolean;
  readonly lockTimeoutMs: number;
  /** A commit that held the log for longer acknowledges nothing by itself: the next epoch decides. */
  readonly holdTimeoutMs: number;
  /** The owner goes on in a new file when there are more bytes of events than these, and than of the checkpoint. */
  readonly tailBytesMin: number;
};

/** The file of an epoch of this host: the one descriptor that this process has of it. */
type OpenLog<State, Event> = {
  readonly epoch: number;
  readonly path: string;
  readonly file: LogFile;
  readonly identity: string;
  readonly header: LogHeader;
  /** Its token file between two commits. */
  token: KeptToken | undefined;
  readonly replay: Replay<State, Event>;
  /** What this host had seen when the file was opened. */
  readonly seen: Seen | undefined;
  /** The replay has been held against it. */
  isChecked: boolean;
  isLocked: boolean;
  /** The storage's clock minus this host's when the last record was written, milliseconds. */
  skewMs: number;
};

/** Token file and log of the newest epoch, both locked, and the state replayed to the log's end. */
type Held<State, Event> = {
  readonly token: HeldToken;
  readonly log: OpenLog<State, Event>;
  readonly untilMs: number;
  /** Those of the moment from which on this host owns the log. */
  readonly clocks: Clocks;
};

/** A commit that waits for its turn. */
type Waiting<State, Event> = {
  decide(state: State, context: CommitContext): readonly Event[];
  resolve(position: LogPosition, notices: readonly LogNotice[]): void;
  reject(error: unknown): void;
};

/** Commits decided one after the other: what becomes one record, and what each of them hears when it counts. */
type Round<State, Event> = {
  readonly events: readonly Uint8Array[];
  readonly settled: readonly {
    readonly waiting: Waiting<State, Event>;
    readonly refusal: { readonly error: unknown } | undefined;
  }[];
  /** An event did not apply to the state that its own commit was shown: a bug, found before anything was written. */
  readonly isSpoilt: boolean;
};

const ENTER_ATTEMPTS_MAX = 16;
const COMMITS_PER_RECORD_MAX = 4096;
const UNCHANGED = 'nothing was written to the lease log';

const positionOf = ({ epoch, token, host }: LogHeader, { sequence }: Mark): LogPosition => ({
  epoch,
  token,
  host,
  sequence,
});

/** For the next commit to an open log. */
const contextOf = (
  {
    header: { epoch, token, host },
    replay,
    skewMs,
  }: { readonly header: LogHeader; readonly replay: { readonly last: Mark }; readonly skewMs: number },
  wallMs: number,
  stepMs: number | undefined,
): CommitContext => {
  const { sequence } = replay.last;
  return { epoch, token, host, sequence, wallMs, skewMs, stepMs };
};

/** Why a record that was written is not acknowledged in its own epoch. */
const doubt = (message: string): XceError => new XceError('log-io', message);

/**
 *   idle --enter--> held --decide--> decided --append, fsync--> written --look, unlock--> acknowledged --> idle
 *             |      ^ ^                |                          |
 *             |      | |                +--no events--> look --> answered --> idle
 *             |      | |                                           |
 *             +-fenced |                                           +-- a successor: outcome unknown
 *             |      | |                                           |
 *             | busy mark, torn tail                    any failure, or held for too long
 *             v      | |                                           v
 *           idle   taking (next epoch) <---------------------------+
 *                    |
 *                    +-- the record is in the base: acknowledged
 *                    +-- it is not: log-io; it never counts
 *                    +-- the epoch cannot be taken: outcome unknown
 *
 * Whatever fails between append and acknowledgement drops the state and the descriptor: the next enter begins from
 * the bytes. Calls of one instance run one after the other, and commits that wait together become one record.
 */
export class EpochLog<State, Event> implements LeaseLog<State, Event> {
  readonly #ports: EpochLogPorts;
  readonly #options: EpochLogOptions;
  readonly #view: View<State, Event>;
  readonly #directory: EpochDirectory;
  readonly #tokens: HostTokens;
  readonly #memory: HostMemory;
  readonly #reader: EpochReader<State, Event>;
  readonly #taker: Pick<EpochTaker<unknown, Event>, 'take' | 'createFirst' | 'requireNone'>;
  #open: OpenLog<State, Event> | undefined;
  #turn: Promise<unknown> = Promise.resolve();
  #waiting: Waiting<State, Event>[] = [];
  /** What nobody has been told yet, of what went on behind a commit. */
  #untold: LogNotice[] = [];
  /** After a compaction that could not be, the next is tried when the log has this many bytes. */
  #compactFromBytes = 0;
  #isClosed = false;

  /** With a view, `commit` and `read` show its state; epochs are taken with the whole machine in any case. */
  constructor(
    ports: EpochLogPorts,
    options: EpochLogOptions,
    machine: Machine<State, Event> | View<State, Event>,
  ) {
    this.#ports = ports;
    this.#options = options;
    this.#view = 'withMachine' in machine ? machine : viewOf(machine);
    this.#directory = new EpochDirectory(ports.files, options, ports.storage);
    const hostFiles = ports.hostFiles ?? ports.files;
    this.#tokens = new HostTokens({ ...ports, files: hostFiles }, options.runDirectory);
    const { identity } = this.#directory;
    this.#memory = new HostMemory({ ...ports, files: hostFiles }, options.memoryPath, identity);
    const parts = { directory: this.#directory, tokens: this.#tokens, memory: this.#memory };
    this.#reader = new EpochReader(parts.directory, this.#view, ports.wait);
    this.#taker = this.#view.withMachine((whole) => new EpochTaker(ports, options, whole, parts));
  }

  init(): Promise<LogPosition> {
    return this.#inTurn(() => this.#taker.createFirst());
  }

  requireNone(): Promise<void> {
    return this.#inTurn(() => this.#taker.requireNone());
  }

  read(): Promise<LogView<State>> {
    return this.#inTurn(() => this.#readUnlocked());
  }

  owns({ epoch, token }: Pick<LogPosition, 'epoch' | 'token'>): Promise<boolean> {
    return this.#inTurn(async () => (await this.#tokens.read(epoch))?.token === token);
  }

  commit<Result>(
    decide: (state: State, context: CommitContext) => Decision<Event, Result>,
  ): Promise<Committed<Result>> {
    return new Promise((resolve, reject) => {
      let result: { readonly value: Result } | undefined;
      this.#waiting.push({
        decide: (state, context) => {
          const decision = decide(state, context);
          result = { value: decision.result };
          return decision.events;
        },
        resolve: (position, notices) => {
          assert(result !== undefined, 'a commit is decided before it is acknowledged');
          resolve({ result: result.value, position, notices });
        },
        reject,
      });
      // Those that come until this one has its turn go with it, and find nothing left to do.
      this.#inTurn(() => this.#commitWaiting()).catch(reject);
    });
  }

  guess<Result>(decide: (state: State, context: CommitContext) => Result): Result | undefined {
    const open = this.#open;
    if (open === undefined || !open.isChecked) return undefined;
    return decide(open.replay.state, contextOf(open, this.#ports.clock.wallMs(), undefined));
  }

  takeover(): Promise<LogPosition & { readonly notices: readonly LogNotice[] }> {
    return this.#inTurn(() => this.#takeOver());
  }

  compact(): Promise<LogPosition & { readonly notices: readonly LogNotice[] }> {
    return this.#inTurn(async () => {
      const notices: LogNotice[] = [];
      const held = await this.#enter(notices);
      try {
        return { ...(await this.#takeForCaller(held.log.epoch + 1, notices, 'itself')), notices };
      } finally {
        await this.#tokens.release(held.token);
      }
    });
  }

  close(): Promise<readonly LogNotice[]> {
    return this.#inTurn(async () => {
      this.#isClosed = true;
      await this.#drop();
      const notices = this.#untold.splice(0);
      await this.#noting(notices, this.#memory.path, () => this.#memory.close());
      return notices;
    });
  }

  #inTurn<T>(call: () => Promise<T>): Promise<T> {
    const turn = this.#turn.then(() => {
      assert(!this.#isClosed, 'a closed log is not used');
      return call();
    });
    // The caller of this turn hears of its failure; the next turn begins anew.
    this.#turn = turn.catch(() => undefined);
    return turn;
  }

  // -- holding and letting go -----------------------------------------------------------------------------------

  /** Gives up the descriptor of the log, and with it the replayed state. */
  async #drop(): Promise<void> {
    const open = this.#open;
    this.#open = undefined;
    if (open === undefined) return;
    try {
      if (open.isLocked) open.file.unlock();
    } catch {
      // The lock between hosts is a courtesy, and closing gives it back where unlocking fails.
    }
    try {
      await open.token?.file.close();
    } finally {
      await open.file.close();
    }
  }

  /** Gives back the lock on the log and keeps the descriptor, with the state, for the next commit. */
  #unlock(log: OpenLog<State, Event>): void {
    if (!log.isLocked) return;
    log.file.unlock();
    log.isLocked = false;
  }

  #deadlineMs(): number {
    return this.#ports.clock.monotonicMs() + this.#options.lockTimeoutMs;
  }

  #fenced(epoch: number, header: LogHeader | undefined): XceError {
    const { host } = this.#options;
    const facts = { at: this.#directory.pathOf(epoch), unchanged: UNCHANGED };
    if (header === undefined) {
      return new XceError('log-fenced', `epoch ${epoch} was begun and never owned by anyone`, {
        ...facts,
        next: 'if no other controller is taking it: xce-sandbox lease takeover',
      });
    }
    const detail = { epoch, owner: header.host };
    if (header.host === host) {
      const message = `this host (${host}) took epoch ${epoch} and has no token of it (a restart, or an interruption)`;
      return new XceError('log-fenced', message, { ...facts, next: 'xce-sandbox lease takeover', detail });
    }
    return new XceError('log-fenced', `epoch ${epoch} belongs to ${header.host}`, {
      ...facts,
      next: `do it on ${header.host}; if that host is gone, or this one is to write from now on: xce-sandbox lease takeover`,
      detail,
    });
  }

  /** Why this host may not write. What is wrong with the log itself comes before whose it is, and is thrown. */
  async #refusal(epoch: number, header: LogHeader | undefined): Promise<XceError> {
    const seen = await this.#memory.load();
    const { newest, replay } = await this.#reader.replayNewest(() => this.#directory.newest(), seen);
    await this.#reader.checkSeen(newest, replay, seen);
    return this.#fenced(epoch, header);
  }

  // -- commit ---------------------------------------------------------------------------------------------------

  async #commitWaiting(): Promise<void> {
    // Each commit has asked for a turn of its own, and each turn settles at least one: none is left over.
    const first = this.#waiting.length;
    if (first === 0) return;
    const notices = this.#untold.splice(0);
    let waiting: readonly Waiting<State, Event>[] | undefined;
    let round: Round<State, Event> | undefined;
    try {
      const held = await this.#enter(notices);
      try {
        // With those that have come meanwhile: the state is as new for them.
        waiting = this.#waiting.splice(0, COMMITS_PER_RECORD_MAX);
        round = this.#decide(held, waiting);
        const position = await (round.events.length === 0
          ? this.#answer(held)
          : this.#write(held, round.events, notices));
        if (round.isSpoilt) await this.#drop();
        for (const { waiting: one, refusal } of round.settled) {
          if (refusal === undefined) one.resolve(position, notices);
          else one.reject(refusal.error);
        }
        if (round.events.length > 0) await this.#tend(held.log);
      } finally {
        await this.#letGo(held);
      }
    } catch (error) {
      const failed = round?.settled.map((each) => each.waiting) ?? waiting ?? this.#waiting.splice(0, first);
      try {
        await this.#drop();
      } finally {
        this.#untold.unshift(...notices);
        for (const one of failed) one.reject(error);
      }
    }
  }

  /** For the next commit the token file stays open as long as its log does. */
  #letGo({ token, log }: Held<State, Event>): Answer<void> {
    if (this.#open !== log) return this.#tokens.release(token);
    return after(this.#tokens.keep(token), (kept) => {
      log.token = kept;
    });
  }

  /** Steps 1 to 4. Takes the next epoch where something of this host was left unfinished. */
  async #enter(notices: LogNotice[]): Promise<Held<State, Event>> {
    const deadlineMs = this.#deadlineMs();
    for (let attempt = 0; attempt < ENTER_ATTEMPTS_MAX; attempt++) {
      // That a log which this process has open is still the newest is looked at under the lock.
      const epoch = this.#open?.epoch ?? (await this.#directory.newest());
      const header = this.#open?.header ?? (await this.#ownHeader(epoch));
      if (header === undefined) continue;
      // A log that is open lies on the mount that let it in.
      if (this.#open === undefined) await this.#directory.admit();
      const token = await this.#lockToken(epoch, deadlineMs);
      if (token === undefined) {
        if (!(await this.#isOver(epoch))) throw await this.#refusal(epoch, header);
        continue;
      }
      let held: Held<State, Event> | undefined;
      try {
        held = await this.#holdOrTake(token, header, deadlineMs, notices);
      } finally {
        if (held?.token !== token) await this.#tokens.release(token);
      }
      if (held !== undefined) return held;
    }
    throw new XceError('log-busy', 'the lease log changed hands again and again', {
      at: this.#directory.path,
      unchanged: UNCHANGED,
      next: 'try again',
    });
  }

  /** Step 2, with the token file that this process has open, or a new descriptor of it. */
  #lockToken(epoch: number, deadlineMs: number): Answer<HeldToken | undefined> {
    const open = this.#open;
    const kept = open?.token;
    if (open === undefined || kept === undefined) return this.#tokens.lockOwn(epoch, deadlineMs);
    open.token = undefined;
    return this.#tokens.lockKept(kept, deadlineMs);
  }

  /**
   * Whether an epoch is the newest no more, or its name stands for another file than the log that is open; then that is
   * given up.
   */
  #isOver(epoch: number): Answer<boolean> {
    return after(this.#directory.identifyNewest(epoch), (identity) => {
      if (identity !== undefined && identity === (this.#open?.identity ?? identity)) return false;
      return this.#drop().then(() => true);
    });
  }

  /** The header of an epoch that this host has the token of; undefined when it is over. Throws 'log-fenced'. */
  async #ownHeader(epoch: number): Promise<LogHeader | undefined> {
    const header = await this.#directory.headerOf(epoch);
    const token = await this.#tokens.read(epoch);
    if (header !== undefined && token?.token === header.token) return header;
    // File and token of an epoch that was replaced meanwhile may be gone already.
    if (await this.#isOver(epoch)) return undefined;
    throw await this.#refusal(epoch, header);
  }

  /** Undefined when the epoch of the token is no longer the newest, or another was faster with the next one. */
  async #holdOrTake(
    token: HeldToken,
    header: LogHeader,
    deadlineMs: number,
    notices: LogNotice[],
  ): Promise<Held<State, Event> | undefined> {
    const { epoch } = token;
    const proof = await this.#tokens.look(token);
    if (proof?.token !== header.token) {
      if (await this.#isOver(epoch)) return undefined;
      throw await this.#refusal(epoch, header);
    }
    let reason = 'a process of this host ended in the middle of a take or a commit';
    if (!proof.isBusy) {
      let log: OpenLog<State, Event>;
      let untilMs: number;
      try {
        log = await this.#lockLog(epoch, deadlineMs);
        untilMs = this.#ports.clock.monotonicMs() + this.#options.holdTimeoutMs;
        await this.#catchUp(log);
      } catch (error) {
        // What was replaced may have been emptied.
        if (await this.#isOver(epoch)) return undefined;
        throw error;
      }
      // As late as can be: who was stopped until now must not write into a log that is over.
      if (await this.#isOver(epoch)) return undefined;
      if (!log.isChecked && log.replay.complete !== undefined) {
        await this.#reader.checkSeen(epoch, log.replay, log.seen);
        log.isChecked = true;
      }
      if (log.replay.complete !== undefined && log.replay.tornBytes === 0) {
        return { token, log, untilMs, clocks: proof.clocks };
      }
      reason = 'the log ended in an incomplete record';
    }
    const taken = await this.#take(epoch + 1, notices);
    if (taken === undefined) return undefined;
    notices.push({ kind: 'epoch-taken', epoch: epoch + 1, reason });
    try {
      const log = await this.#lockLog(epoch + 1, this.#deadlineMs());
      const untilMs = this.#ports.clock.monotonicMs() + this.#options.holdTimeoutMs;
      await this.#catchUp(log);
      return { token: taken.token, log, untilMs, clocks: proof.clocks };
    } catch (error) {
      await this.#tokens.release(taken.token);
      throw error;
    }
  }

  /** Step 3, with the descriptor of the epoch that this process has, or a new one. */
  #lockLog(epoch: number, deadlineMs: number): Answer<OpenLog<State, Event>> {
    return after(this.#open ?? this.#openLog(epoch), (log) => {
      this.#open = log;
      assert(log.epoch === epoch && !log.isLocked, 'the open log is the newest, and not locked yet');
      return after(pollLock(log.file, log.path, deadlineMs, this.#ports), () => {
        log.isLocked = true;
        return log;
      });
    });
  }

  async #openLog(epoch: number): Promise<OpenLog<State, Event>> {
    const path = this.#directory.pathOf(epoch);
    const seen = await this.#memory.load();
    const file = await this.#directory.openExisting(epoch, 'append');
    try {
      const { identity } = await onStorage('look at', path, () => file.facts());
      const header = await onStorage('read', path, () =>
        readHeader(file, path, epoch, this.#directory.identity),
      );
      if (header === undefined) throw this.#fenced(epoch, header);
      await this.#directory.checkStorage(header);
      const replay = this.#reader.newReplay(epoch, seen);
      return {
        epoch,
        path,
        file,
        identity,
        header,
        token: undefined,
        replay,
        seen,
        isChecked: false,
        isLocked: false,
        skewMs: 0,
      };
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  /** Step 4: the state to the end of the log. */
  #catchUp(log: OpenLog<State, Event>): Answer<void> {
    const { file, path, replay } = log;
    const synced = this.#options.isLocal ? undefined : onStorage('fsync', path, () => file.sync());
    return after(synced, () =>
      after(
        onStorage('look at', path, () => file.facts()),
        ({ bytes, writtenMs }) => {
          const { offset } = replay.position;
          if (bytes < offset) {
            const { path: directory } = this.#directory;
            throw damaged('rollback', `${path} is shorter than this process has seen it`, {
              directory,
              what: path,
            });
          }
          const read = bytes > offset ? onStorage('read', path, () => replay.advance(file)) : undefined;
          return after(read, () => {
            log.skewMs = Math.round(writtenMs) - replay.wallMs;
          });
        },
      ),
    );
  }

  /** Step 5. Puts commits that do not fit into the record back in front of the others. */
  #decide(held: Held<State, Event>, waiting: readonly Waiting<State, Event>[]): Round<State, Event> {
    const { replay } = held.log;
    const { state } = replay;
    const view = this.#view;
    const encode = (event: Event): Uint8Array => view.withMachine((machine) => machine.encode(event));
    const now = this.#tokens.clocksNow();
    const { wallMs } = now;
    const context = contextOf(held.log, wallMs, stepBetween(held.clocks, now));
    const events: Uint8Array[] = [];
    const settled: { waiting: Waiting<State, Event>; refusal: { error: unknown } | undefined }[] = [];
    let roundBytes = EVENTS_HEADER_BYTES;
    for (const [index, one] of waiting.entries()) {
      let encoded: readonly Uint8Array[];
      try {
        encoded = one.decide(state, context).map(encode);
      } catch (error) {
        settled.push({ waiting: one, refusal: { error } });
        continue;
      }
      const bytes = encoded.reduce((sum, event) => sum + itemBytes(event), 0);
      if (EVENTS_HEADER_BYTES + bytes > PAYLOAD_BYTES_MAX) {
        const error = new XceError('too-large', `the events of one commit are ${bytes} bytes`, {
          unchanged: UNCHANGED,
        });
        settled.push({ waiting: one, refusal: { error } });
        continue;
      }
      if (roundBytes + bytes > PAYLOAD_BYTES_MAX) {
        this.#waiting.unshift(...waiting.slice(index));
        break;
      }
      try {
        // What is applied is what a later replay will decode.
        for (const event of encoded) view.replay(state, event);
      } catch (error) {
        // The others begin again, with a new state.
        this.#waiting.unshift(...waiting.filter((other) => other !== one));
        return { events: [], settled: [{ waiting: one, refusal: { error } }], isSpoilt: true };
      }
      events.push(...encoded);
      roundBytes += bytes;
      settled.push({ waiting: one, refusal: undefined });
    }
    return { events, settled, isSpoilt: false };
  }

  /** Step 7 for a commit without events: what it read was the newest. */
  async #answer({ log }: Held<State, Event>): Promise<LogPosition> {
    if (await this.#directory.hasSuccessor(log.epoch)) throw await this.#fencedBySuccessor(log.epoch);
    await onStorage('unlock', log.path, async () => this.#unlock(log));
    return positionOf(log.header, log.replay.last);
  }

  async #fencedBySuccessor(epoch: number): Promise<XceError> {
    return this.#fenced(epoch + 1, await this.#directory.headerOf(epoch + 1));
  }

  /** Steps 6 to 8. */
  async #write(
    held: Held<State, Event>,
    events: readonly Uint8Array[],
    notices: LogNotice[],
  ): Promise<LogPosition> {
    const { log, token } = held;
    const wallMs = this.#ports.clock.wallMs();
    const frame = encodeFrame(TYPE.events, encodeEvents(wallMs, events), log.replay.position);
    await this.#tokens.mark(token, true);
    try {
      await this.#append(log, frame);
      if (await this.#directory.hasSuccessor(log.epoch)) throw await this.#fencedBySuccessor(log.epoch);
      if (this.#ports.clock.monotonicMs() > held.untilMs) throw doubt('the log was held for too long');
      this.#unlock(log);
    } catch (error) {
      return await this.#resolveDoubt(log, frame, error, notices);
    }
    log.replay.follow(frame.next, wallMs);
    await this.#remember(log, notices);
    await this.#markIdle(token, notices);
    return positionOf(log.header, log.replay.last);
  }

  async #append({ file }: OpenLog<State, Event>, { bytes, next }: EncodedFrame): Promise<void> {
    await appendAll(file, bytes);
    await file.sync();
    // With room for one byte more.
    const back = Buffer.allocUnsafe(bytes.length + 1);
    const length = await readUpTo(file, back, next.offset - bytes.length);
    if (length < bytes.length) throw doubt('the record is not in the file');
    if (bytes.compare(back, 0, bytes.length) !== 0) {
      throw doubt('the record does not read back as it was written');
    }
    if (length > bytes.length) throw doubt('something stands behind the record');
  }

  /** The one remedy: the next epoch says what became of the record. */
  async #resolveDoubt(
    log: OpenLog<State, Event>,
    frame: EncodedFrame,
    cause: unknown,
    notices: LogNotice[],
  ): Promise<LogPosition> {
    const reason = reasonOf(cause);
    const unknown = (message: string, causes: unknown): XceError =>
      new XceError('log-outcome-unknown', message, {
        at: log.path,
        next: 'look at the log (lease list) before you do it again',
        detail: { epoch: log.epoch, sequence: frame.next.sequence - 1 },
        cause: causes,
      });
    if (cause instanceof XceError && cause.code === 'log-fenced') {
      throw unknown(`epoch ${log.epoch + 1} was taken while a record was written to ${log.path}`, cause);
    }
    let taken: Taken | undefined;
    try {
      taken = await this.#take(log.epoch + 1, notices);
    } catch (error) {
      const message = `a record may be in ${log.path} (${reason}), and the next epoch could not be taken: ${reasonOf(error)}`;
      throw unknown(message, new AggregateError([cause, error]));
    }
    if (taken === undefined) {
      throw unknown(`a record may be in ${log.path} (${reason}), and another took the next epoch`, cause);
    }
    await this.#tokens.release(taken.token);
    notices.push({ kind: 'epoch-taken', epoch: taken.header.epoch, reason });
    const { epoch, sequence, chain } = taken.base;
    if (epoch === log.epoch && sequence === frame.next.sequence - 1 && chain === frame.next.chain) {
      return positionOf(taken.header, taken.last);
    }
    throw new XceError('log-io', `a record could not be written to ${log.path}: ${reason}`, {
      at: log.path,
      unchanged: `the record does not count; epoch ${taken.header.epoch} goes on without it`,
      detail: { notices },
      cause,
    });
  }

  // -- behind a commit ------------------------------------------------------------------------------------------

  /**
   * What the owner does when a record has been acknowledged, with the token of the epoch still held. The record counts
   * whatever becomes of it: failures are told to whoever comes next.
   */
  #tend(log: OpenLog<State, Event>): Answer<void> {
    // After a doubt the log is another one.
    if (this.#open !== log) return;
    const { isFirstOfEvents, tailBytes, baseBytes } = log.replay;
    const isLong = tailBytes > Math.max(this.#options.tailBytesMin, baseBytes);
    return after(isFirstOfEvents ? this.#emptySuperseded(log) : undefined, () =>
      isLong ? this.#compactBehind(log) : undefined,
    );
  }

  /** The epoch has acknowledged a record: what is below it will not be read again. Oldest first. */
  async #emptySuperseded(log: OpenLog<State, Event>): Promise<void> {
    const { epoch } = log;
    let path = this.#directory.path;
    try {
      let oldest = epoch;
      while (oldest > 1 && (await this.#directory.sizeOf(oldest - 1)) > 0) oldest -= 1;
      for (let below = oldest; below < epoch; below++) {
        path = this.#directory.pathOf(below);
        // In a directory that was put back to what it had been before, the file below may be the log.
        if ((await this.#ports.files.identify(log.path)) !== log.identity) return;
        await this.#directory.empty(below);
      }
      path = this.#tokens.path;
      await this.#tokens.removeBelow(epoch);
    } catch (error) {
      this.#untold.push({ kind: 'not-emptied', path, reason: reasonOf(error) });
    }
  }

  /** Goes on in a new file, where there are numbers and room left for one: an epoch that fails half-way is lost. */
  async #compactBehind({ epoch, path, replay }: OpenLog<State, Event>): Promise<void> {
    const { offset } = replay.position;
    if (epoch >= LIMITS.logEpochsCompactMax || offset < this.#compactFromBytes) return;
    let reason: string;
    try {
      const freeBytes = await this.#ports.files.freeBytes(this.#directory.path);
      if (freeBytes >= 2 * offset) {
        const taken = await this.#take(epoch + 1, this.#untold);
        if (taken !== undefined) await this.#tokens.release(taken.token);
        this.#compactFromBytes = 0;
        return;
      }
      reason = `${freeBytes} bytes are free, and twice ${offset} are wanted`;
    } catch (error) {
      reason = reasonOf(error);
    }
    this.#compactFromBytes = 2 * offset;
    this.#untold.push({ kind: 'not-compacted', path, reason });
  }

  // -- the next epoch ------------------------------------------------------------------------------------------

  async #takeOver(): Promise<LogPosition & { readonly notices: readonly LogNotice[] }> {
    const notices: LogNotice[] = [];
    const before = await this.#waitForOwn(await this.#directory.newest());
    try {
      return {
        ...(await this.#takeForCaller((await this.#directory.newest()) + 1, notices, 'operator')),
        notices,
      };
    } finally {
      if (before !== undefined) await this.#tokens.release(before);
    }
  }

  /** Where this host owns the epoch, lets a process of it finish first; it is no condition. */
  async #waitForOwn(epoch: number): Promise<HeldToken | undefined> {
    try {
      if ((await this.#tokens.read(epoch)) === undefined) return undefined;
      return await this.#tokens.lock(epoch, this.#deadlineMs());
    } catch (error) {
      // A process that is stuck, or a token file that is broken, must not keep the next epoch: what is written to
      // this one from now on will not count.
      if (error instanceof XceError && (error.code === 'log-busy' || error.code === 'io')) return undefined;
      throw error;
    }
  }

  /** Takes an epoch. Undefined when another was faster; else its token is held. */
  async #take(
    epoch: number,
    notices: LogNotice[],
    by: 'itself' | 'operator' = 'itself',
  ): Promise<Taken | undefined> {
    // One descriptor of a log per process: the one of the epoch below goes first.
    await this.#drop();
    return await this.#taker.take(epoch, by, notices);
  }

  async #takeForCaller(epoch: number, notices: LogNotice[], by: 'itself' | 'operator'): Promise<LogPosition> {
    const taken = await this.#take(epoch, notices, by);
    if (taken === undefined) {
      const newest = await this.#directory.newest();
      throw this.#fenced(newest, await this.#directory.headerOf(newest));
    }
    await this.#tokens.release(taken.token);
    return positionOf(taken.header, taken.last);
  }

  // -- reading --------------------------------------------------------------------------------------------------

  /** For a record that counts already: that it could not be written down takes nothing from it. */
  #remember({ header, replay }: OpenLog<State, Event>, notices: LogNotice[]): Answer<void> {
    const { sequence, chain } = replay.last;
    const seen = { epoch: header.epoch, token: header.token, sequence, chain };
    return this.#noting(notices, this.#memory.path, () => this.#memory.remember(seen));
  }

  #noting(notices: LogNotice[], path: string, step: () => Answer<void>): Answer<void> {
    return attempt(step, (error) => {
      notices.push({ kind: 'not-remembered', path, reason: reasonOf(error) });
    });
  }

  /** Likewise: who finds the epoch busy takes the next one. */
  #markIdle(token: HeldToken, notices: LogNotice[]): Answer<void> {
    return this.#noting(notices, token.path, () => this.#tokens.mark(token, false));
  }

  /** Once, however often it is read. */
  #tellTorn(tail: Omit<LogNotice & { kind: 'torn-tail' }, 'kind'>): void {
    const isTold = this.#untold.some((one) => one.kind === 'torn-tail' && one.path === tail.path);
    if (!isTold) this.#untold.push({ kind: 'torn-tail', ...tail });
  }

  async #readUnlocked(): Promise<LogView<State>> {
    const seen = await this.#memory.load();
    const { newest, replay } = await this.#reader.replayNewest(() => this.#directory.newest(), seen);
    await this.#reader.checkSeen(newest, replay, seen);
    const { header, before, state, tornBytes } = replay;
    assert(header !== undefined, 'a complete epoch has a header');
    await this.#directory.checkStorage(header);
    // The last record may not be acknowledged, and the complete record not be durable yet; the owner wrote a record
    // of events only when what stands before it was both.
    if (before !== undefined && replay.endsWithEvents) {
      const known = { epoch: header.epoch, token: header.token, ...before };
      await onStorage('write', this.#memory.path, () => this.#memory.remember(known));
    }
    const newestHeader = newest === replay.epoch ? header : await this.#directory.headerOf(newest);
    const token = await this.#tokens.read(newest);
    const owned = newestHeader !== undefined && token?.token === newestHeader.token;
    if (tornBytes > 0)
      this.#tellTorn({ path: replay.path, offset: replay.position.offset, bytes: tornBytes });
    return { ...positionOf(header, replay.last), state, owned, tornBytes };
  }
}
