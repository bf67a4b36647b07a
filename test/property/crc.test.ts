import { crc32 } from 'node:zlib';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { crcOf } from '../../src/wal/crc.ts';

test('a CRC is that of zlib, for any part of any bytes, also when it goes on from another', () => {
  fc.assert(
    fc.property(
      fc.uint8Array({ maxLength: 900 }),
      fc.nat(),
      fc.nat(),
      fc.nat(0xffffffff),
      (bytes, a, b, crc) => {
        const start = a % (bytes.length + 1);
        const end = start + (b % (bytes.length - start + 1));
        // of no bytes Node's answer is 0, whatever it goes on from
        const right = start === end ? crc : crc32(bytes.subarray(start, end), crc);
        expect(crcOf(bytes, start, end, crc)).toBe(right);
        expect(crcOf(bytes, 0, bytes.length)).toBe(crc32(bytes));
      },
    ),
    { numRuns: 500 },
  );
});
