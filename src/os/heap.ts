/** What V8 may take of the memory of this process. */
import { setFlagsFromString } from 'node:v8';

/**
 * For a program that holds much. The space for new objects stays as small as it is by now, where it would grow to
 * 32 MiB and hold as much garbage, and old objects are looked at as soon as they are a third more: both cost less than
 * what they save takes to be made.
 */
export const preferSmallHeap = (): void => {
  setFlagsFromString('--semi-space-growth-factor=1');
  setFlagsFromString('--optimize-for-size');
};

/**
 * Takes that back once the work is done: compiled code is used by a run with the same flags alone, and the next one
 * begins without these; see code-cache.ts. The size of the space is what optimizing for size sets as well.
 */
export const preferUsualHeap = (): void => {
  setFlagsFromString('--semi-space-growth-factor=2');
  setFlagsFromString('--no-optimize-for-size');
  setFlagsFromString('--max-semi-space-size=0');
};
