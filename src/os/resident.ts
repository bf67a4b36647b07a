/** Pages that this process has in memory and needs no more. */
import { readFileSync } from 'node:fs';
import koffi from 'koffi';
import { errnoOf, XceError } from '../base/errors.ts';

const libc = koffi.load('libc.so.6');
const madvise: (start: number, bytes: number, advice: number) => number = libc.func(
  'int madvise(uintptr_t start, size_t bytes, int advice)',
);
/** madvise(2): the pages may go; the next access to one of a file reads the file again. */
const MADV_DONTNEED = 4;

const SMAPS = '/proc/self/smaps';

export type Mapping = { readonly start: number; readonly bytes: number };

/**
 * Mappings of `smaps` (proc_pid_smaps(5)) whose pages are all still those of a file: not writable, and without a page
 * of this process's own, which a relocation makes and which could not be read again.
 */
export const listFilePages = (smaps: string): readonly Mapping[] =>
  smaps.split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m).flatMap((text) => {
    const head = /^([0-9a-f]+)-([0-9a-f]+) r-[x-]p [0-9a-f]+ [0-9a-f:]+ [1-9][0-9]* /.exec(text);
    if (head === null || !/^Anonymous: +0 kB$/m.test(text)) return [];
    const [start, end] = [head[1], head[2]].map((hex) => Number.parseInt(hex ?? '', 16)) as [number, number];
    return [{ start, bytes: end - start }];
  });

/**
 * Gives the pages of programs and libraries back to the kernel, which keeps them for as long as it has room; those
 * that are needed again come back one by one. What starting took is most of what a Node process has resident. Throws
 * XceError 'os'.
 */
export const giveBackFilePages = (): void => {
  let smaps: string;
  try {
    smaps = readFileSync(SMAPS, 'latin1');
  } catch (error) {
    throw new XceError('os', `cannot read ${SMAPS}: ${errnoOf(error) ?? String(error)}`, { cause: error });
  }
  // Pages that are locked in memory stay: the answer makes no difference.
  for (const { start, bytes } of listFilePages(smaps)) madvise(start, bytes, MADV_DONTNEED);
};
