/**
 * One epoch's file as a state. The order of records is a small machine of its own:
 *
 *     start --header--> checkpoint --complete--> events
 *                       |        ^               |     ^
 *                       +checkpoint              +events
 *
 * Any other record is corruption. Until `complete` the file is void: its checkpoint counts for nothing.
 */
import { XceError } from '../base/errors.ts';
import {
  type ByteSource,
  decodeCheckpoint,
  decodeComplete,
  decodeEvents,
  decodeHeader,
  type Frame,
  readFrames,
} from './decoder.ts';
import type { Machine } from './machine.ts';
import {
  type CompleteRecord,
  corruptLog,
  FILE_START,
  type FramePosition,
  type LogHeader,
  TYPE,
} from './record.ts';

/** Whose log it must be. */
export type LogIdentity = { readonly cluster: string; readonly instance: string };

/** One record of a file, told from every other by the checksum of everything up to it. */
export type Mark = { readonly sequence: number; readonly chain: number };

const markOf = ({ sequence, chain }: FramePosition): Mark | undefined =>
  sequence === 0 ? undefined : { sequence: sequence - 1, chain };

/** Throws 'log-foreign' for the log of another cluster or instance, 'log-corrupt' for another epoch's file. */
const checkHeader = (header: LogHeader, identity: LogIdentity, epoch: number, path: string): void => {
  if (header.cluster !== identity.cluster || header.instance !== identity.instance) {
    throw new XceError(
      'log-foreign',
      `${path} belongs to cluster ${JSON.stringify(header.cluster)}, instance ${JSON.stringify(header.instance)}`,
      { at: path, unchanged: 'nothing was written', next: 'correct [lease] directory' },
    );
  }
  if (header.epoch !== epoch) throw corruptLog(path, 0, `it is the log of epoch ${header.epoch}`);
};

/** Reads the header of an epoch's file; undefined when the file ends within it. */
export const readHeader = async (
  source: ByteSource,
  path: string,
  epoch: number,
  identity: LogIdentity,
): Promise<LogHeader | undefined> => {
  let header: LogHeader | undefined;
  await readFrames(
    source,
    path,
    FILE_START,
    ({ type, payload }) => {
      if (type !== TYPE.header) throw corruptLog(path, 0, 'it does not begin with a header');
      header = decodeHeader(payload, (reason) => corruptLog(path, 0, reason));
    },
    1,
  );
  if (header !== undefined) checkHeader(header, identity, epoch, path);
  return header;
};

export class Replay<State, Event> {
  readonly path: string;
  readonly epoch: number;
  readonly #identity: LogIdentity;
  readonly #machine: Machine<State, Event>;
  readonly #mark: Mark | undefined;
  readonly #state: State;
  #position: FramePosition = FILE_START;
  #tornBytes = 0;
  #items = 0;
  #markMet = false;
  #before: Mark | undefined;
  #header: LogHeader | undefined;
  #complete: CompleteRecord | undefined;
  #completeSequence = Number.MAX_SAFE_INTEGER;
  #wallMs = 0;

  constructor(
    machine: Machine<State, Event>,
    file: { readonly path: string; readonly epoch: number; readonly identity: LogIdentity },
    mark?: Mark,
  ) {
    this.#machine = machine;
    this.path = file.path;
    this.epoch = file.epoch;
    this.#identity = file.identity;
    this.#mark = mark;
    this.#state = machine.empty();
  }

  /** Live: later calls of `advance` change it. */
  get state(): State {
    return this.#state;
  }
  get position(): FramePosition {
    return this.#position;
  }
  /** The last record, or undefined when there is none. */
  get last(): Mark | undefined {
    return markOf(this.#position);
  }
  /** The record before the last: the owner had acknowledged it when it wrote the last one. */
  get before(): Mark | undefined {
    return this.#before;
  }
  get tornBytes(): number {
    return this.#tornBytes;
  }
  get header(): LogHeader | undefined {
    return this.#header;
  }
  get complete(): CompleteRecord | undefined {
    return this.#complete;
  }
  /** Whether the last record is one of events. */
  get endsWithEvents(): boolean {
    return this.#position.sequence - 1 > this.#completeSequence;
  }
  /** Clock of the last writer when it wrote the last record. */
  get wallMs(): number {
    return this.#wallMs;
  }
  /** Whether the mark that was asked for is in the file. */
  get markMet(): boolean {
    return this.#mark === undefined || this.#markMet;
  }

  /**
   * Replays what stands behind the position. A torn tail is left for the next call to look at again. When it
   * throws, the replay must be given up: its state is somewhere in between.
   */
  async advance(source: ByteSource): Promise<void> {
    let last = this.last;
    let before = this.#before;
    const { position, tornBytes } = await readFrames(source, this.path, this.#position, (frame) => {
      this.#visit(frame);
      before = last;
      last = frame;
      if (frame.sequence === this.#mark?.sequence) this.#markMet = frame.chain === this.#mark.chain;
    });
    this.#before = before === undefined ? undefined : { sequence: before.sequence, chain: before.chain };
    this.#position = position;
    this.#tornBytes = tornBytes;
  }

  /** The owner has appended `events` itself and applied them to the state: the position follows. */
  follow(position: FramePosition, wallMs: number): void {
    this.#before = markOf(this.#position);
    this.#position = position;
    this.#wallMs = wallMs;
  }

  #visit(frame: Frame): void {
    const fail = (reason: string, cause?: unknown): XceError =>
      corruptLog(this.path, frame.offset, reason, cause);
    try {
      this.#apply(frame, fail);
    } catch (error) {
      // What the machine refuses has no offset yet.
      if (error instanceof XceError && error.code === 'log-corrupt' && error.facts.at === undefined) {
        throw fail(error.message, error);
      }
      throw error;
    }
  }

  #apply({ type, sequence, payload }: Frame, fail: (reason: string) => XceError): void {
    const machine = this.#machine;
    if (this.#header === undefined) {
      if (type !== TYPE.header) throw fail('it does not begin with a header');
      this.#header = decodeHeader(payload, fail);
      checkHeader(this.#header, this.#identity, this.epoch, this.path);
      this.#wallMs = this.#header.wallMs;
      return;
    }
    if (this.#complete === undefined) {
      if (type === TYPE.checkpoint) {
        this.#items += decodeCheckpoint(payload, (item) => machine.restore(this.#state, item), fail);
        return;
      }
      if (type !== TYPE.complete) throw fail('events stand before the complete record');
      const complete = decodeComplete(payload, fail);
      if (complete.items !== this.#items) {
        throw fail(`the checkpoint has ${this.#items} items instead of ${complete.items}`);
      }
      if (complete.baseEpoch >= this.epoch) throw fail('the checkpoint is of a later epoch');
      this.#complete = complete;
      this.#completeSequence = sequence;
      this.#wallMs = complete.wallMs;
      return;
    }
    if (type !== TYPE.events) throw fail('something else than events stands behind the complete record');
    this.#wallMs = decodeEvents(payload, (event) => machine.apply(this.#state, machine.decode(event)), fail);
  }
}
