import { describe, expect, test } from 'vitest';
import { LeaseNodes, UNTOUCHED_NODE } from '../../../src/lease/nodes.ts';
import { node } from './scene.ts';

const names = (count: number) => Array.from({ length: count }, (_, index) => node(`n${index + 1}`));
const certified = { ...UNTOUCHED_NODE.job, nonce: '5a'.repeat(16), certificate: 'd4'.repeat(32) };
const reclaim = { by: 'root', reason: 'power supply', wallMs: 1 };

describe.each([1, 3, 15, 16, 40])('%i nodes of a lease', (count) => {
  test('are found by name, and keep their order when their facts change', () => {
    const nodes = LeaseNodes.untouched(names(count));
    const last = node(`n${count}`);
    nodes.set(last, certified);
    expect(nodes.get(last)).toEqual(certified);
    expect(nodes.names).toEqual(names(count));
    expect([...nodes]).toEqual(
      names(count).map((name) => [name, name === last ? certified : UNTOUCHED_NODE.job]),
    );
  });

  test('say which is the first that has not certified, and that has not been reclaimed either', () => {
    const nodes = LeaseNodes.untouched(names(count));
    expect([nodes.firstUncertified, nodes.firstUnaccounted]).toEqual(['n1', 'n1']);
    for (const name of names(count)) nodes.set(name, { ...UNTOUCHED_NODE.job, reclaim });
    expect([nodes.firstUncertified, nodes.firstUnaccounted]).toEqual(['n1', undefined]);
    for (const name of names(count)) nodes.set(name, certified);
    expect([nodes.firstUncertified, nodes.firstUnaccounted]).toEqual([undefined, undefined]);
  });

  test('get others behind them, as many as come', () => {
    const nodes = LeaseNodes.untouched(names(count));
    for (let added = 1; added <= 20; added += 1) {
      const helper = node(`helper${added}`);
      expect(nodes.has(helper)).toBe(false);
      expect(nodes.get(helper)).toBeUndefined();
      nodes.set(helper, UNTOUCHED_NODE.helper);
      expect(nodes.get(helper)?.role).toBe('helper');
      expect(nodes.size).toBe(count + added);
    }
    for (const name of names(count)) expect(nodes.get(name)?.role).toBe('job');
  });

  test('are not changed by what becomes of a copy', () => {
    const nodes = LeaseNodes.untouched(names(count));
    const copy = nodes.clone();
    copy.set(node('n1'), certified);
    copy.set(node('other'), UNTOUCHED_NODE.helper);
    expect(nodes).toEqual(LeaseNodes.untouched(names(count)));
    expect(nodes.has(node('other'))).toBe(false);
    expect(copy.size).toBe(count + 1);
  });
});
