/**
 * Bytes of the log back to frames: in order, each checked, in bounded memory. What stands at the end of a file
 * and does not check is either a torn tail or corruption; `isTorn` is the one place that tells them apart.
 */
import type { Answer } from '../base/answer.ts';
import { XceError } from '../base/errors.ts';
import { crcOfView } from './crc.ts';
import type { SelectRecord } from './machine.ts';
import {
  CHECKED_HEADER_BYTES,
  type CompleteRecord,
  corruptLog,
  EVENTS_HEADER_BYTES,
  FIELD,
  FORMAT_VERSION,
  type FramePosition,
  HEADER_BYTES,
  ITEM_HEADER_BYTES,
  type LogHeader,
  MAGIC,
  newerLog,
  PAYLOAD_BYTES_MAX,
  type RecordType,
  TOKEN_BYTES,
  TRAILER_BYTES,
  TYPE,
} from './record.ts';

/** A file that is read by position: returns how many bytes it gave, 0 at the end of the file. */
export type ByteSource = { read(into: Uint8Array, position: number): Answer<number> };

/** Fills `into` from a position on, as far as the file goes; gives the number of bytes. */
export const readUpTo = async (source: ByteSource, into: Uint8Array, position: number): Promise<number> => {
  let length = 0;
  while (length < into.length) {
    const count = await source.read(into.subarray(length), position + length);
    if (count === 0) break;
    length += count;
  }
  return length;
};

/** Numbers are read five times as fast through a view as through Buffer's own methods (Node 20). */
const viewOf = ({ buffer, byteOffset, byteLength }: Uint8Array): DataView =>
  new DataView(buffer, byteOffset, byteLength);

/**
 * One frame, whole and checked. There is one object, which shows one frame after the other: a log of a million
 * records is replayed without a million of them.
 */
export class Frame {
  readonly path: string;
  type: RecordType = TYPE.header;
  sequence = 0;
  offset = 0;
  /** The frame checksum, as a word with a sign. */
  check = 0;
  /** The payload is bytes[start, end); it lives until the next frame. */
  bytes: Uint8Array;
  view: DataView;
  start = 0;
  end = 0;

  constructor(path: string, bytes: Uint8Array) {
    this.path = path;
    this.bytes = bytes;
    this.view = viewOf(bytes);
  }

  /** The frame checksum, which the next frame repeats. */
  get chain(): number {
    return this.check >>> 0;
  }
  /** Behind this frame. */
  get next(): FramePosition {
    const offset = this.offset + HEADER_BYTES + (this.end - this.start) + TRAILER_BYTES;
    return { offset, sequence: this.sequence + 1, chain: this.chain };
  }

  corrupt(reason: string, cause?: unknown): XceError {
    return corruptLog(this.path, this.offset, reason, cause);
  }

  /** What the machine says of the payload, with the place that the machine does not know. */
  locate(error: unknown): XceError {
    if (!(error instanceof XceError)) {
      const message = `${this.path}: the record at ${this.offset} cannot be replayed`;
      return new XceError('bug', message, { at: `${this.path}:${this.offset}`, cause: error });
    }
    if (error.facts.at?.startsWith(`${this.path}:`) === true) return error;
    if (error.code === 'log-corrupt') return this.corrupt(error.message, error);
    if (error.code === 'log-version') return newerLog(this.path, this.offset, error.message, error);
    return error;
  }
}

export type FramesRead = {
  /** Behind the last whole frame. */
  readonly position: FramePosition;
  /** Bytes of a torn tail behind it, 0 when the file ends with a whole frame, or more was not wanted. */
  readonly tornBytes: number;
};

const CHUNK_BYTES = 256 << 10;
/** Types are numbered without a gap. */
const isRecordType = (type: number): type is RecordType => type >= TYPE.header && type <= TYPE.events;
/** The type within the word that begins with the version. */
const TYPE_BITS = 0xff << 16;

/**
 * Whether a file does not begin with the first frame of a log but with a hole or a later frame. A superseded file that
 * was emptied looks like this when its former owner's last write landed behind that.
 */
export const isWithoutStart = async (source: ByteSource): Promise<boolean> => {
  const bytes = new Uint8Array(HEADER_BYTES);
  const length = await readUpTo(source, bytes, 0);
  if (bytes.every((byte) => byte === 0)) return true;
  const view = viewOf(bytes);
  if (length < HEADER_BYTES || crcOfView(view, 0, CHECKED_HEADER_BYTES) !== view.getInt32(FIELD.check)) {
    return false;
  }
  return view.getUint32(FIELD.sequence) > 0 || view.getUint32(FIELD.sequence + 4) > 0;
};

/** Whether every byte of the file from `position` on is zero. */
const isZeroFrom = async (source: ByteSource, position: number): Promise<boolean> => {
  const chunk = Buffer.allocUnsafe(64 << 10);
  for (let at = position; ; ) {
    const count = await source.read(chunk, at);
    if (count === 0) return true;
    for (let i = 0; i < count; i++) if (chunk[i] !== 0) return false;
    at += count;
  }
};

/** What is known of a record that does not check or does not end. */
type Suspect = {
  /** Length of the whole frame, when its header checks. */
  readonly frameBytes: number | undefined;
  /** The frame checksum as it should be, and as it stands there, when the whole frame is there. */
  readonly checks: readonly [right: number, found: number] | undefined;
};

/** How many of the four bytes are right before the first that is not. */
const countRight = ([right, found]: readonly [number, number]): number => Math.clz32(right ^ found) >> 3;

/** The predicate of xce-sandbox-log(5), "Torn tail". */
const isTorn = async (
  source: ByteSource,
  offset: number,
  endOfFile: number,
  { frameBytes, checks }: Suspect,
): Promise<boolean> => {
  if (endOfFile - offset < HEADER_BYTES) return true;
  if (frameBytes === undefined) return await isZeroFrom(source, offset + HEADER_BYTES - 1);
  if (checks === undefined || offset + frameBytes > endOfFile) return true;
  return await isZeroFrom(source, offset + frameBytes - TRAILER_BYTES + countRight(checks));
};

const endOf = async (source: ByteSource, from: number): Promise<number> => {
  const chunk = Buffer.allocUnsafe(64 << 10);
  for (let at = from; ; ) {
    const count = await source.read(chunk, at);
    if (count === 0) return at;
    at += count;
  }
};

/** What is read so far, when the frame at its end does not check or does not end: a torn tail or corruption. */
const endAt = async (
  source: ByteSource,
  path: string,
  position: FramePosition,
  filledBytes: number,
  reason: string,
  suspect: Suspect,
): Promise<FramesRead> => {
  const endOfFile = await endOf(source, position.offset + filledBytes);
  const { offset } = position;
  if (!(await isTorn(source, offset, endOfFile, suspect))) throw corruptLog(path, offset, reason);
  return { position, tornBytes: endOfFile - offset };
};

/** Why reading ends before the end of the file: what is left there, or that no more is wanted. */
type Stop = { readonly reason: string; readonly suspect: Suspect } | 'enough';

const UNKNOWN: Suspect = { frameBytes: undefined, checks: undefined };

/** Below 2^53 for as long as there is a disk to hold the log. */
const sequenceAt = (view: DataView, start: number): number =>
  view.getUint32(start + FIELD.sequence) * 2 ** 32 + view.getUint32(start + FIELD.sequence + 4);

/** The part of a file that is in memory, and the frames in it. */
class FrameWindow {
  readonly #path: string;
  #buffer: Buffer;
  #view: DataView;
  readonly #frame: Frame;
  /** The frame at `position` stands at `start` in the buffer; the buffer is filled to `end`. */
  #start = 0;
  #end = 0;
  #offset: number;
  #sequence: number;
  /** As a word with a sign. */
  #chain: number;

  constructor(path: string, from: FramePosition, bytes: number) {
    this.#path = path;
    this.#buffer = Buffer.allocUnsafeSlow(bytes);
    this.#view = viewOf(this.#buffer);
    this.#frame = new Frame(path, this.#buffer);
    this.#offset = from.offset;
    this.#sequence = from.sequence;
    this.#chain = from.chain | 0;
  }

  /** Behind the last frame that was visited. */
  get position(): FramePosition {
    return { offset: this.#offset, sequence: this.#sequence, chain: this.#chain >>> 0 };
  }
  /** Bytes behind it that are in memory. */
  get restBytes(): number {
    return this.#end - this.#start;
  }
  /** Length of the frame that they begin, when its header is among them. */
  get frameBytes(): number | undefined {
    if (this.restBytes < HEADER_BYTES) return undefined;
    return HEADER_BYTES + this.#view.getUint32(this.#start + FIELD.length) + TRAILER_BYTES;
  }

  /** Reads what stands behind them; returns false at the end of the file. */
  async fill(source: ByteSource): Promise<boolean> {
    const rest = this.restBytes;
    const wanted = this.frameBytes ?? HEADER_BYTES;
    if (wanted > this.#buffer.length) {
      const larger = Buffer.allocUnsafeSlow(wanted + CHUNK_BYTES);
      larger.set(this.#buffer.subarray(this.#start, this.#end));
      this.#buffer = larger;
      this.#view = viewOf(larger);
    } else {
      this.#buffer.copyWithin(0, this.#start, this.#end);
    }
    this.#start = 0;
    this.#end = rest;
    const count = await source.read(this.#buffer.subarray(rest), this.#offset + rest);
    this.#end += count;
    return count > 0;
  }

  /** Shows the whole frames one after the other; undefined when the rest is the beginning of one. */
  showFrames(visit: (frame: Frame) => void, isEnough: () => boolean): Stop | undefined {
    const view = this.#view;
    const frame = this.#frame;
    frame.bytes = this.#buffer;
    frame.view = view;
    while (this.#end - this.#start >= HEADER_BYTES) {
      const start = this.#start;
      const offset = this.#offset;
      const headerCheck = crcOfView(view, start, start + CHECKED_HEADER_BYTES);
      if (headerCheck !== view.getInt32(start + FIELD.check))
        return { reason: 'the checksum of a frame header is wrong', suspect: UNKNOWN };
      const kind = view.getInt32(start + FIELD.version);
      const type = (kind >> 16) & 0xff;
      const length = view.getUint32(start + FIELD.length);
      const sequence = this.#sequence;
      if (
        view.getInt32(start + FIELD.magic) !== MAGIC ||
        (kind & ~TYPE_BITS) !== FORMAT_VERSION << 24 ||
        !isRecordType(type) ||
        length > PAYLOAD_BYTES_MAX ||
        sequenceAt(view, start) !== sequence ||
        view.getInt32(start + FIELD.chain) !== this.#chain
      )
        throw this.#refuseHeader();
      const frameBytes = HEADER_BYTES + length + TRAILER_BYTES;
      if (frameBytes > this.#end - start) return undefined;
      const payloadEnd = start + HEADER_BYTES + length;
      const check = crcOfView(view, start + HEADER_BYTES, payloadEnd, headerCheck);
      const found = view.getInt32(payloadEnd);
      if (check !== found)
        return {
          reason: 'the checksum of a record is wrong',
          suspect: { frameBytes, checks: [check, found] },
        };
      frame.type = type;
      frame.sequence = sequence;
      frame.offset = offset;
      frame.check = check;
      frame.start = start + HEADER_BYTES;
      frame.end = payloadEnd;
      visit(frame);
      this.#start = start + frameBytes;
      this.#offset = offset + frameBytes;
      this.#sequence = sequence + 1;
      this.#chain = check;
      if (isEnough()) return 'enough';
    }
    return undefined;
  }

  /** Why the header of the next frame, whose checksum is right, is none that belongs there. */
  #refuseHeader(): XceError {
    const path = this.#path;
    const view = this.#view;
    const start = this.#start;
    const offset = this.#offset;
    if (view.getUint32(start + FIELD.magic) !== MAGIC)
      return corruptLog(path, offset, 'a frame does not begin with XCEL');
    const type = view.getUint8(start + FIELD.type);
    const version = view.getUint8(start + FIELD.version);
    if (version !== FORMAT_VERSION)
      return newerLog(path, offset, `of format version ${version}; this program reads ${FORMAT_VERSION}`);
    if (!isRecordType(type)) return newerLog(path, offset, `of type ${type}`);
    if (view.getUint16(start + FIELD.zero) !== 0) return newerLog(path, offset, 'with flags');
    const length = view.getUint32(start + FIELD.length);
    if (length > PAYLOAD_BYTES_MAX) return corruptLog(path, offset, `a payload of ${length} bytes`);
    const number = sequenceAt(view, start);
    return number === this.#sequence
      ? corruptLog(path, offset, 'the record does not follow the one before it')
      : corruptLog(path, offset, `record ${number} stands where ${this.#sequence} belongs`);
  }
}

/**
 * Reads frames from `from` to the end of the file, or until `isEnough` says so after one of them. Throws 'log-corrupt'
 * with the offset of the frame that does not check, 'log-version' for one of a newer format; what `visit` throws
 * passes through. Reads never go back: a file that grows meanwhile is read as far as it was seen.
 */
export const readFrames = async (
  source: ByteSource,
  path: string,
  from: FramePosition,
  visit: (frame: Frame) => void,
  isEnough: () => boolean = () => false,
  chunkBytes = CHUNK_BYTES,
): Promise<FramesRead> => {
  const window = new FrameWindow(path, from, chunkBytes);
  while (await window.fill(source)) {
    const stop = window.showFrames(visit, isEnough);
    if (stop === undefined) continue;
    const { position, restBytes } = window;
    if (stop === 'enough') return { position, tornBytes: 0 };
    return await endAt(source, path, position, restBytes, stop.reason, stop.suspect);
  }
  const { position, restBytes, frameBytes } = window;
  if (restBytes === 0) return { position, tornBytes: 0 };
  return await endAt(source, path, position, restBytes, 'the record is cut off', {
    frameBytes,
    checks: undefined,
  });
};

/** Reads a payload field by field; every read checks that the bytes are there. */
class PayloadReader {
  readonly #frame: Frame;
  #at: number;

  constructor(frame: Frame) {
    this.#frame = frame;
    this.#at = frame.start;
  }

  take(length: number): Buffer {
    const { bytes, end } = this.#frame;
    const from = this.#at;
    if (from + length > end) throw this.#frame.corrupt('a record is shorter than what it holds');
    this.#at = from + length;
    return Buffer.from(bytes.buffer, bytes.byteOffset + from, length);
  }

  whole(): number {
    const value = this.take(8).readBigUInt64BE();
    if (value > BigInt(Number.MAX_SAFE_INTEGER)) throw this.#frame.corrupt('a number is out of range');
    return Number(value);
  }

  text(): string {
    const bytes = this.take(this.take(2).readUInt16BE());
    const text = bytes.toString('utf8');
    if (!Buffer.from(text, 'utf8').equals(bytes)) throw this.#frame.corrupt('a text is not UTF-8');
    return text;
  }

  end(): void {
    if (this.#at !== this.#frame.end) throw this.#frame.corrupt('a record is longer than what it holds');
  }
}

/** The decoders below throw 'log-corrupt' for a payload that is not exactly one of its type. */
export const decodeHeader = (frame: Frame): LogHeader => {
  const reader = new PayloadReader(frame);
  const header = {
    epoch: reader.whole(),
    token: reader.take(TOKEN_BYTES).toString('hex'),
    wallMs: reader.whole(),
    cluster: reader.text(),
    instance: reader.text(),
    host: reader.text(),
    storage: reader.text(),
  };
  reader.end();
  return header;
};

export const decodeComplete = (frame: Frame): CompleteRecord => {
  const reader = new PayloadReader(frame);
  const record = {
    baseEpoch: reader.whole(),
    baseSequence: reader.whole(),
    baseChain: reader.take(4).readUInt32BE(),
    items: reader.whole(),
    wallMs: reader.whole(),
  };
  reader.end();
  return record;
};

/** The event is bytes[start, end) for as long as the call lasts: a view of its own costs more than decoding it. */
export type VisitEvent = (bytes: Uint8Array, start: number, end: number) => void;

const eachItem = (frame: Frame, from: number, visit: VisitEvent): number => {
  const { bytes, view, end } = frame;
  let items = 0;
  for (let at = from; at < end; items++) {
    if (at + ITEM_HEADER_BYTES > end) throw frame.corrupt('an item is shorter than its header');
    const next = at + ITEM_HEADER_BYTES + view.getUint32(at);
    if (next > end) throw frame.corrupt('an item is longer than its record');
    visit(bytes, at + ITEM_HEADER_BYTES, next);
    at = next;
  }
  if (items === 0) throw frame.corrupt('a record without items');
  return items;
};

/** Visits the items of a checkpoint record, all or those that are selected, and returns the number of all. */
export const decodeCheckpoint = (
  frame: Frame,
  visit: (item: Uint8Array) => void,
  select?: SelectRecord,
): number =>
  eachItem(frame, frame.start, (bytes, start, end) => {
    if (select?.(start, end) !== false) visit(bytes.subarray(start, end));
  });

/** Visits the events of a record and returns the wall clock of its writer, milliseconds since 1970. */
export const decodeEvents = (frame: Frame, visit: VisitEvent): number => {
  const { view, start, end } = frame;
  if (start + EVENTS_HEADER_BYTES > end) throw frame.corrupt('a record of events without its clock');
  const wallMs = view.getUint32(start) * 2 ** 32 + view.getUint32(start + 4);
  eachItem(frame, start + EVENTS_HEADER_BYTES, visit);
  return wallMs;
};
