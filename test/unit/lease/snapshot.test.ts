import { describe, expect, test } from 'vitest';
import { LIMITS } from '../../../src/base/limits.ts';
import { leaseMachine } from '../../../src/lease/machine.ts';
import { decideBeginNormalise, decideQuarantine } from '../../../src/lease/rules.ts';
import { emptyState } from '../../../src/lease/state.ts';
import { bytesOf, codeOf, facts, job, node, request, Scene } from './scene.ts';

const restore = (records: Iterable<Uint8Array>) => {
  const state = emptyState();
  for (const record of records) leaseMachine.restore(state, record);
  return state;
};

/** One lease in each status, a freed uid, an ended attempt. */
const makeScene = (): Scene => {
  const scene = new Scene();
  const lease = (id: string, names = ['n1', 'n2']) =>
    scene.allocate(request({ job: job(id), nodes: names.map(node) }));
  scene.release(lease('freed'));
  lease('active');
  scene.drain(lease('draining'));
  const normalising = lease('normalising');
  scene.clean(normalising);
  scene.run(decideBeginNormalise(scene.state, facts(), { lease: normalising.number }));
  const { number } = lease('quarantined');
  const why = { code: 'operator', text: 'broken', node: node('n1') } as const;
  scene.run(decideQuarantine(scene.state, facts(), { lease: number }, why));
  return scene;
};

describe('a snapshot', () => {
  test('restores to a state with the same bytes', () => {
    const { state } = makeScene();
    const restored = restore(leaseMachine.snapshot(state));
    expect(bytesOf(restored).equals(bytesOf(state))).toBe(true);
    expect([...restored.leases.values()]).toEqual([...state.leases.values()]);
    expect([...restored.freed]).toEqual([...state.freed]);
    expect([...restored.ended]).toEqual([...state.ended]);
    expect(restored.nextLease).toBe(state.nextLease);
  });

  test('of nothing is one record', () => {
    const records = [...leaseMachine.snapshot(emptyState())];
    expect(records).toHaveLength(1);
    expect(bytesOf(restore(records)).equals(Buffer.concat(records))).toBe(true);
  });

  test('keeps its records bounded for a lease of 16384 nodes and for many leases', () => {
    const scene = new Scene();
    const names = Array.from({ length: LIMITS.leaseNodesMax }, (_, index) => node(`n${index}.hpc.example`));
    scene.allocate(request({ nodes: names }));
    const wide = facts(undefined, { pool: { first: 70_000, last: 79_999 } });
    for (let index = 0; index < 600; index += 1) scene.allocate(request({ job: job(`j${index}`) }), wide);
    const records = [...leaseMachine.snapshot(scene.state)];
    expect(Math.max(...records.map((record) => record.length))).toBeLessThan(LIMITS.recordBytesMax / 4);
    expect(records.length).toBeLessThan(60);
    expect(bytesOf(restore(records)).equals(Buffer.concat(records))).toBe(true);
  }, 30_000);
});

describe('a damaged snapshot', () => {
  const records = [...leaseMachine.snapshot(makeScene().state)];

  test.each(records.map((record, index) => [index, record] as const))(
    'record %i twice is refused, but for the first of an empty log',
    (index, record) => {
      const twice = [...records.slice(0, index + 1), record];
      // Ended attempts may repeat: a job id that was used again is no contradiction.
      const mayRepeat = record[1] === 4;
      expect(codeOf(() => restore(twice))).toBe(mayRepeat ? 'no refusal' : 'log-corrupt');
    },
  );

  test('no record restores when it is cut', () => {
    for (const [index, record] of records.entries())
      for (let length = 0; length < record.length; length += 1) {
        const cut = [...records.slice(0, index), record.subarray(0, length)];
        const code = codeOf(() => restore(cut));
        // A cut between two entries leaves whole entries; the log's own checks are what tells.
        if (code !== 'no refusal') expect(code).toBe('log-corrupt');
        else expect(length).toBeGreaterThan(2);
      }
  });

  test('a higher version or an unknown kind was written by a newer suite', () => {
    expect(codeOf(() => restore([Buffer.of(2, 1, 1, 1)]))).toBe('log-version');
    expect(codeOf(() => restore([Buffer.of(1, 99, 1)]))).toBe('log-version');
    expect(codeOf(() => restore([Buffer.of(0, 1, 1, 1)]))).toBe('log-corrupt');
    expect(codeOf(() => restore([Buffer.of(1, 1)]))).toBe('log-corrupt');
  });
});
