import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { giveBackFilePages, listFilePages } from '../../../src/os/resident.ts';

const mapping = (head: string, anonymousKiB: number, swap = 'Swap:   0 kB\n'): string =>
  `${head}\nSize:   8 kB\nAnonymous:   ${anonymousKiB} kB\n${swap}VmFlags: rd ex mr mw me\n`;

const PROGRAM = '/opt/node 20/bin/node';

test('only pages of files that can be read again and are never unmapped are given back', () => {
  const smaps = [
    mapping(`7f0000001000-7f0000003000 r-xp 00001000 08:01 17      ${PROGRAM}`, 0),
    mapping('7f0000003000-7f0000004000 r--p 00003000 08:01 16 /usr/lib/libnode.so.115', 0),
    mapping('7f0000010000-7f0000011000 r-xp 00003000 08:01 19 /usr/lib/libc.so.6 (deleted)', 0),
    // Loaded by a look-up, which may unload it.
    mapping('7f0000011000-7f0000012000 r-xp 00003000 08:01 20 /usr/lib/libnss_dns.so.2', 0),
    // Relocated, also where that is in swap or cannot be told, writable, of a shared mapping, of nobody, of the kernel.
    mapping('7f0000004000-7f0000006000 r--p 00004000 08:01 17 /usr/lib/libc.so.6', 4),
    mapping('7f0000020000-7f0000022000 r--p 00004000 08:01 17 /usr/lib/libc.so.6', 0, 'Swap:   4 kB\n'),
    mapping('7f0000022000-7f0000024000 r--p 00004000 08:01 17 /usr/lib/libc.so.6', 0, ''),
    mapping('7f0000006000-7f0000008000 rw-p 00006000 08:01 17 /usr/lib/libc.so.6', 0),
    mapping('7f0000008000-7f000000a000 r--s 00000000 08:01 18 /run/shared', 0),
    mapping('7f000000a000-7f000000c000 r-xp 00000000 00:00 0 ', 0),
    mapping('7f000000c000-7f000000e000 r-xp 00000000 00:00 0                          [vdso]', 0),
  ].join('');
  expect(listFilePages(smaps, PROGRAM)).toEqual([
    { start: 0x7f00_0000_1000, bytes: 0x2000 },
    { start: 0x7f00_0000_3000, bytes: 0x1000 },
    { start: 0x7f00_0001_0000, bytes: 0x1000 },
  ]);
});

test('a process goes on as before with less of its program in memory', () => {
  const residentKiB = (): number =>
    Number(/^RssFile:\s+(\d+) kB$/m.exec(readFileSync('/proc/self/status', 'latin1'))?.[1]);
  const work = (): string =>
    createHash('sha256')
      .update('x'.repeat(1 << 16))
      .digest('hex');
  const expected = work();
  const before = residentKiB();
  giveBackFilePages();
  expect(residentKiB()).toBeLessThan(before - 4096);
  expect(work()).toBe(expected);
});
