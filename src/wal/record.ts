/**
 * The bytes of the lease log: frames, and what the payload of each type holds. xce-sandbox-log(5) is the table
 * that this file follows; a change here is a new format version there.
 */
import { dirname } from 'node:path';
import type { XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import { damaged } from './damage.ts';

export const MAGIC = 0x5843454c; // 'XCEL'
export const FORMAT_VERSION = 1;

/** Header of a frame, and the checksum behind its payload. */
export const HEADER_BYTES = 28;
export const TRAILER_BYTES = 4;
/** What the header checksum covers; the frame checksum goes on from there over the payload. */
export const CHECKED_HEADER_BYTES = 24;
/** An item of the largest size fits into each type of record. */
export const PAYLOAD_BYTES_MAX = LIMITS.recordBytesMax + 16;

export const FIELD = {
  magic: 0,
  version: 4,
  type: 5,
  zero: 6,
  length: 8,
  chain: 12,
  sequence: 16,
  check: 24,
};

export const TYPE = { header: 1, checkpoint: 2, complete: 3, events: 4 } as const;
export type RecordType = (typeof TYPE)[keyof typeof TYPE];

export const TOKEN_BYTES = 16;
export const TEXT_BYTES_MAX = 0xffff;
/** Length in front of each item. */
export const ITEM_HEADER_BYTES = 4;
/** Wall clock in front of the items of an events record. */
export const EVENTS_HEADER_BYTES = 8;

/** First record of a file: whose log this is, and who may append to it. */
export type LogHeader = {
  readonly epoch: number;
  /** 32 hex digits. */
  readonly token: string;
  readonly wallMs: number;
  readonly cluster: string;
  readonly instance: string;
  readonly host: string;
  /** What the storage probe found when the epoch was taken: JSON, for people and for later checks. */
  readonly storage: string;
};

/** Ends the checkpoint: from here on the file is the log. */
export type CompleteRecord = {
  /** The last record that the checkpoint covers: epoch 0 in the first log. */
  readonly baseEpoch: number;
  readonly baseSequence: number;
  readonly baseChain: number;
  /** Number of items in the checkpoint. */
  readonly items: number;
  readonly wallMs: number;
};

/** Where the next frame goes, and what it must follow. */
export type FramePosition = {
  readonly offset: number;
  /** Sequence number of the next frame. */
  readonly sequence: number;
  /** Frame checksum of the last frame, 0 at the start of a file. */
  readonly chain: number;
};
export const FILE_START: FramePosition = { offset: 0, sequence: 0, chain: 0 };

/** Corruption has one form everywhere: the file, the offset of the record, and what did not check. */
export const corruptLog = (path: string, offset: number, reason: string, cause?: unknown): XceError =>
  damaged(
    'record',
    `${path} does not check at offset ${offset}: ${reason}`,
    { directory: dirname(path), what: path },
    {
      at: `${path}:${offset}`,
      detail: { path, offset, reason },
      ...(cause === undefined ? {} : { cause }),
    },
  );

/** What a newer version wrote is not guessed at. `what` says which part of the record this program does not know. */
export const newerLog = (path: string, offset: number, what: string, cause?: unknown): XceError =>
  damaged(
    'newer',
    `${path} has at offset ${offset} a record that this program is too old for: ${what}`,
    { directory: dirname(path), what: path },
    {
      at: `${path}:${offset}`,
      detail: { path, offset, reason: what },
      ...(cause === undefined ? {} : { cause }),
    },
  );
