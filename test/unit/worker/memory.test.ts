import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { Uid } from '../../../src/base/ids.ts';
import { Memory } from '../../../src/worker/memory.ts';
import { MemoryFiles } from './fakes.ts';

const uid = 70_001 as Uid;
const codeOf = (act: () => void): string => {
  try {
    act();
  } catch (error) {
    if (error instanceof XceError) return error.code;
    throw error;
  }
  return 'none';
};

describe('memory', () => {
  test('what was seen is there for the next process', () => {
    const files = new MemoryFiles();
    new Memory(files).remember({ uid, epoch: 3, lease: 7 });
    expect(new Memory(files).seen(uid)).toEqual({ uid, epoch: 3, lease: 7, drained: 0 });
  });

  test('a tombstone is there for the next process', () => {
    const files = new MemoryFiles();
    new Memory(files).bury({ uid, epoch: 3, lease: 7 });
    expect(new Memory(files).seen(uid)).toEqual({ uid, epoch: 3, lease: 7, drained: 7 });
  });

  test('nothing is written when nothing changes', () => {
    const files = new MemoryFiles();
    const memory = new Memory(files);
    memory.remember({ uid, epoch: 3, lease: 7 });
    memory.remember({ uid, epoch: 3, lease: 7 });
    expect(files.trace).toEqual([`write ${uid}`]);
  });

  test('a drain of an older epoch or lease is refused and changes nothing', () => {
    const files = new MemoryFiles();
    const memory = new Memory(files);
    memory.remember({ uid, epoch: 3, lease: 7 });
    expect(codeOf(() => memory.bury({ uid, epoch: 2, lease: 7 }))).toBe('ticket-epoch');
    expect(codeOf(() => memory.bury({ uid, epoch: 3, lease: 6 }))).toBe('ticket-lease');
    expect(memory.seen(uid)?.drained).toBe(0);
  });

  test('a memory that cannot be written is an error of the request', () => {
    const files = new MemoryFiles();
    files.failing = true;
    expect(codeOf(() => new Memory(files).remember({ uid, epoch: 1, lease: 1 }))).toBe('io');
  });

  test.each(['', '{', '{"version":1}', '{"version":1,"uid":70002,"epoch":1,"lease":1,"drained":0}\n'])(
    'a damaged memory %j refuses its uid',
    (text) => {
      const files = new MemoryFiles();
      files.files.set(String(uid), Buffer.from(text));
      expect(codeOf(() => new Memory(files).seen(uid))).toBe('io');
    },
  );
});
