import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { setLongTimeout } from '../../../src/launch/long-timeout.ts';

const DAY_MS = 24 * 3600 * 1000;

let warnings: string[] = [];
const note = (warning: Error): void => void warnings.push(warning.name);

beforeEach(() => {
  warnings = [];
  process.on('warning', note);
  vi.useFakeTimers();
});

afterEach(() => {
  vi.useRealTimers();
  process.off('warning', note);
});

test.each([0, 1, 1000, 24 * DAY_MS, 25 * DAY_MS, 366 * DAY_MS])(
  'a timeout of %i ms fires once, then and not before',
  (ms) => {
    let fired = 0;
    setLongTimeout(() => {
      fired += 1;
    }, ms);
    vi.advanceTimersByTime(Math.max(0, ms - 1));
    expect(fired).toBe(ms === 0 ? 1 : 0);
    vi.advanceTimersByTime(1);
    expect(fired).toBe(1);
    expect(vi.getTimerCount()).toBe(0);
  },
);

test('a long timeout that is cleared half-way never fires and keeps nothing alive', () => {
  let fired = 0;
  const timeout = setLongTimeout(() => {
    fired += 1;
  }, 60 * DAY_MS);
  vi.advanceTimersByTime(50 * DAY_MS);
  timeout.clear();
  expect(vi.getTimerCount()).toBe(0);
  vi.advanceTimersByTime(100 * DAY_MS);
  expect(fired).toBe(0);
});

test('no timer is longer than Node takes', async () => {
  vi.useRealTimers();
  const timeout = setLongTimeout(() => expect.unreachable('it fired at once'), 366 * DAY_MS);
  await new Promise((resolve) => setTimeout(resolve, 20));
  timeout.clear();
  expect(warnings).toEqual([]);
});
