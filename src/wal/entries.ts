/**
 * The records of one file as plain values, in order and in portions of bounded size: for people and programs that look
 * at a log. Nothing is replayed, and nothing is decided by it.
 */
import {
  type ByteSource,
  decodeCheckpoint,
  decodeComplete,
  decodeEvents,
  decodeHeader,
  type Frame,
  readFrames,
} from './decoder.ts';
import { mayGo, READ_WAITS_MS } from './read-again.ts';
import { type CompleteRecord, FILE_START, type FramePosition, type LogHeader, TYPE } from './record.ts';
import { checkHeader, type LogIdentity } from './replay.ts';

/** What the bytes of items mean to the machine that wrote them. */
export type EntryCodec<Item, Event> = {
  /** The parts of one record of a checkpoint. */
  describe(record: Uint8Array): readonly Item[];
  /** The event in bytes[start, end). */
  decode(bytes: Uint8Array, start: number, end: number): Event;
};

type EntryPlace = { readonly epoch: number; readonly sequence: number; readonly offset: number };
export type LogEntry<Item, Event> = EntryPlace &
  (
    | { readonly type: 'header'; readonly header: LogHeader }
    | { readonly type: 'checkpoint'; readonly items: readonly Item[] }
    | { readonly type: 'complete'; readonly complete: CompleteRecord }
    | { readonly type: 'events'; readonly wallMs: number; readonly events: readonly Event[] }
  );

/** Payload bytes after which a portion is handed on. */
const PORTION_BYTES = 256 << 10;

export class EntryReader<Item, Event> {
  readonly path: string;
  readonly epoch: number;
  readonly #source: ByteSource;
  readonly #identity: LogIdentity;
  readonly #codec: EntryCodec<Item, Event>;
  readonly #wait: (milliseconds: number) => Promise<void>;
  #position: FramePosition;
  #tornBytes = 0;
  #complete: CompleteRecord | undefined;

  constructor(
    source: ByteSource,
    file: { readonly path: string; readonly epoch: number; readonly identity: LogIdentity },
    codec: EntryCodec<Item, Event>,
    wait: (milliseconds: number) => Promise<void>,
    from = FILE_START,
  ) {
    this.#source = source;
    this.path = file.path;
    this.epoch = file.epoch;
    this.#identity = file.identity;
    this.#codec = codec;
    this.#wait = wait;
    this.#position = from;
  }

  /** Behind the last entry that was handed on. */
  get position(): FramePosition {
    return this.#position;
  }
  /** Bytes of an incomplete record at the end, as the last portion found it. */
  get tornBytes(): number {
    return this.#tornBytes;
  }
  get complete(): CompleteRecord | undefined {
    return this.#complete;
  }

  #decode(frame: Frame): LogEntry<Item, Event> {
    const { epoch } = this;
    const place = { epoch, sequence: frame.sequence, offset: frame.offset };
    switch (frame.type) {
      case TYPE.header: {
        const header = decodeHeader(frame);
        checkHeader(header, this.#identity, epoch, this.path);
        return { ...place, type: 'header', header };
      }
      case TYPE.checkpoint: {
        const items: Item[] = [];
        decodeCheckpoint(frame, (record) => items.push(...this.#codec.describe(record)));
        return { ...place, type: 'checkpoint', items };
      }
      case TYPE.complete: {
        const complete = decodeComplete(frame);
        this.#complete = complete;
        return { ...place, type: 'complete', complete };
      }
      case TYPE.events: {
        const events: Event[] = [];
        const wallMs = decodeEvents(frame, (bytes, start, end) =>
          events.push(this.#codec.decode(bytes, start, end)),
        );
        return { ...place, type: 'events', wallMs, events };
      }
    }
  }

  /**
   * The entries from the position on to the end of the file as it is now. Throws 'log-corrupt', 'log-version' or
   * 'log-foreign' behind the last entry that checks, and the system's errors.
   */
  async *portions(): AsyncGenerator<readonly LogEntry<Item, Event>[]> {
    let attempt = 0;
    for (;;) {
      const entries: LogEntry<Item, Event>[] = [];
      let bytes = 0;
      let failure: { readonly error: unknown } | undefined;
      const visit = (frame: Frame): void => {
        try {
          entries.push(this.#decode(frame));
        } catch (error) {
          throw frame.locate(error);
        }
        bytes += frame.end - frame.start;
        this.#position = frame.next;
      };
      const isFull = (): boolean => bytes >= PORTION_BYTES;
      try {
        const read = await readFrames(this.#source, this.path, this.#position, visit, isFull);
        this.#tornBytes = read.tornBytes;
      } catch (error) {
        failure = { error };
      }
      if (entries.length > 0) {
        attempt = 0;
        yield entries;
      }
      if (failure !== undefined) {
        const waitMs = READ_WAITS_MS[attempt];
        const { error } = failure;
        if (!mayGo(error) || waitMs === undefined) throw error;
        attempt += 1;
        await this.#wait(waitMs);
      } else if (bytes < PORTION_BYTES) {
        return;
      }
    }
  }
}
