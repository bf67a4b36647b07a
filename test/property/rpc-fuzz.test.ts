/**
 * Whatever bytes come, the decoders of the wire end in a value or in an XceError 'protocol' or 'too-large'.
 * XCE_FUZZ_RUNS sets how many messages are mutated.
 */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { XceError } from '../../src/base/errors.ts';
import {
  decodeCommand,
  decodeEvent,
  decodeRequest,
  decodeResponse,
  decodeWireError,
} from '../../src/rpc/decode.ts';
import {
  type Channel,
  CLIENT_CHANNELS,
  createFrameDecoder,
  encodeCredit,
  encodeFrame,
  type Frame,
  SERVER_CHANNELS,
} from '../../src/rpc/frame.ts';
import { MESSAGES, STREAMS, type UnaryVerb, type Verb } from '../../src/rpc/message.ts';
import { mutate } from '../support/mutate.ts';
import { ANSWERS, createRandom, DAEMON, REQUESTS, SPAWN, STEP, SUCCESS } from '../unit/rpc/site.ts';

const runs = Number(process.env['XCE_FUZZ_RUNS'] ?? 50_000);
const seed = 20_261_130;

type Seed = { readonly bytes: Buffer; readonly decode: (bytes: Buffer) => unknown };

const document = (value: unknown): Buffer => Buffer.from(JSON.stringify(value));

const seeds: Seed[] = [
  ...(Object.keys(MESSAGES) as UnaryVerb[]).flatMap((verb) => [
    { bytes: document(REQUESTS[verb]), decode: (bytes: Buffer) => decodeRequest(verb, bytes) },
    { bytes: document(ANSWERS[verb]), decode: (bytes: Buffer) => decodeResponse(verb, bytes) },
  ]),
  ...(Object.keys(STREAMS) as (keyof typeof STREAMS)[]).map((verb) => ({
    bytes: document({ step: STEP, daemon: DAEMON, spawn: SPAWN }[verb]),
    decode: (bytes: Buffer) => decodeRequest(verb as Verb, bytes),
  })),
  { bytes: document({ event: 'started', unit: 'u' }), decode: decodeEvent },
  { bytes: document({ event: 'daemon-ended', node: 'n1', outcome: SUCCESS }), decode: decodeEvent },
  { bytes: document({ event: 'ended', outcome: SUCCESS }), decode: decodeEvent },
  { bytes: document({ command: 'signal', signal: 15 }), decode: decodeCommand },
  {
    bytes: document({ code: 'os', message: 'm', at: 'a', detail: { x: [1, { y: null }] } }),
    decode: decodeWireError,
  },
];

/** The code of the refusal, or 'value'. Anything else escapes and fails the test. */
const outcomeOf = (run: () => unknown): string => {
  try {
    run();
  } catch (error) {
    if (error instanceof XceError) return error.code;
    throw error;
  }
  return 'value';
};

describe('mutated messages', () => {
  test(`${runs} of them end in a value or a refusal`, () => {
    const random = createRandom(seed);
    const outcomes = new Map<string, number>();
    for (let run = 0; run < runs; run += 1) {
      const picked = seeds[run % seeds.length];
      if (picked === undefined) throw new Error('no seed');
      const outcome = outcomeOf(() => picked.decode(mutate(picked.bytes, random)));
      outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1);
    }
    const known = ['value', 'protocol', 'too-large'];
    expect([...outcomes.keys()].filter((outcome) => !known.includes(outcome))).toEqual([]);
    // A mutation that is always refused, or never, would test nothing.
    expect(outcomes.get('value')).toBeGreaterThan(runs / 100);
    expect(outcomes.get('protocol')).toBeGreaterThan(runs / 10);
  });
});

describe('mutated frames', () => {
  const sequence = Buffer.concat([
    encodeFrame('head', document(STEP)),
    encodeFrame('stdin', Buffer.alloc(300, 'x')),
    encodeFrame('control', document({ command: 'signal', signal: 15 })),
    encodeFrame('endOfStdin', Buffer.alloc(0)),
  ]);

  const sequenceRuns = Math.ceil(runs / 5);

  test(`${sequenceRuns} sequences in any chunks end in frames or a refusal, and hold little memory`, () => {
    const random = createRandom(seed + 1);
    let heldMax = 0;
    const outcomes = new Map<string, number>();
    for (let run = 0; run < sequenceRuns; run += 1) {
      const bytes = mutate(sequence, random);
      const decoder = createFrameDecoder(run % 2 === 0 ? CLIENT_CHANNELS : SERVER_CHANNELS);
      const outcome = outcomeOf(() => {
        for (let at = 0; at < bytes.length; ) {
          const size = 1 + random(200);
          decoder.push(bytes.subarray(at, at + size));
          at += size;
        }
        decoder.finish();
      });
      heldMax = Math.max(heldMax, decoder.heldBytes - 4 * bytes.length);
      outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1);
    }
    expect(heldMax).toBeLessThanOrEqual(512);
    expect([...outcomes.keys()].sort()).toEqual(['protocol', 'too-large', 'value']);
  });
});

/** Neighbouring pieces of one byte channel are one piece: borders mean nothing there. */
const join = (frames: readonly Frame[]): { channel: Channel; hex: string }[] => {
  const joined: { channel: Channel; hex: string }[] = [];
  for (const { channel, bytes } of frames) {
    const last = joined.at(-1);
    const isBytes = channel === 'stdin' || channel === 'stdout' || channel === 'stderr';
    if (isBytes && last?.channel === channel) last.hex += bytes.toString('hex');
    else joined.push({ channel, hex: bytes.toString('hex') });
  }
  return joined;
};

test('any frames in any chunks come out as they went in', () => {
  const payload = fc.uint8Array({ minLength: 1, maxLength: 300 }).map((bytes) => Buffer.from(bytes));
  const frame = fc.oneof(
    payload.map((bytes) => ({ channel: 'stdout' as const, bytes, wire: encodeFrame('stdout', bytes) })),
    payload.map((bytes) => ({ channel: 'stderr' as const, bytes, wire: encodeFrame('stderr', bytes) })),
    payload.map((bytes) => ({ channel: 'control' as const, bytes, wire: encodeFrame('control', bytes) })),
    payload.map((bytes) => ({ channel: 'error' as const, bytes, wire: encodeFrame('error', bytes) })),
    fc.integer({ min: 1, max: 0xffff_ffff }).map((count) => {
      const wire = encodeCredit(count);
      return { channel: 'credit' as const, bytes: wire.subarray(5), wire };
    }),
  );
  fc.assert(
    fc.property(
      fc.array(frame, { maxLength: 20 }),
      fc.array(fc.integer({ min: 1, max: 400 })),
      (frames, cuts) => {
        const wire = Buffer.concat(frames.map((each) => each.wire));
        const decoder = createFrameDecoder(SERVER_CHANNELS);
        const out: Frame[] = [];
        let at = 0;
        for (const size of [...cuts, wire.length]) {
          out.push(...decoder.push(wire.subarray(at, at + size)));
          at += size;
        }
        decoder.finish();
        expect(join(out)).toEqual(join(frames));
      },
    ),
    { seed, numRuns: 500 },
  );
});
