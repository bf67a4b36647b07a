import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { bootClock, bootClockOf } from '../../../src/os/boot-clock.ts';

/** A machine that runs, is suspended, and whose wall clock is set; proc(5) says hundredths of a second, rounded down. */
const machine = () => {
  const now = { boot: 5_000_003, running: 4_000_000.7, wall: 1_700_000_000_000 };
  /** How long the process is held up before and behind its next reading. */
  const stall = { beforeMs: 0, behindMs: 0 };
  let reads = 0;
  const clock = bootClockOf({
    readUptimeMs: () => {
      reads += 1;
      pass(stall.beforeMs);
      const bootMs = Math.floor(now.boot / 10) * 10;
      pass(stall.behindMs);
      return bootMs;
    },
    wallMs: () => Math.floor(now.wall),
    runningMs: () => now.running,
  });
  const pass = (runningMs: number, suspendedMs = 0, setMs = 0): void => {
    now.running += runningMs;
    now.boot += runningMs + suspendedMs;
    now.wall += runningMs + suspendedMs + setMs;
  };
  return { now, clock, pass, stall, reads: () => reads };
};

describe('the time since boot', () => {
  test('goes on between two readings, in whole milliseconds, never back and never 10 ms off', () => {
    const { now, clock, pass, reads } = machine();
    let last = 0;
    for (let n = 0; n < 2000; n += 1) {
      pass(0.37 + (n % 7));
      const ms = clock.monotonicMs();
      expect(Number.isSafeInteger(ms)).toBe(true);
      expect(ms).toBeGreaterThanOrEqual(last);
      expect(now.boot - ms).toBeGreaterThanOrEqual(0);
      expect(now.boot - ms).toBeLessThanOrEqual(11);
      last = ms;
    }
    expect(reads()).toBeLessThan(100);
  });

  test('notices a suspend at once', () => {
    const { now, clock, pass } = machine();
    for (const suspendedMs of [20, 3_600_000, 12]) {
      clock.monotonicMs();
      pass(0.1, suspendedMs);
      expect(now.boot - clock.monotonicMs()).toBeLessThanOrEqual(11);
    }
  });

  test.each(['beforeMs', 'behindMs'] as const)(
    'never runs ahead after a process that was held up (%s) while it read, and is right when it reads again',
    (side) => {
      const { now, clock, pass, stall } = machine();
      for (let n = 0; n < 3; n += 1) {
        stall[side] = 5000;
        expect(clock.monotonicMs()).toBeLessThanOrEqual(now.boot);
        stall[side] = 0;
        pass(1);
        const ms = clock.monotonicMs();
        expect(ms).toBeLessThanOrEqual(now.boot);
        expect(now.boot - ms).toBeLessThanOrEqual(11);
        pass(200);
      }
    },
  );

  test('is not moved by a wall clock that is set', () => {
    const { now, clock, pass } = machine();
    for (const setMs of [-86_400_000, 3_600_000, 5]) {
      pass(1, 0, setMs);
      expect(Math.abs(now.boot - clock.monotonicMs())).toBeLessThanOrEqual(11);
    }
  });

  test('notices a suspend that a wall clock set back has hidden, a tenth of a second later', () => {
    const { now, clock, pass } = machine();
    clock.monotonicMs();
    pass(1, 60_000, -60_000);
    clock.monotonicMs();
    pass(101);
    expect(now.boot - clock.monotonicMs()).toBeLessThanOrEqual(11);
  });

  test('is the one of this machine', () => {
    const uptimeMs = (): number => Number.parseFloat(readFileSync('/proc/uptime', 'latin1')) * 1000;
    const before = uptimeMs();
    const ms = bootClock.monotonicMs();
    expect(ms).toBeGreaterThanOrEqual(before - 11);
    expect(ms).toBeLessThanOrEqual(uptimeMs() + 11);
  });
});
