import fc from 'fast-check';
import { expect, test } from 'vitest';
import { IdMap } from '../../../src/lease/id-map.ts';

type Steps = readonly { readonly id: number; readonly value: number; readonly isSet: boolean }[];
type NumberMap = Pick<Map<number, number>, 'delete' | 'has' | 'get'> & {
  set(id: number, value: number): unknown;
};

test('a map of ids says what a Map says, whatever was set and deleted', () => {
  const id = fc.oneof(
    fc.integer({ min: 1, max: 40 }),
    fc.integer({ min: 70_000, max: 70_100 }),
    fc.integer({ min: 2 ** 32 - 20, max: 2 ** 32 + 20 }),
    fc.integer({ min: 1, max: Number.MAX_SAFE_INTEGER }),
  );
  const step = fc.record({ id, value: fc.maxSafeNat(), isSet: fc.boolean() });
  /** What is to be seen of a map while the steps are done, and afterwards. */
  const follow = (map: NumberMap, steps: Steps) => {
    const seen = steps.map(({ id: one, value, isSet }) => {
      const deleted = isSet ? undefined : map.delete(one);
      if (isSet) map.set(one, value);
      return [deleted, map.has(one), map.get(one)];
    });
    return [seen, steps.map(({ id: one }) => map.get(one))];
  };
  fc.assert(
    fc.property(fc.array(step, { maxLength: 200, size: 'max' }), (steps) => {
      const map = new IdMap<number>();
      const model = new Map<number, number>();
      expect(follow(map, steps)).toEqual(follow(model, steps));
      expect(map.size).toBe(model.size);
      expect(map.entries()).toEqual([...model].sort(([one], [other]) => one - other));
      expect([map.has(0), map.get(0), map.delete(0)]).toEqual([false, undefined, false]);
    }),
    { seed: 1, numRuns: 50 },
  );
});

test('a map of ids keeps many that come and go in sequence', () => {
  const map = new IdMap();
  for (let id = 1; id <= 50_000; id += 1) {
    map.set(id, id * 2);
    if (id > 1000) map.delete(id - 1000);
  }
  expect(map.size).toBe(1000);
  const kept = Array.from({ length: 1000 }, (_, index) => 49_001 + index);
  expect(map.entries()).toEqual(kept.map((id) => [id, id * 2]));
});
