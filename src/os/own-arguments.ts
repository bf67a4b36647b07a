import { readFileSync } from 'node:fs';
import { assert } from '../base/errors.ts';

/**
 * The last `count` arguments of this process as the exact bytes that it was started with. process.argv has them
 * as text, in which bytes that are not UTF-8 are lost.
 */
export const readOwnArguments = (count: number): readonly Buffer[] => {
  const bytes = readFileSync('/proc/self/cmdline');
  const words: Buffer[] = [];
  for (let start = 0; start < bytes.length; ) {
    const end = bytes.indexOf(0, start);
    assert(end !== -1, 'the kernel ends each argument with NUL');
    words.push(bytes.subarray(start, end));
    start = end + 1;
  }
  assert(words.length >= count, 'the kernel shows all arguments');
  return words.slice(words.length - count);
};
