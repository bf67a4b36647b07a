/** Pages that this process has in memory and needs no more. */
import { readFileSync, readlinkSync } from 'node:fs';
import koffi from 'koffi';
import { errnoOf, XceError } from '../base/errors.ts';

const libc = koffi.load('libc.so.6');
const madvise: (start: number, bytes: number, advice: number) => number = libc.func(
  'int madvise(uintptr_t start, size_t bytes, int advice)',
);
/**
 * madvise(2): the pages may go; the next access to one of a file reads the file again. MADV_PAGEOUT would lose no page
 * of any kind, but it leaves those that another process has mapped as well: beside a second Node process, all of them.
 */
const MADV_DONTNEED = 4;

const SMAPS = '/proc/self/smaps';
const PROGRAM = '/proc/self/exe';
/** What a Node process is linked with and never unmaps. */
const OWN_LIBRARY = /\/lib(?:node|c|stdc\+\+)\.so(?:\.[0-9]+)*(?: \(deleted\))?$/;

export type Mapping = { readonly start: number; readonly bytes: number };

/**
 * Mappings of `smaps` (proc_pid_smaps(5)) whose pages are all still those of a file: not writable, and without a page
 * of this process's own, in memory or in swap, which a relocation makes and which could not be read again. Only those of
 * `program` and of what it is linked with: a look-up of a name on another thread may load and unload a library, and
 * pages that cannot be read again may stand by now where `smaps` shows that one.
 */
export const listFilePages = (smaps: string, program: string): readonly Mapping[] =>
  smaps.split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m).flatMap((text) => {
    const head = /^([0-9a-f]+)-([0-9a-f]+) r-[x-]p [0-9a-f]+ [0-9a-f:]+ [1-9][0-9]* +(.+)$/m.exec(text);
    if (head === null || !/^Anonymous: +0 kB$/m.test(text) || !/^Swap: +0 kB$/m.test(text)) return [];
    const [, from = '', to = '', path = ''] = head;
    if (path !== program && !OWN_LIBRARY.test(path)) return [];
    const [start, end] = [Number.parseInt(from, 16), Number.parseInt(to, 16)];
    return [{ start, bytes: end - start }];
  });

/**
 * Gives the pages of the program and its libraries back to the kernel, which keeps them for as long as it has room;
 * those that are needed again come back one by one. What starting took is most of what a Node process has resident.
 * Throws XceError 'os'.
 */
export const giveBackFilePages = (): void => {
  let smaps: string;
  let program: string;
  try {
    smaps = readFileSync(SMAPS, 'latin1');
    program = readlinkSync(PROGRAM, 'latin1');
  } catch (error) {
    throw new XceError('os', `cannot read ${SMAPS} or ${PROGRAM}: ${errnoOf(error) ?? String(error)}`, {
      cause: error,
    });
  }
  // Pages that are locked in memory stay: the answer makes no difference.
  for (const { start, bytes } of listFilePages(smaps, program)) madvise(start, bytes, MADV_DONTNEED);
};
