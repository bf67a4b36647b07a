import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { leaseMachine } from '../../../src/lease/machine.ts';
import { crcOf } from '../../../src/wal/crc.ts';
import {
  type EncodedFrame,
  encodeCheckpoint,
  encodeComplete,
  encodeEvents,
  encodeFrame,
  encodeHeader,
} from '../../../src/wal/encoder.ts';
import { viewOf } from '../../../src/wal/machine.ts';
import { CHECKED_HEADER_BYTES, FIELD, FILE_START, HEADER_BYTES, TYPE } from '../../../src/wal/record.ts';
import { Replay } from '../../../src/wal/replay.ts';

const PATH = '/log/leases.wal.1';
const IDENTITY = { cluster: 'c', instance: 'main' };
const OWNER = { ...IDENTITY, epoch: 1, token: '0'.repeat(32), wallMs: 1, host: 'a', storage: '{}' };

/** A log of one event behind a checkpoint of one record; both may be of a format that is not known here. */
const logOf = (item: Uint8Array, event: Uint8Array): readonly EncodedFrame[] => {
  const header = encodeFrame(TYPE.header, encodeHeader(OWNER), FILE_START);
  const checkpoint = encodeFrame(TYPE.checkpoint, encodeCheckpoint([item]), header.next);
  const base = { baseEpoch: 0, baseSequence: 0, baseChain: 0, items: 1, wallMs: 1 };
  const complete = encodeFrame(TYPE.complete, encodeComplete(base), checkpoint.next);
  return [header, checkpoint, complete, encodeFrame(TYPE.events, encodeEvents(2, [event]), complete.next)];
};

const [HEAD = Buffer.alloc(0)] = leaseMachine.snapshot(leaseMachine.empty());
const FORGET = leaseMachine.encode({ kind: 'forget', count: 1 });

/** Changes one byte of a frame's header, and makes its checksums right again. */
const withByte = ({ bytes, next }: EncodedFrame, at: number, value: number): EncodedFrame => {
  const changed = Buffer.from(bytes);
  changed.writeUInt8(value, at);
  const headerCheck = crcOf(changed, 0, CHECKED_HEADER_BYTES);
  changed.writeUInt32BE(headerCheck, FIELD.check);
  changed.writeUInt32BE(crcOf(changed, HEADER_BYTES, changed.length - 4, headerCheck), changed.length - 4);
  return { bytes: changed, next };
};

const refusalOf = async (frames: readonly EncodedFrame[]): Promise<XceError> => {
  const bytes = Buffer.concat(frames.map((frame) => frame.bytes));
  const replay = new Replay(viewOf(leaseMachine), { path: PATH, epoch: 1, identity: IDENTITY });
  try {
    await replay.advance({
      read: async (into, position) => {
        const part = bytes.subarray(position, position + into.length);
        into.set(part);
        return part.length;
      },
    });
  } catch (error) {
    if (error instanceof XceError) return error;
    throw error;
  }
  throw new Error('it was not refused');
};

describe('what a newer version has written', () => {
  const known = logOf(HEAD, FORGET);
  const last = known.length - 1;
  const change = (at: number, value: number): readonly EncodedFrame[] =>
    known.map((frame, i) => (i === last ? withByte(frame, at, value) : frame));
  const event = (bytes: Uint8Array, change: readonly [at: number, value: number]): Buffer => {
    const changed = Buffer.from(bytes);
    changed.writeUInt8(change[1], change[0]);
    return changed;
  };

  test.each([
    ['a frame of another version', change(FIELD.version, 2), last, /format version 2; this program reads 1/],
    ['a record of another type', change(FIELD.type, 5), last, /of type 5/],
    ['a frame with flags', change(FIELD.zero + 1, 1), last, /with flags/],
    [
      'an event of another version',
      logOf(HEAD, event(FORGET, [0, 2])),
      last,
      /an event in version 2; .* version 1/,
    ],
    ['an event of another kind', logOf(HEAD, event(FORGET, [1, 200])), last, /an event of kind 200/],
    [
      'a checkpoint of another version',
      logOf(event(HEAD, [0, 2]), FORGET),
      1,
      /checkpoint in version 2; .* version 1/,
    ],
    [
      'a checkpoint with another kind of part',
      logOf(event(HEAD, [1, 99]), FORGET),
      1,
      /checkpoint of kind 99/,
    ],
  ] as const)('is refused as such, with what and where: %s', async (_, frames, at, says) => {
    const offset = frames.slice(0, at).reduce((sum, { bytes }) => sum + bytes.length, 0);
    const { code, message, facts } = await refusalOf(frames);
    expect({ code, at: facts.at }).toEqual({ code: 'log-version', at: `${PATH}:${offset}` });
    expect(message).toMatch(says);
    expect(facts.unchanged).toBe('nothing was written to the lease log');
    expect(facts.next).toMatch(/install/);
  });
});
