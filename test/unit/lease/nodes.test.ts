import { describe, expect, test } from 'vitest';
import { LeaseNodes, UNTOUCHED_NODE } from '../../../src/lease/nodes.ts';
import { node } from './scene.ts';

const names = (count: number) => Array.from({ length: count }, (_, index) => node(`n${index + 1}`));
const certified = { ...UNTOUCHED_NODE.job, certificate: 'd4'.repeat(32) };
const isCertified = ({ certificate }: { readonly certificate: string | null }): boolean =>
  certificate !== null;

describe.each([1, 3, 15, 16, 40])('%i nodes of a lease', (count) => {
  test('are found by name, and keep their order when their facts change', () => {
    const nodes = LeaseNodes.untouched(names(count));
    const last = node(`n${count}`);
    expect(nodes.find(isCertified)).toBeUndefined();
    nodes.set(last, certified);
    expect(nodes.get(last)).toBe(certified);
    expect(nodes.find(isCertified)).toBe(last);
    expect(nodes.names).toEqual(names(count));
    expect([...nodes].map(([name, facts]) => [name, isCertified(facts)])).toEqual(
      names(count).map((name) => [name, name === last]),
    );
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
