import { expect, test } from 'vitest';
import { createLanes } from '../../../src/base/lanes.ts';

const settle = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

test('lanes let so many run at the same time, and the others in their order as soon as one is done', async () => {
  const inLane = createLanes(2);
  const running: number[] = [];
  const ends = new Map<number, (error?: Error) => void>();
  const works = Array.from({ length: 5 }, (_, index) =>
    inLane(() => {
      running.push(index);
      return new Promise<number>((resolve, reject) => {
        ends.set(index, (error) => (error === undefined ? resolve(index) : reject(error)));
      });
    }),
  );
  const results = Promise.allSettled(works);
  await settle();
  expect(running).toEqual([0, 1]);
  ends.get(1)?.();
  await settle();
  expect(running).toEqual([0, 1, 2]);
  // A failure leaves its lane as well.
  ends.get(2)?.(new Error('lost'));
  ends.get(0)?.();
  await settle();
  expect(running).toEqual([0, 1, 2, 3, 4]);
  for (const index of [3, 4]) ends.get(index)?.();
  expect((await results).map(({ status }) => status)).toEqual([
    ...['fulfilled', 'fulfilled', 'rejected', 'fulfilled', 'fulfilled'],
  ]);
  const late = [5, 6, 7].map((index) => inLane(async () => index));
  expect(await Promise.all(late)).toEqual([5, 6, 7]);
});
