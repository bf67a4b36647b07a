import { assert, XceError } from '../base/errors.ts';
import { crcOfView } from './crc.ts';
import {
  CHECKED_HEADER_BYTES,
  type CompleteRecord,
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
  TEXT_BYTES_MAX,
  TOKEN_BYTES,
  TRAILER_BYTES,
  TYPE,
} from './record.ts';

/** A frame ready to be written at `from`, and the position behind it. */
export type EncodedFrame = { readonly bytes: Buffer; readonly next: FramePosition };

/** Eight bytes of a whole number from 0; a bigint for each would take longer than the rest of a short record. */
const writeWhole = (bytes: Buffer, value: number, at: number): void => {
  assert(Number.isSafeInteger(value) && value >= 0, 'a number of the log is whole');
  bytes.writeUInt32BE(Math.floor(value / 2 ** 32), at);
  bytes.writeUInt32BE(value % 2 ** 32, at + 4);
};

export const encodeFrame = (type: RecordType, payload: Uint8Array, from: FramePosition): EncodedFrame => {
  assert(payload.length <= PAYLOAD_BYTES_MAX, 'a payload fits into a frame');
  const bytes = Buffer.allocUnsafe(HEADER_BYTES + payload.length + TRAILER_BYTES);
  bytes.writeUInt32BE(MAGIC, FIELD.magic);
  bytes.writeUInt8(FORMAT_VERSION, FIELD.version);
  bytes.writeUInt8(type, FIELD.type);
  bytes.writeUInt16BE(0, FIELD.zero);
  bytes.writeUInt32BE(payload.length, FIELD.length);
  bytes.writeUInt32BE(from.chain, FIELD.chain);
  writeWhole(bytes, from.sequence, FIELD.sequence);
  // The frame checksum skips the header checksum: after its own value a CRC has forgotten what came before.
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const headerCheck = crcOfView(view, 0, CHECKED_HEADER_BYTES) >>> 0;
  bytes.writeUInt32BE(headerCheck, FIELD.check);
  bytes.set(payload, HEADER_BYTES);
  const end = HEADER_BYTES + payload.length;
  const chain = crcOfView(view, HEADER_BYTES, end, headerCheck) >>> 0;
  bytes.writeUInt32BE(chain, end);
  return {
    bytes,
    next: { offset: from.offset + bytes.length, sequence: from.sequence + 1, chain },
  };
};

const encodeText = (text: string): Buffer => {
  const bytes = Buffer.from(text, 'utf8');
  if (bytes.length > TEXT_BYTES_MAX) {
    throw new XceError('too-large', `a text of the log's header is over ${TEXT_BYTES_MAX} bytes`);
  }
  const length = Buffer.alloc(2);
  length.writeUInt16BE(bytes.length);
  return Buffer.concat([length, bytes]);
};

export const encodeHeader = (header: LogHeader): Buffer => {
  const fixed = Buffer.alloc(8 + TOKEN_BYTES + 8);
  writeWhole(fixed, header.epoch, 0);
  const token = Buffer.from(header.token, 'hex');
  assert(token.length === TOKEN_BYTES, 'a token has its length');
  token.copy(fixed, 8);
  writeWhole(fixed, header.wallMs, 8 + TOKEN_BYTES);
  const texts = [header.cluster, header.instance, header.host, header.storage].map(encodeText);
  return Buffer.concat([fixed, ...texts]);
};

export const encodeComplete = (record: CompleteRecord): Buffer => {
  const bytes = Buffer.alloc(36);
  writeWhole(bytes, record.baseEpoch, 0);
  writeWhole(bytes, record.baseSequence, 8);
  bytes.writeUInt32BE(record.baseChain, 16);
  writeWhole(bytes, record.items, 20);
  writeWhole(bytes, record.wallMs, 28);
  return bytes;
};

/** How many bytes an item takes in a payload. */
export const itemBytes = (item: Uint8Array): number => ITEM_HEADER_BYTES + item.length;

const encodeItems = (leadBytes: number, items: readonly Uint8Array[]): Buffer => {
  const bytes = Buffer.allocUnsafe(items.reduce((sum, item) => sum + itemBytes(item), leadBytes));
  let at = leadBytes;
  for (const item of items) {
    bytes.writeUInt32BE(item.length, at);
    bytes.set(item, at + ITEM_HEADER_BYTES);
    at += itemBytes(item);
  }
  return bytes;
};

export const encodeCheckpoint = (items: readonly Uint8Array[]): Buffer => encodeItems(0, items);

export const encodeEvents = (wallMs: number, events: readonly Uint8Array[]): Buffer => {
  const bytes = encodeItems(EVENTS_HEADER_BYTES, events);
  writeWhole(bytes, wallMs, 0);
  return bytes;
};

/** Payload of a checkpoint record is kept near this, so that a reader's buffer need not grow. */
const CHECKPOINT_BYTES = 256 << 10;

/**
 * A whole checkpoint and its complete record as frames behind `from`, one after the other, without ever holding
 * more than one in memory. `items` of the complete record is counted here.
 */
export function* encodeBase(
  snapshot: Iterable<Uint8Array>,
  complete: Omit<CompleteRecord, 'items'>,
  from: FramePosition,
): Generator<EncodedFrame> {
  let at = from;
  let batch: Uint8Array[] = [];
  let bytes = 0;
  let items = 0;
  const flush = (): EncodedFrame => {
    const frame = encodeFrame(TYPE.checkpoint, encodeCheckpoint(batch), at);
    at = frame.next;
    batch = [];
    bytes = 0;
    return frame;
  };
  for (const item of snapshot) {
    if (batch.length > 0 && bytes + itemBytes(item) > CHECKPOINT_BYTES) yield flush();
    batch.push(item);
    bytes += itemBytes(item);
    items += 1;
  }
  if (batch.length > 0) yield flush();
  yield encodeFrame(TYPE.complete, encodeComplete({ ...complete, items }), at);
}
