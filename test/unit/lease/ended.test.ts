import { describe, expect, test } from 'vitest';
import { type EndedAttempt, EndedAttempts, isEarlierRun, isSameRun } from '../../../src/lease/ended.ts';
import { attempt, job, leaseNumber, uid } from './scene.ts';

const run = (number: number, schedulerStartS: number | null) => ({
  job: job('42'),
  attempt: attempt(number),
  schedulerStartS,
});
const ended = (id: string, number: number): EndedAttempt => ({
  job: job(id),
  attempt: attempt(number),
  schedulerStartS: null,
  lease: leaseNumber(number + 1),
  uid: uid(70_000),
  endedWallMs: number,
});

describe('runs of a job', () => {
  test('the same attempt is the same run unless both starts are known and differ', () => {
    expect(isSameRun(run(0, 100), run(0, 100))).toBe(true);
    expect(isSameRun(run(0, 100), run(0, null))).toBe(true);
    expect(isSameRun(run(0, 100), run(0, 200))).toBe(false);
    expect(isSameRun(run(0, null), run(1, null))).toBe(false);
  });

  test('starts decide the order where both are known, attempts where not', () => {
    expect(isEarlierRun(run(0, null), run(1, null))).toBe(true);
    expect(isEarlierRun(run(0, 200), run(1, 100))).toBe(false);
    expect(isEarlierRun(run(1, 100), run(0, 200))).toBe(true);
    expect(isEarlierRun(run(0, 100), run(1, 100))).toBe(true);
    expect(isEarlierRun(run(0, 100), run(0, 100))).toBe(false);
  });
});

describe('memory of ended attempts', () => {
  test('the oldest are forgotten first, and only those', () => {
    const memory = new EndedAttempts();
    for (let number = 0; number < 300; number += 1) memory.add(ended(String(number % 3), number));
    expect(memory.forget(298)).toBe(true);
    expect([...memory].map((one) => one.attempt)).toEqual([298, 299]);
    expect(memory.ofJob(job('0'))).toEqual([]);
    expect(memory.ofJob(job('1')).map((one) => one.attempt)).toEqual([298]);
    expect(memory.forget(3)).toBe(false);
    expect(memory.size).toBe(2);
  });

  test('they come back as they were, whenever a job is first asked for', () => {
    const known = { ...ended('7', 1), schedulerStartS: 1_700_000_000, endedWallMs: 1_795_000_000_123 };
    for (const askedAt of [0, 1500, 3999]) {
      const memory = new EndedAttempts();
      const all: EndedAttempt[] = [];
      for (let number = 0; number < 4000; number += 1) {
        const one = { ...known, job: job(String(number % 7)), attempt: attempt(number) };
        memory.add(one);
        all.push(one);
        if (number === askedAt) memory.ofJob(job('3'));
        if (number % 3 > 0) continue;
        expect(memory.forget(2)).toBe(number > 0);
        if (number > 0) all.splice(0, 2);
      }
      expect([...memory]).toEqual(all);
      expect(memory.size).toBe(all.length);
      expect(memory.ofJob(job('3'))).toEqual(all.filter((one) => one.job === '3'));
    }
  });
});
