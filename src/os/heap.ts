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
