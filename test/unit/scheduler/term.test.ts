import { expect, test } from 'vitest';
import { LIMITS } from '../../../src/base/limits.ts';
import { leaseTimeMs } from '../../../src/scheduler/term.ts';

const NOW = 1_796_100_000_000;

test.each([
  ['the time that is left, and the grace', 1_796_103_600, 600_000, 4_200_000],
  ['the grace alone where the end is over', 1_796_000_000, 600_000, 600_000],
  ['no more than a lease may have', 999_999_999_999, 600_000, LIMITS.ttlMsMax],
])('a lease lives for %s', (_, endsS, graceMs, expected) => {
  expect(leaseTimeMs(endsS, NOW, graceMs)).toBe(expected);
});

test('nothing is known where the batch system says no end', () => {
  expect(leaseTimeMs(null, NOW, 600_000)).toBeNull();
});
