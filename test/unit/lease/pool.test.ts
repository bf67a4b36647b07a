import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { listCandidates, lookUpCandidates } from '../../../src/lease/pool.ts';
import type { Answer } from '../../../src/os/name-service.ts';
import { job, request, Scene, uid } from './scene.ts';

const pool = { first: 70_000, last: 70_003 };
const uids = (...values: number[]) => values.map(uid);

describe('candidates', () => {
  test('are never-used uids first, then those that came back, oldest first, within the pool', () => {
    const scene = new Scene();
    const [a, b, c] = ['a', 'b', 'c'].map((id) => scene.allocate(request({ job: job(id) })));
    if (a === undefined || b === undefined || c === undefined) throw new Error('three leases');
    scene.release(c);
    scene.release(a);
    const list = (count: number, ...skipped: number[]) =>
      listCandidates(scene.state, pool, count, new Set(uids(...skipped)));
    expect(list(9)).toEqual([70_003, 70_002, 70_000]);
    expect(list(2)).toEqual([70_003, 70_002]);
    expect(list(9, 70_003, 70_002)).toEqual([70_000]);
    expect(listCandidates(scene.state, { first: 70_000, last: 70_001 }, 9, new Set())).toEqual([70_000]);
  });
});

describe('look-ups', () => {
  const service = (answers: Record<number, Answer>) => ({
    asked: [] as number[],
    async lookUp(id: number): Promise<Answer> {
      this.asked.push(id);
      return answers[id] ?? { answer: 'absent' };
    },
  });

  test('tell absent from present, in order', async () => {
    const names = service({ 70001: { answer: 'present', reason: 'passwd knows it' } });
    expect(await lookUpCandidates(names, uids(70_000, 70_001, 70_002))).toEqual({
      absent: [70_000, 70_002],
      present: [70_001],
    });
  });

  test('an unknown answer refuses all, with the reason, and asks no further', async () => {
    const names = service({ 70001: { answer: 'unknown', reason: 'name service not answering' } });
    const all = uids(...Array.from({ length: 20 }, (_, index) => 70_000 + index));
    const refusal = await lookUpCandidates(names, all).catch((error: unknown) => error);
    expect(refusal).toBeInstanceOf(XceError);
    expect(refusal).toMatchObject({ code: 'name-service', facts: { detail: { uid: 70_001 } } });
    expect(String(refusal)).toContain('name service not answering');
    expect(names.asked.length).toBeLessThan(20);
  });
});
