import { readFileSync } from 'node:fs';

/**
 * The variables that this process was started with, as exact bytes, by name (as latin1 text, so that no two names
 * fall together). process.env has them as text, in which bytes that are not UTF-8 are lost.
 */
export const readOwnEnvironment = (): ReadonlyMap<string, Buffer> => {
  const variables = new Map<string, Buffer>();
  const bytes = readFileSync('/proc/self/environ');
  for (let start = 0; start < bytes.length; ) {
    const nul = bytes.indexOf(0, start);
    const end = nul === -1 ? bytes.length : nul;
    const text = bytes.subarray(start, end);
    const equals = text.indexOf('=');
    if (equals > 0) variables.set(text.toString('latin1', 0, equals), text.subarray(equals + 1));
    start = end + 1;
  }
  return variables;
};
