/**
 * Bytes of the log back to frames: in order, each checked, in bounded memory. What stands at the end of a file
 * and does not check is either a torn tail or corruption; `isTorn` is the one place that tells them apart.
 */
import { crc32 } from 'node:zlib';
import { XceError } from '../base/errors.ts';
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
  PAYLOAD_BYTES_MAX,
  type RecordType,
  TOKEN_BYTES,
  TRAILER_BYTES,
  TYPE,
} from './record.ts';

/** A file that is read by position: returns how many bytes it gave, 0 at the end of the file. */
export type ByteSource = { read(into: Uint8Array, position: number): Promise<number> };

/** One frame. The payload is a view that lives until the next frame. */
export type Frame = {
  readonly type: RecordType;
  readonly sequence: number;
  readonly offset: number;
  /** The frame checksum, which the next frame repeats. */
  readonly chain: number;
  readonly payload: Buffer;
};

export type FramesRead = {
  /** Behind the last whole frame. */
  readonly position: FramePosition;
  /** Bytes of a torn tail behind it, 0 when the file ends with a whole frame (or at `framesMax`). */
  readonly tornBytes: number;
};

const CHUNK_BYTES = 256 << 10;
const TYPES: readonly number[] = Object.values(TYPE);
const isRecordType = (type: number): type is RecordType => TYPES.includes(type);

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
  readonly offset: number;
  /** Length of the whole frame, when its header checks. */
  readonly frameBytes: number | undefined;
  /** The frame checksum as it should be, and as it stands there, when the whole frame is there. */
  readonly checks: readonly [right: number, found: number] | undefined;
};

/** How many of the four bytes are right before the first that is not. */
const countRight = ([right, found]: readonly [number, number]): number => Math.clz32(right ^ found) >> 3;

/** The predicate of xce-sandbox-log(5), "Torn tail". */
const isTorn = async (source: ByteSource, endOfFile: number, suspect: Suspect): Promise<boolean> => {
  const { offset, frameBytes, checks } = suspect;
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

/**
 * Reads frames from `from` to the end of the file, or until `framesMax` have been visited. Throws 'log-corrupt'
 * with the offset of the frame that does not check, 'log-version' for one of a newer format; what `visit` throws
 * passes through. Reads never go back: a file that grows meanwhile is read as far as it was seen.
 */
export const readFrames = async (
  source: ByteSource,
  path: string,
  from: FramePosition,
  visit: (frame: Frame) => void,
  framesMax = Number.MAX_SAFE_INTEGER,
): Promise<FramesRead> => {
  let buffer = Buffer.allocUnsafe(framesMax === 1 ? 4 << 10 : CHUNK_BYTES);
  let { offset, sequence, chain } = from;
  /** The frame at `offset` stands at `start` in the buffer; the buffer is filled to `end`. */
  let start = 0;
  let end = 0;
  let frames = 0;

  const stop = async (
    reason: string,
    frameBytes?: number,
    checks?: readonly [right: number, found: number],
  ): Promise<FramesRead> => {
    const endOfFile = await endOf(source, offset + (end - start));
    if (!(await isTorn(source, endOfFile, { offset, frameBytes, checks })))
      throw corruptLog(path, offset, reason);
    return { position: { offset, sequence, chain }, tornBytes: endOfFile - offset };
  };

  for (;;) {
    while (end - start >= HEADER_BYTES && frames < framesMax) {
      const headerCheck = crc32(buffer.subarray(start, start + CHECKED_HEADER_BYTES));
      if (headerCheck !== buffer.readUInt32BE(start + FIELD.check)) {
        return await stop('the checksum of a frame header is wrong');
      }
      if (buffer.readUInt32BE(start + FIELD.magic) !== MAGIC) {
        throw corruptLog(path, offset, 'a frame does not begin with XCEL');
      }
      const type = buffer[start + FIELD.type] ?? 0;
      const isKnown = buffer[start + FIELD.version] === FORMAT_VERSION && isRecordType(type);
      if (!isKnown || buffer.readUInt16BE(start + FIELD.zero) !== 0) {
        throw new XceError('log-version', `${path} has a record of a newer format at offset ${offset}`, {
          at: `${path}:${offset}`,
          unchanged: 'nothing was written',
          next: 'install the xce-sandbox version that the owner of the log runs',
        });
      }
      const length = buffer.readUInt32BE(start + FIELD.length);
      if (length > PAYLOAD_BYTES_MAX) throw corruptLog(path, offset, `a payload of ${length} bytes`);
      // Below 2^53 for as long as there is a disk to hold the log.
      const number =
        buffer.readUInt32BE(start + FIELD.sequence) * 2 ** 32 +
        buffer.readUInt32BE(start + FIELD.sequence + 4);
      if (number !== sequence) {
        throw corruptLog(path, offset, `record ${number} stands where ${sequence} belongs`);
      }
      if (buffer.readUInt32BE(start + FIELD.chain) !== chain) {
        throw corruptLog(path, offset, 'the record does not follow the one before it');
      }
      const frameBytes = HEADER_BYTES + length + TRAILER_BYTES;
      if (frameBytes > end - start) break;
      const payload = buffer.subarray(start + HEADER_BYTES, start + HEADER_BYTES + length);
      const check = crc32(payload, headerCheck);
      const found = buffer.readUInt32BE(start + HEADER_BYTES + length);
      if (check !== found) {
        return await stop('the checksum of a record is wrong', frameBytes, [check, found]);
      }
      visit({ type, sequence, offset, chain: check, payload });
      frames += 1;
      start += frameBytes;
      offset += frameBytes;
      sequence += 1;
      chain = check;
    }
    if (frames >= framesMax) return { position: { offset, sequence, chain }, tornBytes: 0 };
    const rest = end - start;
    const wanted =
      rest >= HEADER_BYTES
        ? HEADER_BYTES + buffer.readUInt32BE(start + FIELD.length) + TRAILER_BYTES
        : HEADER_BYTES;
    if (wanted > buffer.length) {
      const larger = Buffer.allocUnsafe(wanted + CHUNK_BYTES);
      buffer.copy(larger, 0, start, end);
      buffer = larger;
    } else {
      buffer.copyWithin(0, start, end);
    }
    start = 0;
    end = rest;
    const count = await source.read(buffer.subarray(end), offset + rest);
    if (count > 0) {
      end += count;
      continue;
    }
    if (rest === 0) return { position: { offset, sequence, chain }, tornBytes: 0 };
    return await stop('the record is cut off', rest < HEADER_BYTES ? undefined : wanted);
  }
};

/** Reads a payload field by field; every read checks that the bytes are there. */
class PayloadReader {
  readonly #bytes: Buffer;
  readonly #fail: (reason: string) => XceError;
  #at: number;

  constructor(bytes: Buffer, at: number, fail: (reason: string) => XceError) {
    this.#bytes = bytes;
    this.#at = at;
    this.#fail = fail;
  }

  take(length: number): Buffer {
    const end = this.#at + length;
    if (end > this.#bytes.length) throw this.#fail('a record is shorter than what it holds');
    const bytes = this.#bytes.subarray(this.#at, end);
    this.#at = end;
    return bytes;
  }

  whole(): number {
    const value = this.take(8).readBigUInt64BE();
    if (value > BigInt(Number.MAX_SAFE_INTEGER)) throw this.#fail('a number is out of range');
    return Number(value);
  }

  text(): string {
    const bytes = this.take(this.take(2).readUInt16BE());
    const text = bytes.toString('utf8');
    if (!Buffer.from(text, 'utf8').equals(bytes)) throw this.#fail('a text is not UTF-8');
    return text;
  }

  end(): void {
    if (this.#at !== this.#bytes.length) throw this.#fail('a record is longer than what it holds');
  }
}

/** The decoders below throw what `fail` makes of their reason. */
export const decodeHeader = (payload: Buffer, fail: (reason: string) => XceError): LogHeader => {
  const reader = new PayloadReader(payload, 0, fail);
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

export const decodeComplete = (payload: Buffer, fail: (reason: string) => XceError): CompleteRecord => {
  const reader = new PayloadReader(payload, 0, fail);
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

const eachItem = (
  payload: Buffer,
  leadBytes: number,
  visit: (item: Buffer) => void,
  fail: (reason: string) => XceError,
): number => {
  let items = 0;
  for (let at = leadBytes; at < payload.length; items++) {
    if (at + ITEM_HEADER_BYTES > payload.length) throw fail('an item is shorter than its header');
    const end = at + ITEM_HEADER_BYTES + payload.readUInt32BE(at);
    if (end > payload.length) throw fail('an item is longer than its record');
    visit(payload.subarray(at + ITEM_HEADER_BYTES, end));
    at = end;
  }
  if (items === 0) throw fail('a record without items');
  return items;
};

/** Visits the items of a checkpoint record and returns their number. */
export const decodeCheckpoint = (
  payload: Buffer,
  visit: (item: Buffer) => void,
  fail: (reason: string) => XceError,
): number => eachItem(payload, 0, visit, fail);

/** Visits the events of a record and returns the wall clock of its writer, milliseconds since 1970. */
export const decodeEvents = (
  payload: Buffer,
  visit: (event: Buffer) => void,
  fail: (reason: string) => XceError,
): number => {
  if (payload.length < EVENTS_HEADER_BYTES) throw fail('a record of events without its clock');
  const wallMs = payload.readUInt32BE(0) * 2 ** 32 + payload.readUInt32BE(4);
  eachItem(payload, EVENTS_HEADER_BYTES, visit, fail);
  return wallMs;
};
