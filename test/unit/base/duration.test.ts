import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { formatDuration, parseDurationMs } from '../../../src/base/duration.ts';

describe('parseDurationMs', () => {
  test.each([
    ['250ms', 250],
    ['30s', 30_000],
    ['10m', 600_000],
    ['2h', 7_200_000],
    ['7d', 604_800_000],
  ])('%s is %i ms', (text, expected) => {
    expect(parseDurationMs(text)).toBe(expected);
  });

  test.each([
    '',
    '10',
    'm',
    '0s',
    '010m',
    '-1s',
    '+1s',
    '1.5h',
    '1h30m',
    ' 1s',
    '1s ',
    '1 s',
    '1e3s',
    '1S',
    '1w',
    '１s',
    '99999999999s',
    '9999999999d',
  ])('%j is no duration', (text) => {
    expect(parseDurationMs(text)).toBeUndefined();
  });
});

describe('formatDuration', () => {
  test.each([
    [0, '0s'],
    [0.4, '0s'],
    [850, '850ms'],
    [1000, '1s'],
    [58_999, '58s'],
    [60_000, '1m'],
    [598_000, '9m58s'],
    [7_200_000, '2h'],
    [7_500_000, '2h5m'],
    [273_600_000, '3d4h'],
    [-3_000, '-3s'],
  ])('%d ms reads as %s', (durationMs, expected) => {
    expect(formatDuration(durationMs)).toBe(expected);
  });
});

test('what formatDuration writes in one unit, parseDurationMs reads back', () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 59 }), fc.constantFrom('s', 'm', 'd'), (count, unit) => {
      const durationMs = parseDurationMs(`${count}${unit}`) ?? 0;
      expect(formatDuration(durationMs)).toBe(`${count}${unit}`);
    }),
  );
});
