import { describe, expect, test } from 'vitest';
import {
  decodeSeen,
  encodeSeen,
  isSameSeen,
  rememberDrain,
  rememberTicket,
} from '../../../src/lease/seen.ts';
import { codeOf, uid } from './scene.ts';

const of = uid(70_001);
const memory = { uid: of, epoch: 3, lease: 7, drained: 6 };

describe('what a worker remembers of a uid', () => {
  test('only grows', () => {
    const first = rememberTicket(undefined, { uid: of, epoch: 3, lease: 7 });
    expect(first).toEqual({ uid: of, epoch: 3, lease: 7, drained: 0 });
    expect(rememberTicket(first, { uid: of, epoch: 2, lease: 5 })).toEqual(first);
    expect(rememberTicket(first, { uid: of, epoch: 4, lease: 7 })).toEqual({ ...first, epoch: 4 });
    const drained = rememberDrain(first, { uid: of, epoch: 3, lease: 7 });
    expect(drained).toEqual({ ...first, drained: 7 });
    expect(rememberDrain(drained, { uid: of, epoch: 1, lease: 2 })).toEqual(drained);
    expect(rememberTicket(drained, { uid: of, epoch: 5, lease: 9 })).toEqual({
      uid: of,
      epoch: 5,
      lease: 9,
      drained: 7,
    });
  });

  test('a drain of a lease that was never seen here leaves its tombstone', () => {
    expect(rememberDrain(undefined, { uid: of, epoch: 3, lease: 7 })).toEqual({
      uid: of,
      epoch: 3,
      lease: 7,
      drained: 7,
    });
  });

  test('says whether anything need be written', () => {
    expect(isSameSeen(undefined, memory)).toBe(false);
    expect(isSameSeen(memory, { ...memory })).toBe(true);
    expect(isSameSeen(memory, { ...memory, drained: 7 })).toBe(false);
  });

  test('comes back from its text', () => {
    expect(encodeSeen(memory)).toBe('{"version":1,"uid":70001,"epoch":3,"lease":7,"drained":6}\n');
    expect(decodeSeen(encodeSeen(memory), of)).toEqual(memory);
  });

  test.each([
    ['nothing', ''],
    ['half of it', encodeSeen(memory).slice(0, 20)],
    ['the memory of another uid', encodeSeen({ ...memory, uid: uid(70_002) })],
    ['another version', encodeSeen(memory).replace('"version":1', '"version":2')],
    ['a field more', encodeSeen(memory).replace('{', '{"x":1,')],
    ['a field less', encodeSeen(memory).replace(',"drained":6', '')],
    ['a negative epoch', encodeSeen(memory).replace(':3', ':-3')],
    ['a drained lease beyond the last', encodeSeen({ ...memory, drained: 8 })],
    ['null', 'null'],
  ])('a text with %s is an error, never an empty memory', (_, text) => {
    expect(codeOf(() => decodeSeen(text, of))).toBe('io');
  });
});
