/**
 * What becomes part of the log from now on, across epochs and without a lock: xce-sandbox-log(5), WATCH.
 *
 *     poll: read the tail --> look --no successor--> show the last record as well --> wait
 *                              |
 *                              +--a successor--> the last record is held
 *                                                  |
 *             the newest epoch is complete, and has no successor itself? --no--> wait
 *                                                  | yes
 *             from each complete epoch to the next: the rest of the tail, as far as the base goes; then the epoch
 *
 * One record is held at most, and a portion is read at a time: memory does not grow with the log.
 */
import type { Answer } from '../base/answer.ts';
import type { XceError } from '../base/errors.ts';
import type { LogFile } from '../os/log-files.ts';
import { type Base, readBase } from './base.ts';
import { damaged, fileGone, noneComplete } from './damage.ts';
import { isWithoutStart, readFrames } from './decoder.ts';
import type { DumpPorts } from './dump.ts';
import { type EntryCodec, EntryReader, type LogEntry } from './entries.ts';
import { EpochDirectory, type EpochDirectoryOptions } from './epoch-directory.ts';
import { onStorage } from './failure.ts';
import { mayGo, readAgain } from './read-again.ts';
import { corruptLog, type FramePosition } from './record.ts';

export type FollowPorts = DumpPorts & {
  /** Resolves when it is time to look again: true, or false to end. */
  nextPoll(): Promise<boolean>;
};

type EventsEntry<Event> = Extract<LogEntry<never, Event>, { type: 'events' }>;

/** A record of one epoch. */
type Place = { readonly epoch: number; readonly sequence: number };

export type Followed<Event> =
  | EventsEntry<Event>
  /** What comes next is of this epoch, and stands behind this record of it. */
  | (Place & { readonly type: 'epoch'; readonly host: string; readonly wallMs: number; readonly base: Place })
  /** From the one to the other record, both included, the log was emptied before it was read. */
  | { readonly type: 'gap'; readonly from: Place; readonly to: Place }
  /** Storage lost these records after they were shown, before they were acknowledged: they do not count. */
  | { readonly type: 'withdrawn'; readonly from: Place; readonly to: Place };

type Portions<Event, End> = AsyncGenerator<readonly Followed<Event>[], End>;

const baseOf = ({ complete }: Base): Place => ({
  epoch: complete.baseEpoch,
  sequence: complete.baseSequence,
});

class Follower<Event> {
  readonly #ports: FollowPorts;
  readonly #directory: EpochDirectory;
  readonly #codec: EntryCodec<never, Event>;
  /** The epoch that is followed, and where the next record of it will stand. */
  #base: Base;
  #position: FramePosition;
  /** The last record that was read, and not shown: nothing stands behind it. */
  #held: EventsEntry<Event> | undefined;
  /** The last record of the epoch that was shown. */
  #shown: number | undefined;

  constructor(
    ports: FollowPorts,
    directory: EpochDirectory,
    codec: EntryCodec<never, Event>,
    from: { readonly base: Base; readonly end: FramePosition },
  ) {
    this.#ports = ports;
    this.#directory = directory;
    this.#codec = codec;
    this.#base = from.base;
    this.#position = from.end;
  }

  /** Ends when the ports say so. */
  async *follow(): Portions<Event, void> {
    yield [this.#announcement()];
    for (;;) {
      const isWhole = yield* this.#readTail(Number.MAX_SAFE_INTEGER);
      let hasMoved = false;
      if (await this.#directory.hasSuccessor(this.#base.epoch)) {
        hasMoved = yield* this.#goOn();
      } else {
        if (!isWhole) throw this.#cut();
        const last = this.#show(Number.MAX_SAFE_INTEGER);
        if (last.length > 0) yield last;
      }
      if (!hasMoved && !(await this.#ports.nextPoll())) return;
    }
  }

  #announcement(): Followed<Event> {
    const { epoch, header, complete } = this.#base;
    const sequence = this.#position.sequence - 1;
    return {
      type: 'epoch',
      epoch,
      sequence,
      host: header.host,
      wallMs: complete.wallMs,
      base: baseOf(this.#base),
    };
  }

  /** An emptied file always has a complete one above it. */
  #cut(): XceError {
    const path = this.#directory.pathOf(this.#base.epoch);
    const { path: directory } = this.#directory;
    return damaged('void', `${path} was cut short, and no epoch is there above it`, {
      directory,
      what: path,
    });
  }

  /** Whether the file of the epoch is still there as far as it was read. */
  async #isWhole(file: LogFile): Promise<boolean> {
    if (await isWithoutStart(file)) return false;
    return (await file.facts()).bytes >= this.#position.offset;
  }

  /** The held record, when it is no later than `upTo`. */
  #show(upTo: number): readonly Followed<Event>[] {
    const held = this.#held;
    if (held === undefined || held.sequence > upTo) return [];
    this.#held = undefined;
    this.#shown = held.sequence;
    return [held];
  }

  /** Each record that another stands behind. */
  #advance(entries: readonly LogEntry<never, Event>[], upTo: number): readonly Followed<Event>[] {
    const facts: Followed<Event>[] = [];
    for (const entry of entries) {
      if (entry.type !== 'events') {
        const path = this.#directory.pathOf(entry.epoch);
        throw corruptLog(path, entry.offset, 'something else than events stands behind the complete record');
      }
      facts.push(...this.#show(upTo));
      this.#held = entry;
    }
    return facts;
  }

  /**
   * Reads on in the epoch's file, no further than the record `upTo`, and holds the last record. False when the file
   * was emptied; nothing that was read until then is lost.
   */
  async *#readTail(upTo: number): Portions<Event, boolean> {
    const { epoch } = this.#base;
    const path = this.#directory.pathOf(epoch);
    const file = await openFresh(this.#directory, epoch);
    try {
      const isWhole = (): Answer<boolean> => onStorage('read', path, () => this.#isWhole(file));
      if (!(await isWhole())) return false;
      const place = { path, epoch, identity: this.#directory.identity };
      const { wait } = this.#ports;
      const reader = new EntryReader(file, place, this.#codec, wait, this.#position);
      const portions = reader.portions();
      for (;;) {
        let portion: readonly LogEntry<never, Event>[];
        try {
          const { done, value } = await onStorage('read', path, () => portions.next());
          if (done === true) break;
          portion = value;
        } catch (error) {
          // What stands in a file that was emptied meanwhile is no corruption.
          if (mayGo(error) && !(await isWhole())) return false;
          throw error;
        }
        const facts = this.#advance(portion, upTo);
        this.#position = reader.position;
        if (facts.length > 0) yield facts;
      }
      // Before it is shown: what was read may have stood in memory alone.
      if (this.#held !== undefined) await onStorage('fsync', path, () => file.sync());
      return await isWhole();
    } finally {
      await file.close();
    }
  }

  /** Follows the newest epoch, by way of those between. False when it is not complete yet, or has a successor. */
  async *#goOn(): Portions<Event, boolean> {
    const newest = await this.#directory.newest();
    const top = await readFresh(this.#ports, this.#directory, newest);
    if (top === undefined || (await this.#directory.hasSuccessor(newest))) return false;
    const chain = [top];
    for (let epoch = top.complete.baseEpoch; epoch > this.#base.epoch; ) {
      const below = await readFresh(this.#ports, this.#directory, epoch);
      if (below === undefined) break;
      chain.unshift(below);
      epoch = below.complete.baseEpoch;
    }
    for (const base of chain) {
      yield* this.#finish(baseOf(base));
      this.#base = base;
      this.#position = base.end;
      this.#held = undefined;
      this.#shown = undefined;
      yield [this.#announcement()];
    }
    return true;
  }

  /** Shows the epoch that is followed up to where the base of the next one goes. */
  async *#finish(base: Place): Portions<Event, void> {
    const { epoch } = this.#base;
    if (base.epoch !== epoch) {
      const gap = this.#skip(base);
      if (gap !== undefined) yield [gap];
      return;
    }
    yield* this.#readTail(base.sequence);
    const last = this.#show(base.sequence);
    if (last.length > 0) yield last;
    if (this.#position.sequence <= base.sequence) {
      yield [{ type: 'gap', from: { epoch, sequence: this.#position.sequence }, to: base }];
    }
    if (this.#shown !== undefined && this.#shown > base.sequence) {
      const from = { epoch, sequence: base.sequence + 1 };
      yield [{ type: 'withdrawn', from, to: { epoch, sequence: this.#shown } }];
    }
  }

  /** What is not known when the next epoch does not go on from the one that is followed. */
  #skip(base: Place): Followed<Event> | undefined {
    const { epoch } = this.#base;
    if (base.epoch > epoch) {
      // The file that says how far this one counts was emptied; so it is not known whether the held record does.
      const sequence = this.#held?.sequence ?? this.#position.sequence;
      return { type: 'gap', from: { epoch, sequence }, to: base };
    }
    // The epoch that is followed is void: it was completed when its successor was there already.
    const own = baseOf(this.#base);
    if (base.epoch === own.epoch && base.sequence <= own.sequence) return undefined;
    return { type: 'gap', from: { epoch: own.epoch, sequence: own.sequence + 1 }, to: base };
  }
}

/** An epoch's file, opened by name and fsynced. Throws 'log-missing' when the log is gone. */
const openFresh = async (directory: EpochDirectory, epoch: number): Promise<LogFile> => {
  const path = directory.pathOf(epoch);
  const file = await directory.open(epoch, 'read');
  if (file === undefined) {
    // Says which it is when all of the log is gone, as it is when its storage is not mounted any more.
    await directory.newest();
    throw fileGone(path);
  }
  try {
    await onStorage('fsync', path, () => file.sync());
    return file;
  } catch (error) {
    await file.close();
    throw error;
  }
};

const withFresh = async <T>(
  directory: EpochDirectory,
  epoch: number,
  read: (file: LogFile, path: string) => Promise<T>,
): Promise<T> => {
  const file = await openFresh(directory, epoch);
  const path = directory.pathOf(epoch);
  try {
    return await onStorage('read', path, () => read(file, path));
  } finally {
    await file.close();
  }
};

const readFresh = (ports: FollowPorts, directory: EpochDirectory, epoch: number): Promise<Base | undefined> =>
  readAgain(ports.wait, () =>
    withFresh(directory, epoch, (file, path) => readBase(file, path, epoch, directory.identity)),
  );

/** The newest complete epoch, and the end of what stands in it now. */
const findEnd = (
  ports: FollowPorts,
  directory: EpochDirectory,
): Promise<{ readonly base: Base; readonly end: FramePosition }> =>
  readAgain(ports.wait, async () => {
    const { identity } = directory;
    for (let epoch = await directory.newest(); epoch >= 1; epoch--) {
      const found = await withFresh(directory, epoch, async (file, path) => {
        const base = await readBase(file, path, epoch, identity);
        if (base === undefined) return undefined;
        const { position } = await readFrames(file, path, base.end, () => undefined);
        return { base, end: position };
      });
      if (found !== undefined) return found;
    }
    throw noneComplete(directory.path);
  });

/**
 * Begins with the epoch that is followed. Throws 'log-missing' when the log is gone, 'log-corrupt', 'log-version' or
 * 'log-foreign' behind the last record that checks, 'log-io'.
 */
export async function* followLog<Event>(
  ports: FollowPorts,
  options: EpochDirectoryOptions,
  decode: EntryCodec<never, Event>['decode'],
): Portions<Event, void> {
  const directory = new EpochDirectory(ports.files, options, ports.storage);
  // A checkpoint is passed by, and never read item by item.
  const codec: EntryCodec<never, Event> = { describe: () => [], decode };
  yield* new Follower(ports, directory, codec, await findEnd(ports, directory)).follow();
}
