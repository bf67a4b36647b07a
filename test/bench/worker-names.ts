/** Names of the workers of `npm run bench -- launch`. */
import type { NodeName } from '../../src/base/ids.ts';

const digitsOf = (index: number): string => String(index).padStart(4, '0');

/** All of one length, so that a certificate for one is that of another but for these bytes. */
export const nameOf = (index: number): NodeName => `n${digitsOf(index)}` as NodeName;

/** The first so many, as a list. */
export const firstOf = (count: number): string => `n[${digitsOf(1)}-${digitsOf(count)}]`;
