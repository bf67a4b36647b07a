import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { LIMITS } from '../../../src/base/limits.ts';
import {
  CLIENT_CHANNELS,
  createFrameDecoder,
  createGatherer,
  encodeCredit,
  encodeFrame,
  encodeFrameHeader,
  SERVER_CHANNELS,
} from '../../../src/rpc/frame.ts';

const codeOf = (run: () => unknown): string => {
  try {
    run();
  } catch (error) {
    if (error instanceof XceError) return error.code;
    throw error;
  }
  return 'no error';
};

describe('the bytes of a frame', () => {
  test('are a channel, a big-endian length and the payload', () => {
    expect(encodeFrame('stdout', Buffer.from('ab')).toString('hex')).toBe('02000000026162');
    expect(encodeFrame('endOfStdin', Buffer.alloc(0)).toString('hex')).toBe('0500000000');
    expect(encodeCredit(262_144).toString('hex')).toBe('070000000400040000');
    expect(encodeFrameHeader('head', 0x01_0203).toString('hex')).toBe('0000010203');
  });

  test('are never made longer, or emptier, than a peer would take', () => {
    expect(codeOf(() => encodeFrame('stdout', Buffer.alloc(LIMITS.frameBytesMax + 1)))).toBe('too-large');
    expect(codeOf(() => encodeFrame('control', Buffer.alloc(0)))).toBe('bug');
  });
});

describe('the decoder', () => {
  test('passes bytes on before their frame is complete, and documents only whole', () => {
    const decoder = createFrameDecoder(CLIENT_CHANNELS);
    expect(decoder.push(Buffer.concat([encodeFrameHeader('stdin', 4), Buffer.from('ab')]))).toEqual([
      { channel: 'stdin', bytes: Buffer.from('ab') },
    ]);
    expect(decoder.push(Buffer.from('cd'))).toEqual([{ channel: 'stdin', bytes: Buffer.from('cd') }]);
    expect(decoder.push(Buffer.concat([encodeFrameHeader('control', 4), Buffer.from('{"')]))).toEqual([]);
    expect(decoder.push(Buffer.from('}x'))).toEqual([{ channel: 'control', bytes: Buffer.from('{"}x') }]);
    decoder.finish();
  });

  test('takes frames that end with a chunk, and several in one chunk', () => {
    const decoder = createFrameDecoder(CLIENT_CHANNELS);
    const two = Buffer.concat([
      encodeFrame('stdin', Buffer.from('a')),
      encodeFrame('endOfStdin', Buffer.alloc(0)),
    ]);
    expect(decoder.push(two)).toEqual([
      { channel: 'stdin', bytes: Buffer.from('a') },
      { channel: 'endOfStdin', bytes: Buffer.alloc(0) },
    ]);
    expect(decoder.push(Buffer.alloc(0))).toEqual([]);
    decoder.finish();
  });

  test.each([
    ['an unknown channel', '0800000001', 'protocol'],
    ['a channel of the other side', '0200000001', 'protocol'],
    ['a head over 4 MiB', '0000400001', 'too-large'],
    ['stdin over 64 KiB', '0100010001', 'too-large'],
    ['an empty command', '0400000000', 'protocol'],
    ['an end of stdin that is not empty', '0500000001', 'protocol'],
  ])('refuses %s at its header and stays broken', (_what, hex, code) => {
    const decoder = createFrameDecoder(CLIENT_CHANNELS);
    expect(codeOf(() => decoder.push(Buffer.from(hex, 'hex')))).toBe(code);
    expect(codeOf(() => decoder.push(encodeFrame('stdin', Buffer.from('a'))))).toBe(code);
    expect(codeOf(() => decoder.finish())).toBe(code);
  });

  test('refuses a credit that is not four bytes', () => {
    for (const hex of ['0700000003', '0700000005']) {
      const decoder = createFrameDecoder(SERVER_CHANNELS);
      expect(codeOf(() => decoder.push(Buffer.from(hex, 'hex')))).toBe('protocol');
    }
  });

  test('refuses an end inside a header or a payload', () => {
    for (const hex of ['01', '01000000', '0100000002', '010000000261']) {
      const decoder = createFrameDecoder(CLIENT_CHANNELS);
      decoder.push(Buffer.from(hex, 'hex'));
      expect(codeOf(() => decoder.finish())).toBe('protocol');
    }
  });

  test('holds memory for what came, not for what was announced', () => {
    const decoder = createFrameDecoder(CLIENT_CHANNELS);
    decoder.push(Buffer.concat([encodeFrameHeader('head', LIMITS.messageBytesMax), Buffer.alloc(10)]));
    expect(decoder.heldBytes).toBeLessThan(1024);
    for (let count = 0; count < 1000; count += 1) decoder.push(Buffer.alloc(1));
    expect(decoder.heldBytes).toBeLessThan(4096);
  });
});

test('a gatherer gives back what was put in, and is empty then', () => {
  const gatherer = createGatherer();
  const parts = Array.from({ length: 300 }, (_, index) => Buffer.alloc(index % 7, index));
  for (const part of parts) gatherer.push(part);
  expect(gatherer.length).toBe(Buffer.concat(parts).length);
  expect(gatherer.take()).toEqual(Buffer.concat(parts));
  expect([gatherer.length, gatherer.heldBytes, gatherer.take().length]).toEqual([0, 0, 0]);
});
