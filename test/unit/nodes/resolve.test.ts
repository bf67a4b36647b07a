import { describe, expect, test } from 'vitest';
import { parseNodeList } from '../../../src/nodes/hostlist.ts';
import { requireNodes, resolveNodes } from '../../../src/nodes/resolve.ts';

const resolve = (requested: string, configured: string): string => {
  const { nodes, faults } = resolveNodes(parseNodeList(requested), parseNodeList(configured));
  return nodes === undefined
    ? faults.map((fault) => `${fault.reason} ${fault.requested}`).join()
    : nodes.join();
};

describe('resolveNodes', () => {
  test.each([
    ['the same name is the same node', 'n2,n1', 'n[1-3]', 'n2,n1'],
    [
      'a short name finds the one node with that host name',
      'node01,node02',
      'node[01-02].cluster.example',
      'node01.cluster.example,node02.cluster.example',
    ],
    [
      'a full name finds the node configured by its short name',
      'node01.cluster.example',
      'node[01-02]',
      'node01',
    ],
    ['case does not make another node', 'NODE02', 'node[01-02].cluster.example', 'node02.cluster.example'],
    [
      'nodes of two domains stay two nodes',
      'node01.a.example,node01.b.example',
      'node01.a.example,node01.b.example',
      'node01.a.example,node01.b.example',
    ],
    [
      'a short name that may mean two nodes is refused',
      'node01',
      'node01.a.example,node01.b.example',
      'ambiguous node01',
    ],
    [
      'two full names are never merged into one short one',
      'node01.a.example,node01.b.example',
      'node01',
      'same-node node01.b.example',
    ],
    [
      'a full name in another domain is not cut',
      'node01.a.example',
      'node01.b.example',
      'unknown node01.a.example',
    ],
    ['a partial domain is not a match', 'node01.a', 'node01.a.example', 'unknown node01.a'],
    ['an exact name wins over a longer one', 'node01', 'node01,node01.a.example', 'node01'],
    [
      'a full name beside a short and a full namesake is refused',
      'node01.c.example',
      'node01,node01.a.example',
      'ambiguous node01.c.example',
    ],
    ['the short and the full name of one node are one node named twice', 'n1.ex,n1', 'n1', 'same-node n1'],
    ['an unknown name is unknown', 'n4', 'n[1-3]', 'unknown n4'],
    ['an address is not cut at its first dot', '10.0.0.1', '10,10.0.0.2', 'unknown 10.0.0.1'],
  ])('%s', (_claim, requested, configured, expected) => {
    expect(resolve(requested, configured)).toBe(expected);
  });

  test('every fault is reported, not only the first', () => {
    expect(resolve('n7,n1,n8', 'n[1-3]')).toBe('unknown n7,unknown n8');
  });
});

describe('requireNodes', () => {
  test('the error has its own code and names what each name may mean', () => {
    const attempt = (): unknown =>
      requireNodes(parseNodeList('n9,node01'), parseNodeList('node01.a.example,node01.b.example'));
    expect(attempt).toThrow(
      expect.objectContaining({
        code: 'node-unknown',
        message:
          'n9 is none of [nodes] hosts; node01 is ambiguous: it may mean node01.a.example or node01.b.example',
      }),
    );
  });

  test('many faults are counted, not listed', () => {
    expect(() => requireNodes(parseNodeList('x[1-9]'), parseNodeList('n1'))).toThrow(/; and 5 more$/);
  });
});
