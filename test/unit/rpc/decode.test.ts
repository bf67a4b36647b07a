import { describe, expect, test } from 'vitest';
import { ERRORS, type ErrorCode, XceError } from '../../../src/base/errors.ts';
import { LIMITS } from '../../../src/base/limits.ts';
import {
  decodeEvent,
  decodeRequest,
  decodeResponse,
  decodeWireError,
  encodeDocument,
  encodeError,
  statusOf,
} from '../../../src/rpc/decode.ts';
import { STREAM } from '../../../src/rpc/message.ts';
import { encodeRefusal, readRefusal } from '../../../src/rpc/refusal.ts';
import { ANSWERS, SUCCESS } from './site.ts';

const bytes = (value: unknown): Buffer => Buffer.from(JSON.stringify(value));

const codeOf = (run: () => unknown): string => {
  try {
    run();
  } catch (error) {
    if (error instanceof XceError) return error.code;
    throw error;
  }
  return 'no error';
};

describe('a document', () => {
  test('keeps digits that a double would lose, because ids are text', () => {
    const request = {
      epoch: 1,
      lease: 7,
      uid: 70_007,
      attempt: 0,
      nonce: '0f'.repeat(16),
      job: '900719925474099312',
    };
    expect(decodeRequest('drain', bytes(request))).toEqual(request);
    expect(codeOf(() => decodeRequest('drain', bytes({ ...request, job: 42 })))).toBe('protocol');
    expect(codeOf(() => decodeRequest('drain', bytes({ ...request, job: 'a b' })))).toBe('protocol');
    expect(codeOf(() => decodeRequest('drain', bytes({ ...request, uid: 0 })))).toBe('protocol');
  });

  test('loses keys that this version does not know, and __proto__ with them', () => {
    const decoded = decodeRequest('stop', Buffer.from('{"lease":7,"__proto__":{"x":1},"y":2}'));
    expect(decoded).toEqual({ lease: 7 });
    expect('x' in decoded).toBe(false);
  });

  test('of an answer of another major version is refused', () => {
    const newer = { ...ANSWERS.challenge, protocol: { major: 2, minor: 0 } };
    expect(codeOf(() => decodeResponse('challenge', bytes(newer)))).toBe('protocol');
    const minor = { ...ANSWERS.challenge, protocol: { major: 1, minor: 9 } };
    expect(decodeResponse('challenge', bytes(minor)).protocol.minor).toBe(9);
  });

  test('of a prepare tells the mount of every path that a lease may have, and no more', () => {
    const [mount] = ANSWERS.prepare.mounts;
    const telling = (count: number) => bytes({ ...ANSWERS.prepare, mounts: Array(count).fill(mount) });
    const { mounts } = decodeResponse('prepare', telling(LIMITS.leaseScopesMax));
    expect(mounts).toHaveLength(LIMITS.leaseRootsMax + 1);
    expect(codeOf(() => decodeResponse('prepare', telling(LIMITS.leaseScopesMax + 1)))).toBe('too-large');
  });

  test('names the place of what is wrong, in printable characters', () => {
    const wrong = bytes({ event: 'ended', outcome: { ...SUCCESS, status: '\u001b[31m' } });
    expect(() => decodeEvent(wrong)).toThrow(/^an event: outcome\.status: [\x20-\x7e]+$/);
  });

  test('is not sent when it is over its limit', () => {
    expect(codeOf(() => encodeDocument('x'.repeat(100), 'it', 50))).toBe('too-large');
  });
});

describe('an error', () => {
  test('of every code crosses the wire with its facts, but for a bug, which says nothing', () => {
    for (const code of Object.keys(ERRORS) as ErrorCode[]) {
      const facts = { at: 'n1', unchanged: 'all', next: 'do', detail: { a: [1, null, 'x'] } };
      const read = decodeWireError(encodeError(new XceError(code, `text of ${code}`, facts)));
      expect(read.code).toBe(code);
      if (code === 'bug') expect([read.message.includes('text of'), read.facts]).toEqual([false, {}]);
      else expect([read.message, read.facts]).toEqual([`text of ${code}`, facts]);
      expect(statusOf(code)).toBeGreaterThanOrEqual(400);
    }
  });

  test('keeps text that its maker has escaped, and escapes what it has not', () => {
    const maker = 'é: \\x1b[31m \u001b[31m\n\u202e';
    expect(decodeWireError(encodeError(new XceError('os', maker))).message).toBe(
      'é: \\x1b[31m \\x1b[31m\\n\\u{202e}',
    );
  });

  test('of endless text is cut so that it always fits a frame', () => {
    const long = '\u0001'.repeat(100_000);
    const facts = { at: long, unchanged: long, next: long, detail: { long } };
    const encoded = encodeError(new XceError('os', long, facts));
    expect(encoded.length).toBeLessThanOrEqual(STREAM.documentBytesMax);
    expect(decodeWireError(encoded).code).toBe('os');
  });

  test('refuses a connection in the debug data of a GOAWAY, cut to what any peer must take', () => {
    const frames = encodeRefusal(
      new XceError('peer-role', 'uid 5 is not root', { detail: { x: 'y'.repeat(40_000) } }),
    );
    expect(frames.subarray(0, 9).toString('hex')).toBe('000000040000000000');
    const goaway = frames.subarray(9);
    expect(goaway[3]).toBe(7);
    const length = goaway.readUIntBE(0, 3);
    expect(goaway.length).toBe(9 + length);
    expect(length).toBeLessThanOrEqual(16 << 10);
    const code = goaway.readUInt32BE(13);
    expect(readRefusal(code, goaway.subarray(17))?.code).toBe('peer-role');
    expect(readRefusal(0, undefined)).toBeUndefined();
    expect(readRefusal(2, undefined)?.code).toBe('protocol');
  });
});
