import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { XceError } from '../../src/base/errors.ts';
import {
  type ByteSource,
  decodeCheckpoint,
  decodeComplete,
  decodeEvents,
  decodeHeader,
  Frame,
  readFrames,
} from '../../src/wal/decoder.ts';
import {
  encodeCheckpoint,
  encodeComplete,
  encodeEvents,
  encodeFrame,
  encodeHeader,
} from '../../src/wal/encoder.ts';
import { FILE_START, TYPE } from '../../src/wal/record.ts';

/** A frame that holds these bytes and no others. */
const frameOf = (payload: Uint8Array): Frame => {
  const bytes = Buffer.concat([Buffer.from('before'), payload, Buffer.from('behind')]);
  const frame = new Frame('/log', bytes);
  frame.start = 6;
  frame.end = 6 + payload.length;
  return frame;
};
const whole = fc.maxSafeNat();
const bytes = fc.uint8Array({ maxLength: 300 });
/** Well-formed text, also outside of the basic plane. */
const text = fc.string({ unit: 'grapheme', maxLength: 40 });
const hex16 = fc
  .uint8Array({ minLength: 16, maxLength: 16 })
  .map((token) => Buffer.from(token).toString('hex'));

const sourceOf = (file: Uint8Array, stepBytes: number): ByteSource => ({
  read: async (into, position) => {
    const part = file.subarray(position, Math.min(position + into.length, position + stepBytes));
    into.set(part);
    return part.length;
  },
});

const encodeAll = (payloads: readonly Uint8Array[]): { file: Buffer; ends: readonly number[] } => {
  let at = FILE_START;
  const frames = payloads.map((payload) => {
    const frame = encodeFrame(TYPE.events, payload, at);
    at = frame.next;
    return frame;
  });
  return {
    file: Buffer.concat(frames.map((frame) => frame.bytes)),
    ends: frames.map(({ next }) => next.offset),
  };
};

const readAll = async (
  file: Uint8Array,
  stepBytes = 1 << 20,
): Promise<{ payloads: readonly Buffer[]; offset: number; tornBytes: number }> => {
  const payloads: Buffer[] = [];
  const visit = ({ bytes: buffer, start, end }: Frame): void => {
    payloads.push(Buffer.from(buffer.subarray(start, end)));
  };
  const { position, tornBytes } = await readFrames(sourceOf(file, stepBytes), '/log', FILE_START, visit);
  return { payloads, offset: position.offset, tornBytes };
};

describe('frames', () => {
  test('come back as they went in, however few bytes a read gives', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(bytes, { maxLength: 8 }),
        fc.integer({ min: 1, max: 700 }),
        async (list, step) => {
          const { file } = encodeAll(list);
          const read = await readAll(file, step);
          expect(read.payloads.map((payload) => [...payload])).toEqual(list.map((payload) => [...payload]));
          expect(read).toMatchObject({ offset: file.length, tornBytes: 0 });
        },
      ),
      { numRuns: 150 },
    );
  });

  test('cut anywhere give the whole ones before the cut, and say how many bytes are torn', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(bytes, { minLength: 1, maxLength: 6 }), fc.nat(), async (list, at) => {
        const { file, ends } = encodeAll(list);
        const length = at % file.length;
        const read = await readAll(file.subarray(0, length));
        const end = ends.findLast((offset) => offset <= length) ?? 0;
        expect(read).toMatchObject({ offset: end, tornBytes: length - end });
      }),
      { numRuns: 300 },
    );
  });

  test('with bytes changed anywhere never come back as other payloads', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(bytes, { minLength: 1, maxLength: 5 }),
        fc.array(fc.tuple(fc.nat(), fc.integer({ min: 1, max: 255 })), { minLength: 1, maxLength: 4 }),
        async (list, changes) => {
          const { file } = encodeAll(list);
          for (const [at, mask] of changes) file[at % file.length] = (file[at % file.length] ?? 0) ^ mask;
          try {
            const { payloads } = await readAll(file);
            // two changes may undo each other, and a tail of zeros may look torn: what is read is what was written
            for (const [i, payload] of payloads.entries()) expect([...payload]).toEqual([...(list[i] ?? [])]);
          } catch (error) {
            if (!(error instanceof XceError)) throw error;
            expect(['log-corrupt', 'log-version']).toContain(error.code);
          }
        },
      ),
      { numRuns: 500 },
    );
  });

  test('each checksum covers every field before it', () => {
    fc.assert(
      fc.property(bytes, fc.nat(), fc.nat(0xffffffff), (payload, sequence, chain) => {
        const check = (of: { sequence: number; chain: number }): number =>
          encodeFrame(TYPE.events, payload, { offset: 0, ...of }).next.chain;
        const here = check({ sequence, chain });
        for (let bit = 0; bit < 32; bit++) {
          expect(check({ sequence, chain: (chain ^ (1 << bit)) >>> 0 })).not.toBe(here);
        }
        expect(check({ sequence: sequence ^ 1, chain })).not.toBe(here);
      }),
      { numRuns: 50 },
    );
  });
});

describe('payloads', () => {
  test('of headers come back as they went in', () => {
    fc.assert(
      fc.property(whole, hex16, whole, text, text, text, text, (...fields) => {
        const [epoch, token, wallMs, cluster, instance, host, storage] = fields;
        const header = { epoch, token, wallMs, cluster, instance, host, storage };
        expect(decodeHeader(frameOf(encodeHeader(header)))).toEqual(header);
      }),
    );
  });

  test('of complete records come back as they went in', () => {
    fc.assert(
      fc.property(whole, whole, fc.nat(0xffffffff), whole, whole, (...fields) => {
        const [baseEpoch, baseSequence, baseChain, items, wallMs] = fields;
        const record = { baseEpoch, baseSequence, baseChain, items, wallMs };
        expect(decodeComplete(frameOf(encodeComplete(record)))).toEqual(record);
      }),
    );
  });

  test('of checkpoints and events come back as they went in', () => {
    fc.assert(
      fc.property(fc.array(bytes, { minLength: 1, maxLength: 20 }), whole, (items, wallMs) => {
        const seen: number[][] = [];
        const visit = (item: Uint8Array): void => {
          seen.push([...item]);
        };
        expect(decodeCheckpoint(frameOf(encodeCheckpoint(items)), visit)).toBe(items.length);
        const visitPart = (all: Uint8Array, start: number, end: number): void =>
          visit(all.subarray(start, end));
        expect(decodeEvents(frameOf(encodeEvents(wallMs, items)), visitPart)).toBe(wallMs);
        expect(seen).toEqual([...items, ...items].map((item) => [...item]));
      }),
    );
  });

  test('of any bytes are read as what they are or refused as corrupt', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 120 }), (payload) => {
        const frame = frameOf(payload);
        const ignore = (): void => undefined;
        for (const decode of [
          () => decodeHeader(frame),
          () => decodeComplete(frame),
          () => decodeCheckpoint(frame, ignore),
          () => decodeEvents(frame, ignore),
        ]) {
          try {
            decode();
          } catch (error) {
            expect(error).toMatchObject({ code: 'log-corrupt' });
          }
        }
      }),
      { numRuns: 500 },
    );
  });
});
