import { describe, expect, test } from 'vitest';
import { interleave } from '../bench/measure.ts';
import { formatTable, makeRow, median } from '../bench/rows.ts';

const row = (goal: Parameters<typeof makeRow>[0]['goal']) =>
  makeRow({ name: 'a', unit: 'ms', values: [30, 10, 20], peer: 'b', peerValues: [10, 8, 12, 10], goal });

describe('a row of a benchmark', () => {
  test('is made of medians, and shows how far the runs differ', () => {
    expect(median([3, 1, 2])).toBe(2);
    expect(median([4, 1, 2, 3])).toBe(2.5);
    expect(row(null)).toMatchObject({
      value: 20,
      peerValue: 10,
      ratio: 2,
      range: [10, 30],
      peerRange: [8, 12],
      rounds: 3,
    });
  });

  test('says whether its goal is met, and nothing where there is none', () => {
    expect(row(null).met).toBe(null);
    expect(row({ ratioAtMost: 2 }).met).toBe(true);
    expect(row({ ratioAtMost: 1.9 }).met).toBe(false);
    expect(row({ ratioAtLeast: 2 }).met).toBe(true);
    expect(row({ ratioAtLeast: 2.1 }).met).toBe(false);
    expect(formatTable([row({ ratioAtMost: 1.9 })]).split('\n')[1]).toMatch(/2\.00 +<= 1\.9 +false$/);
  });

  test('comes from runs by turns, with one of each that does not count', async () => {
    let log = '';
    const runs = await interleave(
      3,
      async () => {
        log += 's';
      },
      async () => {
        log += 'p';
      },
    );
    expect(log).toBe('sp' + 'sp' + 'ps' + 'sp');
    expect([runs.subject.length, runs.peer.length]).toEqual([3, 3]);
  });
});
