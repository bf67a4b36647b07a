import { describe, expect, test } from 'vitest';
import { judgeExpiry, remainingMs, type Term } from '../../../src/lease/term.ts';
import { at, OTHER_BOOT } from './scene.ts';

const { wallMs, monotonicMs, bootId } = at(0);
const term: Term = { ttlMs: 60_000, issued: { wallMs, monotonicMs, bootId } };
const elsewhere = (ms: number, skewMs: number | undefined = 0) => at(ms, { bootId: OTHER_BOOT, skewMs });

describe('on the host that granted', () => {
  test.each([-3_600_000, 0, 3_600_000])('a wall clock that jumps %i ms changes nothing', (jump) => {
    const later = (ms: number) => at(ms, { wallMs: wallMs + ms + jump });
    expect(remainingMs(term, later(30_000))).toBe(30_000);
    expect(judgeExpiry(term, later(59_999))).toBe('live');
    expect(judgeExpiry(term, later(60_000))).toBe('expired');
    expect(remainingMs(term, later(90_000))).toBe(0);
  });
});

describe('on another host or after a reboot', () => {
  test('what is left is neither negative nor more than the ttl, whatever the clock says', () => {
    expect(remainingMs(term, elsewhere(-3_600_000))).toBe(60_000);
    expect(remainingMs(term, elsewhere(3_600_000))).toBe(0);
  });

  test('a lease expires a whole skew bound after its end, not before', () => {
    expect(judgeExpiry(term, elsewhere(61_000))).toBe('live');
    expect(judgeExpiry(term, elsewhere(64_000))).toBe('live');
    expect(judgeExpiry(term, elsewhere(64_999))).toBe('live');
    expect(judgeExpiry(term, elsewhere(65_000))).toBe('expired');
  });

  test.each([5001, -5001, 60_000, undefined])('a clock with skew %s lets nothing expire', (skewMs) => {
    expect(judgeExpiry(term, { ...elsewhere(3_600_000), skewMs })).toBe('unsure');
  });

  test.each([5001, -5001, 3_600_000, undefined])(
    'nor does one that was set by %s since the host owns the log, whatever its skew was then',
    (stepMs) => {
      expect(judgeExpiry(term, { ...elsewhere(3_600_000), stepMs })).toBe('unsure');
    },
  );

  test('a skew of exactly the bound is within it', () => {
    expect(judgeExpiry(term, elsewhere(65_000, -5000))).toBe('expired');
  });
});
