/**
 * Frames of a stream: one byte channel, four bytes big-endian length, payload. The decoder takes any cut of the
 * bytes, holds no more than one document, and passes the bytes of stdin, stdout and stderr on as they come,
 * without waiting for the end of their frame.
 */
import { XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import { CHANNEL, STREAM } from './message.ts';

export type Channel = keyof typeof CHANNEL;

/** A whole payload, or for stdin, stdout and stderr some next bytes of it. `bytes` may share memory with the chunk. */
export type Frame = { readonly channel: Channel; readonly bytes: Buffer };

/** What may be sent in one direction. */
export const CLIENT_CHANNELS: readonly Channel[] = ['head', 'stdin', 'control', 'endOfStdin'];
export const SERVER_CHANNELS: readonly Channel[] = ['stdout', 'stderr', 'control', 'error', 'credit'];

type Bounds = { readonly min: number; readonly max: number };

const BOUNDS: { readonly [C in Channel]: Bounds } = {
  head: { min: 1, max: LIMITS.messageBytesMax },
  stdin: { min: 1, max: LIMITS.frameBytesMax },
  stdout: { min: 1, max: LIMITS.frameBytesMax },
  stderr: { min: 1, max: LIMITS.frameBytesMax },
  control: { min: 1, max: STREAM.documentBytesMax },
  endOfStdin: { min: 0, max: 0 },
  error: { min: 1, max: STREAM.documentBytesMax },
  credit: { min: 4, max: 4 },
};

const CHANNEL_BY_NUMBER: ReadonlyMap<number, Channel> = new Map(
  (Object.keys(CHANNEL) as Channel[]).map((channel) => [CHANNEL[channel], channel]),
);

/** Channels whose payload is a piece of a byte sequence, so that frame borders carry no meaning. */
const isBytes = (channel: Channel): boolean =>
  channel === 'stdin' || channel === 'stdout' || channel === 'stderr';

export const encodeFrameHeader = (channel: Channel, length: number): Buffer => {
  const header = Buffer.allocUnsafe(STREAM.headerBytes);
  header[0] = CHANNEL[channel];
  header.writeUInt32BE(length, 1);
  return header;
};

/** One frame in one buffer. Throws 'too-large' for a payload that the page does not allow. */
export const encodeFrame = (channel: Channel, payload: Uint8Array): Buffer => {
  const { min, max } = BOUNDS[channel];
  if (payload.length > max) {
    throw new XceError(
      'too-large',
      `${payload.length} bytes are over the ${max} that a frame of channel ${channel} holds`,
    );
  }
  if (payload.length < min) throw new XceError('bug', `a frame of channel ${channel} must not be empty`);
  return Buffer.concat([encodeFrameHeader(channel, payload.length), payload]);
};

export const encodeCredit = (bytes: number): Buffer => {
  const payload = Buffer.allocUnsafe(4);
  payload.writeUInt32BE(bytes, 0);
  return encodeFrame('credit', payload);
};

/** Collects chunks into one buffer that grows with what came, not with what was announced. */
export type Gatherer = {
  push(chunk: Uint8Array): void;
  /** Bytes of memory held now. */
  readonly heldBytes: number;
  readonly length: number;
  /** The bytes so far; the gatherer is empty afterwards. */
  take(): Buffer;
};

export const createGatherer = (): Gatherer => {
  // Copies instead of a list of chunks: a chunk of one byte pins the whole read buffer it was cut from.
  let buffer = Buffer.alloc(0);
  let length = 0;
  return {
    push(chunk) {
      if (length + chunk.length > buffer.length) {
        const grown = Buffer.allocUnsafeSlow(Math.max(length + chunk.length, 2 * buffer.length, 512));
        buffer.copy(grown, 0, 0, length);
        buffer = grown;
      }
      buffer.set(chunk, length);
      length += chunk.length;
    },
    get heldBytes() {
      return buffer.length;
    },
    get length() {
      return length;
    },
    take() {
      const taken = buffer.subarray(0, length);
      buffer = Buffer.alloc(0);
      length = 0;
      return taken;
    },
  };
};

export type FrameDecoder = {
  /**
   * The frames that `chunk` completes or continues, in order. Throws 'protocol' or 'too-large' on the first byte
   * that cannot be right; the decoder then stays broken and throws the same again.
   */
  push(chunk: Buffer): Frame[];
  /** Throws 'protocol' when the bytes end inside a frame. */
  finish(): void;
  /** Bytes of memory held now. */
  readonly heldBytes: number;
};

/** A decoder for the channels that the other side may send on. */
export const createFrameDecoder = (allowed: readonly Channel[]): FrameDecoder => {
  const header = Buffer.alloc(STREAM.headerBytes);
  let headerLength = 0;
  let current: Channel | undefined;
  let missing = 0;
  const document = createGatherer();
  let broken: XceError | undefined;

  const breakWith = (error: XceError): XceError => {
    broken = error;
    document.take();
    return error;
  };

  const readHeader = (): void => {
    const channel = CHANNEL_BY_NUMBER.get(header.readUInt8(0));
    if (channel === undefined || !allowed.includes(channel)) {
      throw breakWith(
        new XceError('protocol', `a frame has channel ${header.readUInt8(0)}, which must not come here`),
      );
    }
    const length = header.readUInt32BE(1);
    const { min, max } = BOUNDS[channel];
    if (length > max && max > min) {
      throw breakWith(
        new XceError('too-large', `a frame of channel ${channel} announces ${length} bytes, over ${max}`),
      );
    }
    if (length < min || length > max) {
      throw breakWith(
        new XceError('protocol', `a frame of channel ${channel} must not announce ${length} bytes`),
      );
    }
    current = channel;
    missing = length;
  };

  return {
    push(chunk) {
      if (broken !== undefined) throw broken;
      const frames: Frame[] = [];
      let at = 0;
      for (;;) {
        if (current === undefined) {
          const count = Math.min(STREAM.headerBytes - headerLength, chunk.length - at);
          chunk.copy(header, headerLength, at, at + count);
          headerLength += count;
          at += count;
          if (headerLength < STREAM.headerBytes) return frames;
          headerLength = 0;
          readHeader();
        }
        if (current === undefined) continue;
        const piece = chunk.subarray(at, at + missing);
        at += piece.length;
        missing -= piece.length;
        if (isBytes(current)) {
          if (piece.length > 0) frames.push({ channel: current, bytes: piece });
        } else {
          document.push(piece);
          if (missing === 0) frames.push({ channel: current, bytes: document.take() });
        }
        if (missing > 0) return frames;
        current = undefined;
      }
    },
    finish() {
      if (broken !== undefined) throw broken;
      if (current !== undefined || headerLength > 0) {
        throw breakWith(new XceError('protocol', 'the stream ends inside a frame'));
      }
    },
    get heldBytes() {
      return document.heldBytes;
    },
  };
};
