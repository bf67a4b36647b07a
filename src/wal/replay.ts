/**
 * One epoch's file as a state. The order of records is a small machine of its own:
 *
 *     start --header--> checkpoint --complete--> events
 *                       |        ^               |     ^
 *                       +checkpoint              +events
 *
 * Any other record is corruption. Until `complete` the file is void: its checkpoint counts for nothing.
 */
import { dirname } from 'node:path';
import { assert } from '../base/errors.ts';
import { damaged } from './damage.ts';
import {
  type ByteSource,
  decodeCheckpoint,
  decodeComplete,
  decodeEvents,
  decodeHeader,
  type Frame,
  readFrames,
  type VisitEvent,
} from './decoder.ts';
import type { View } from './machine.ts';
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

/** Throws 'log-foreign' for the log of another cluster or instance, 'log-corrupt' for another epoch's file. */
export const checkHeader = (header: LogHeader, identity: LogIdentity, epoch: number, path: string): void => {
  if (header.cluster !== identity.cluster || header.instance !== identity.instance) {
    throw damaged(
      'foreign',
      `${path} belongs to cluster ${JSON.stringify(header.cluster)}, instance ${JSON.stringify(header.instance)}`,
      { directory: dirname(path), what: path },
    );
  }
  if (header.epoch !== epoch) throw corruptLog(path, 0, `it is the log of epoch ${header.epoch}`);
};

/** Nearly every header is shorter. */
const HEADER_CHUNK_BYTES = 4 << 10;

/** Reads the header of an epoch's file; undefined when the file ends within it. */
export const readHeader = async (
  source: ByteSource,
  path: string,
  epoch: number,
  identity: LogIdentity,
): Promise<LogHeader | undefined> => {
  let header: LogHeader | undefined;
  const visit = (frame: Frame): void => {
    if (frame.type !== TYPE.header) throw frame.corrupt('it does not begin with a header');
    header = decodeHeader(frame);
  };
  await readFrames(source, path, FILE_START, visit, () => header !== undefined, HEADER_CHUNK_BYTES);
  if (header !== undefined) checkHeader(header, identity, epoch, path);
  return header;
};

export class Replay<State, Event> {
  readonly path: string;
  readonly epoch: number;
  readonly #identity: LogIdentity;
  readonly #view: View<State, Event>;
  readonly #mark: Mark | undefined;
  readonly #state: State;
  #position: FramePosition = FILE_START;
  #tornBytes = 0;
  #items = 0;
  #markMet = false;
  /** The last record and the one before it; plain numbers, because every record changes them. */
  #lastSequence = -1;
  #lastCheck = 0;
  #beforeSequence = -1;
  #beforeCheck = 0;
  readonly #applyEvent: VisitEvent;
  #header: LogHeader | undefined;
  #complete: CompleteRecord | undefined;
  #completeSequence = Number.MAX_SAFE_INTEGER;
  #baseBytes = 0;
  #wallMs = 0;

  constructor(
    view: View<State, Event>,
    file: { readonly path: string; readonly epoch: number; readonly identity: LogIdentity },
    mark?: Mark,
  ) {
    this.#view = view;
    this.path = file.path;
    this.epoch = file.epoch;
    this.#identity = file.identity;
    this.#mark = mark;
    const state = view.empty();
    this.#state = state;
    this.#applyEvent = (bytes, start, end) => view.replay(state, bytes, start, end);
  }

  /** Live: later calls of `advance` change it. */
  get state(): State {
    return this.#state;
  }
  get position(): FramePosition {
    return this.#position;
  }
  /** The last record. Not to be asked before there is one. */
  get last(): Mark {
    assert(this.#lastSequence >= 0, 'a replay that has read nothing has no last record');
    return { sequence: this.#lastSequence, chain: this.#lastCheck >>> 0 };
  }
  /** The record before the last: the owner had acknowledged it when it wrote the last one. */
  get before(): Mark | undefined {
    return this.#beforeSequence < 0
      ? undefined
      : { sequence: this.#beforeSequence, chain: this.#beforeCheck >>> 0 };
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
  /** Bytes from the header to the complete record; 0 before there is one. */
  get baseBytes(): number {
    return this.#baseBytes;
  }
  /** Bytes of the events behind it. */
  get tailBytes(): number {
    return this.#complete === undefined ? 0 : this.#position.offset - this.#baseBytes;
  }
  /** Whether the last record is the first of events. */
  get isFirstOfEvents(): boolean {
    return this.#lastSequence === this.#completeSequence + 1;
  }
  /** Whether the last record is one of events. */
  get endsWithEvents(): boolean {
    return this.#lastSequence > this.#completeSequence;
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
    const { position, tornBytes } = await readFrames(source, this.path, this.#position, (frame) => {
      this.#visit(frame);
    });
    this.#position = position;
    this.#tornBytes = tornBytes;
  }

  /** The owner has appended `events` itself and applied them to the state: the position follows. */
  follow(position: FramePosition, wallMs: number): void {
    this.#beforeSequence = this.#lastSequence;
    this.#beforeCheck = this.#lastCheck;
    this.#lastSequence = position.sequence - 1;
    this.#lastCheck = position.chain | 0;
    this.#position = position;
    this.#wallMs = wallMs;
  }

  #visit(frame: Frame): void {
    try {
      this.#apply(frame);
    } catch (error) {
      throw frame.locate(error);
    }
    this.#beforeSequence = this.#lastSequence;
    this.#beforeCheck = this.#lastCheck;
    this.#lastSequence = frame.sequence;
    this.#lastCheck = frame.check;
    if (frame.sequence === this.#mark?.sequence) this.#markMet = frame.chain === this.#mark.chain;
  }

  #apply(frame: Frame): void {
    if (this.#complete !== undefined) {
      if (frame.type !== TYPE.events) {
        throw frame.corrupt('something else than events stands behind the complete record');
      }
      this.#wallMs = decodeEvents(frame, this.#applyEvent);
    } else if (this.#header !== undefined) {
      this.#applyBase(frame);
    } else {
      if (frame.type !== TYPE.header) throw frame.corrupt('it does not begin with a header');
      this.#header = decodeHeader(frame);
      checkHeader(this.#header, this.#identity, this.epoch, this.path);
      this.#wallMs = this.#header.wallMs;
    }
  }

  #applyBase(frame: Frame): void {
    if (frame.type === TYPE.checkpoint) {
      const select = this.#view.select?.(this.#state, frame.bytes, frame.end);
      this.#items += decodeCheckpoint(frame, (item) => this.#view.restore(this.#state, item), select);
      return;
    }
    if (frame.type !== TYPE.complete) throw frame.corrupt('events stand before the complete record');
    const complete = decodeComplete(frame);
    if (complete.items !== this.#items) {
      throw frame.corrupt(`the checkpoint has ${this.#items} items instead of ${complete.items}`);
    }
    if (complete.baseEpoch >= this.epoch) throw frame.corrupt('the checkpoint is of a later epoch');
    this.#complete = complete;
    this.#completeSequence = frame.sequence;
    this.#baseBytes = frame.next.offset;
    this.#wallMs = complete.wallMs;
  }
}
