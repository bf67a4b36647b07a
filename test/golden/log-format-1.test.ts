import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import type { XceError } from '../../src/base/errors.ts';
import type { ByteSource } from '../../src/wal/decoder.ts';
import { type Machine, viewOf } from '../../src/wal/machine.ts';
import { Replay } from '../../src/wal/replay.ts';
import { GOLDEN, makeGoldenLog } from './log-format-1.ts';

const committed = readFileSync(new URL('./leases.wal.3', import.meta.url));

/** Keeps what it is given, in order. */
const listMachine: Machine<string[], string> = {
  empty: () => [],
  replay: (state, bytes, start, end) => {
    state.push(Buffer.from(bytes).toString('latin1', start, end));
  },
  encode: (event) => Buffer.from(event, 'latin1'),
  decode: (bytes, start, end) => Buffer.from(bytes).toString('latin1', start, end),
  snapshot: (state) => state.map((item) => Buffer.from(item, 'latin1')),
  restore: (state, record) => {
    state.push(Buffer.from(record).toString('latin1'));
  },
};

/** Gives at most `stepBytes` at once, as a file system may. */
const sourceOf = (bytes: Uint8Array, stepBytes = 1 << 30): ByteSource => ({
  read: async (into, position) => {
    const part = bytes.subarray(position, Math.min(position + into.length, position + stepBytes));
    into.set(part);
    return part.length;
  },
});

const replayOf = async (bytes: Uint8Array, stepBytes?: number): Promise<Replay<string[], string>> => {
  const { cluster, instance, epoch } = GOLDEN;
  const file = { path: '/log/leases.wal.3', epoch, identity: { cluster, instance } };
  const replay = new Replay(viewOf(listMachine), file);
  await replay.advance(sourceOf(bytes, stepBytes));
  return replay;
};

const problemOf = async (bytes: Uint8Array): Promise<XceError | undefined> => {
  try {
    await replayOf(bytes);
    return undefined;
  } catch (error) {
    return error as XceError;
  }
};

const { offsets } = makeGoldenLog();
const everything = [...GOLDEN.state, ...GOLDEN.records.flat()];
/** The frame that an offset lies in. */
const frameAt = (offset: number): number => offsets.findLast((start) => start <= offset) ?? 0;
/** What counts when the file is whole up to a frame; nothing before the complete record does. */
const stateBefore = (offset: number): readonly string[] => {
  const whole = offsets.filter((start) => start < offset).length;
  return [...GOLDEN.state, ...GOLDEN.records.slice(0, Math.max(0, whole - 3)).flat()];
};

describe('the golden log of format 1', () => {
  test('is what the encoder makes today', () => {
    expect(makeGoldenLog().bytes.equals(committed)).toBe(true);
  });

  test.each([1, 7, 28, 4096, 1 << 20])(
    'replays to its state when read %i bytes at a time',
    async (stepBytes) => {
      const replay = await replayOf(committed, stepBytes);
      expect(replay.state).toEqual(everything);
      expect(replay.header).toEqual({
        epoch: 3,
        token: GOLDEN.token,
        wallMs: GOLDEN.wallMs,
        cluster: 'golden',
        instance: 'main',
        host: 'ctl-1.example.org',
        storage: '{"type":"ext4"}',
      });
      expect(replay.complete).toEqual({ ...GOLDEN.base, items: 3, wallMs: GOLDEN.wallMs + 1 });
      expect(replay.position.offset).toBe(committed.length);
      expect(replay.tornBytes).toBe(0);
      expect(replay.wallMs).toBe(GOLDEN.wallMs + 3000);
    },
  );

  test('cut at any byte is a torn tail: whole records count, the rest does not', async () => {
    for (let length = 0; length < committed.length; length++) {
      const replay = await replayOf(committed.subarray(0, length));
      const end = offsets.includes(length) ? length : frameAt(length);
      expect(replay.position.offset).toBe(end);
      expect(replay.tornBytes).toBe(length - end);
      if (replay.complete !== undefined) expect(replay.state).toEqual(stateBefore(end));
    }
  });

  test('cut at any byte and filled with zeros is a torn tail as well', async () => {
    for (let length = 0; length < committed.length; length++) {
      const bytes = Buffer.concat([
        committed.subarray(0, length),
        Buffer.alloc(committed.length + 600 - length),
      ]);
      const replay = await replayOf(bytes);
      // the file may end in zeros of its own, and is then whole where the cut is in them
      const end = replay.position.offset;
      expect([...offsets, committed.length]).toContain(end);
      expect(end >= frameAt(length) && end <= committed.length).toBe(true);
      if (end > length) expect(committed.subarray(length, end).every((byte) => byte === 0)).toBe(true);
      if (replay.complete !== undefined) expect(replay.state).toEqual(stateBefore(end));
    }
  });

  test('with any bit changed is refused as corrupt at the offset of that record', async () => {
    for (let at = 0; at < committed.length; at++) {
      for (let bit = 0; bit < 8; bit++) {
        const bytes = Buffer.from(committed);
        bytes[at] = (bytes[at] ?? 0) ^ (1 << bit);
        const problem = await problemOf(bytes);
        expect(problem?.code).toBe('log-corrupt');
        expect(problem?.facts.at).toBe(`/log/leases.wal.3:${frameAt(at)}`);
      }
    }
  });

  test('with a byte taken out, put in or repeated anywhere is never read as a whole log', async () => {
    for (let at = 0; at < committed.length; at++) {
      const head = committed.subarray(0, at);
      for (const bytes of [
        Buffer.concat([head, committed.subarray(at + 1)]),
        Buffer.concat([head, Buffer.from([0x5a]), committed.subarray(at)]),
        Buffer.concat([head, committed.subarray(at, at + 1), committed.subarray(at)]),
      ]) {
        const same = bytes.findIndex((byte, i) => byte !== committed[i]);
        const outcome = await replayOf(bytes).catch((error: XceError) => error.code);
        if (typeof outcome === 'string') expect(outcome).toBe('log-corrupt');
        else expect(outcome.position.offset).toBeLessThanOrEqual(same < 0 ? at : same);
      }
    }
  });

  test('with a record left out, doubled or in another place is refused', async () => {
    const parts = offsets.map((start, i) => committed.subarray(start, offsets[i + 1] ?? committed.length));
    for (let i = 0; i < parts.length; i++) {
      const part = parts[i] ?? Buffer.alloc(0);
      if (i < parts.length - 1) {
        const without = Buffer.concat(parts.filter((_, j) => j !== i));
        expect((await problemOf(without))?.code).toBe('log-corrupt');
      }
      const doubled = Buffer.concat([...parts.slice(0, i + 1), part, ...parts.slice(i + 1)]);
      expect((await problemOf(doubled))?.code).toBe('log-corrupt');
    }
  });
});
