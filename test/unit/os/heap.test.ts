import { cachedDataVersionTag } from 'node:v8';
import { expect, test } from 'vitest';
import { preferSmallHeap, preferUsualHeap } from '../../../src/os/heap.ts';

test('compiled code fits the next run once the heap is the usual one again', () => {
  const before = cachedDataVersionTag();
  preferSmallHeap();
  expect(cachedDataVersionTag()).not.toBe(before);
  preferUsualHeap();
  expect(cachedDataVersionTag()).toBe(before);
});
