import { describe, expect, test } from 'vitest';
import { IdQueue, IdRanges } from '../../../src/lease/uids.ts';

const take = (ids: Iterable<number>, count: number): number[] => {
  const taken: number[] = [];
  for (const id of ids) {
    if (taken.length === count) break;
    taken.push(id);
  }
  return taken;
};

describe('ranges of ids', () => {
  test('neighbours become one range, in whatever order they come', () => {
    const ranges = new IdRanges();
    for (const id of [5, 3, 4, 9, 8, 1, 5]) ranges.add(id);
    expect([...ranges]).toEqual([
      { first: 1, last: 1 },
      { first: 3, last: 5 },
      { first: 8, last: 9 },
    ]);
  });

  test('absent ids come in ascending order and end with the range asked for', () => {
    const ranges = new IdRanges();
    for (const id of [3, 4, 7]) ranges.add(id);
    expect([...ranges.absent({ first: 1, last: 8 })]).toEqual([1, 2, 5, 6, 8]);
    expect([...ranges.absent({ first: 3, last: 4 })]).toEqual([]);
    expect([...ranges.absent({ first: 4, last: 5 })]).toEqual([5]);
    expect([...new IdRanges().absent({ first: 1, last: 3 })]).toEqual([1, 2, 3]);
  });

  test('a range that overlaps is refused and changes nothing', () => {
    const ranges = new IdRanges();
    ranges.addRange({ first: 10, last: 20 });
    for (const [first, last] of [
      [20, 25],
      [5, 10],
      [12, 13],
      [5, 30],
      [9, 8],
    ] as const)
      expect(ranges.addRange({ first, last })).toBe(false);
    expect([...ranges]).toEqual([{ first: 10, last: 20 }]);
    expect(ranges.has(9)).toBe(false);
    expect(ranges.has(20)).toBe(true);
    expect(ranges.has(21)).toBe(false);
  });
});

describe('the queue of ids', () => {
  test('the oldest comes first, also after members left from the middle', () => {
    const queue = new IdQueue();
    for (const id of [4, 2, 9, 7]) queue.push(id);
    queue.remove(9);
    queue.remove(4);
    queue.push(4);
    expect([...queue]).toEqual([2, 7, 4]);
    expect(queue.size).toBe(3);
    expect(queue.has(9)).toBe(false);
  });

  test('it keeps its order and its size over many rounds', () => {
    const queue = new IdQueue();
    for (let id = 1; id <= 100; id += 1) queue.push(id);
    const order: number[] = [];
    for (let round = 0; round < 10_000; round += 1) {
      const [oldest = 0] = take(queue, 1);
      order.push(oldest);
      queue.remove(oldest);
      queue.push(oldest);
    }
    expect(order).toEqual(order.map((_, round) => (round % 100) + 1));
    expect(take(queue, 3)).toEqual([1, 2, 3]);
    expect(queue.size).toBe(100);
  });
});
