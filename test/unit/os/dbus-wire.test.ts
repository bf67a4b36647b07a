import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  type Call,
  type DbusValue,
  decodeMessage,
  encodeCall,
  messageLength,
  splitSignature,
  variant,
} from '../../../src/os/dbus-wire.ts';

const call = (signature: string, ...body: readonly DbusValue[]): Call => ({
  destination: 'org.freedesktop.systemd1',
  path: '/org/freedesktop/systemd1',
  interface: 'org.freedesktop.systemd1.Manager',
  member: 'M',
  signature,
  body,
});
const roundTrip = (signature: string, ...body: readonly DbusValue[]): readonly DbusValue[] =>
  decodeMessage(encodeCall(call(signature, ...body), 1, 0)).body;

describe('the D-Bus wire format', () => {
  test('is what systemd 257 sent: an error, and the property Job of a unit', () => {
    const error = Buffer.from(
      '6c03010122000000f63b00005d000000050175000200000006017300060000003a312e323730000004017300230000006f72672e667265' +
        '656465736b746f702e73797374656d64312e4e6f53756368556e69740000000000080167000173000007017300040000003a312e3000' +
        '0000001d000000556e6974206e6f70652e73657276696365206e6f74206c6f616465642e00',
      'hex',
    );
    expect(decodeMessage(error)).toMatchObject({
      type: 'error',
      replySerial: 2,
      errorName: 'org.freedesktop.systemd1.NoSuchUnit',
      sender: ':1.0',
      body: ['Unit nope.service not loaded.'],
    });
    const job = Buffer.from(
      '6c02010112000000f73b00002d000000050175000300000006017300060000003a312e3237300000080167000176000007017300040000' +
        '003a312e30000000000428756f2900000000000000010000002f00',
      'hex',
    );
    expect(decodeMessage(job)).toMatchObject({ type: 'return', replySerial: 3, body: [[0, '/']] });
  });

  test('keeps every value of every type we send', () => {
    const word = fc.string().filter((text) => !text.includes('\0') && Buffer.from(text).toString() === text);
    fc.assert(
      fc.property(
        word,
        fc.array(word),
        fc.boolean(),
        fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
        fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 }),
        fc.nat(2 ** 32 - 1),
        fc.array(fc.tuple(word, word, fc.boolean(), fc.bigInt({ min: 0n, max: 9n }))),
        (s, as, b, t, i, u, binds) => {
          expect(roundTrip('sasbtiua(ssbt)', s, as, b, t, i, u, binds)).toEqual([s, as, b, t, i, u, binds]);
          expect(roundTrip('a(sv)v', [['x', variant('as', as)]], variant('(bas)', [b, as]))).toEqual([
            [['x', as]],
            [b, as],
          ]);
        },
      ),
    );
  });

  test('reads the types that systemd answers with', () => {
    const bytes = encodeCall(call('a{sv}ayx', [['n', variant('i', -1)]], [1, 255], -5n), 1, 0);
    expect(decodeMessage(bytes).body).toEqual([[['n', -1]], [1, 255], -5n]);
  });

  test('splits signatures into their types, and refuses what is none', () => {
    expect(splitSignature('ssa(sv)a(sa(sv))a{sv}')).toEqual(['s', 's', 'a(sv)', 'a(sa(sv))', 'a{sv}']);
    for (const signature of ['a', '(', '()', '(s', 'z', 'a(', `${'a'.repeat(40)}s`, 's'.repeat(256)]) {
      expect(() => splitSignature(signature), signature).toThrow(/signature|empty/);
    }
  });

  test('says how long a message is once its first 16 bytes are there', () => {
    const bytes = encodeCall(call('s', 'x'.repeat(1000)), 1, 0);
    expect(messageLength(bytes.subarray(0, 15))).toBeUndefined();
    expect(messageLength(bytes.subarray(0, 16))).toBe(bytes.length);
  });

  test('refuses bytes of another order, a length beyond the bound, and any cut', () => {
    const bytes = encodeCall(call('a(sv)', [['x', variant('as', ['a', 'b'])]]), 1, 0);
    const other = Buffer.from(bytes);
    other[0] = 0x42;
    expect(() => messageLength(other)).toThrow(/byte order/);
    const long = Buffer.from(bytes);
    long.writeUInt32LE(0x7fff_ffff, 4);
    expect(() => messageLength(long)).toThrow(/too long/);
    for (let length = 0; length < bytes.length; length += 1) {
      expect(() => decodeMessage(bytes.subarray(0, length))).toThrow();
    }
  });

  test('never fails otherwise than with a systemd error, whatever bytes come', () => {
    const whole = encodeCall(call('a(sv)as', [['x', variant('(bas)', [true, ['a']])]], ['b']), 7, 0);
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.nat(whole.length - 1), fc.nat(255)), { minLength: 1, maxLength: 6 }),
        (edits) => {
          const bytes = Buffer.from(whole);
          for (const [at, byte] of edits) bytes[at] = byte;
          try {
            decodeMessage(bytes);
          } catch (error) {
            expect(error).toMatchObject({ code: 'systemd' });
          }
        },
      ),
      { numRuns: 3000 },
    );
  });

  test('does not send a value that is not of its type', () => {
    for (const [signature, value] of [
      ['s', 1],
      ['u', 'x'],
      ['t', 1],
      ['as', 'x'],
      ['(ss)', ['x']],
      ['v', 'x'],
      ['b', 1],
    ] as const) {
      expect(() => encodeCall(call(signature, value as DbusValue), 1, 0)).toThrow(/does not fit/);
    }
    expect(() => encodeCall(call('s', 'a\0b'), 1, 0)).toThrow(/NUL/);
  });
});
