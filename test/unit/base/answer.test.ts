import { expect, test } from 'vitest';
import { after, attempt } from '../../../src/base/answer.ts';

const double = (value: number): number => 2 * value;

test('what follows an answer that is there runs at once, and what follows a promise when that is kept', async () => {
  expect(after(2, double)).toBe(4);
  const later = after(Promise.resolve(2), double);
  expect(later).toBeInstanceOf(Promise);
  expect(await later).toBe(4);
});

test('a step that fails gives what is made of its error, however it tells it', async () => {
  const failure = new Error('no');
  const name = (error: unknown): string => (error === failure ? 'that one' : 'another');
  const fail = (): never => {
    throw failure;
  };
  expect(attempt<string>(fail, name)).toBe('that one');
  expect(await attempt<string>(() => Promise.reject(failure), name)).toBe('that one');
  expect(attempt(() => 'well', name)).toBe('well');
  expect(() => attempt(fail, fail)).toThrow(failure);
});
