import { expect, test } from 'vitest';
import type { NodeName } from '../../../src/base/ids.ts';
import { drainArguments, nodesToDrain } from '../../../src/scheduler/drain.ts';

const [n1, n2, n3] = ['n1', 'n2', 'n3'] as NodeName[] as [NodeName, NodeName, NodeName];

const fault = (node: NodeName, message: string) => ({ message: `${node}: ${message}`, facts: { at: node } });

test('exactly the nodes at fault are drained, each once, those of one reason together', () => {
  expect(
    nodesToDrain([
      fault(n1, '2 processes of uid 70000'),
      fault(n2, 'no answer from n2 within 5 s'),
      { message: 'files are left', facts: {} },
      fault(n3, 'no answer from n3 within 5 s'),
      fault(n1, 'another thing'),
    ]),
  ).toEqual([
    { nodes: [n1], reason: 'xce-sandbox: n1: 2 processes of uid 70000' },
    { nodes: [n2, n3], reason: 'xce-sandbox: n[2-3]: no answer from n[2-3] within 5 s' },
  ]);
});

test('nodes with more different reasons than a bound are drained with one word', () => {
  const nodes = Array.from({ length: 12 }, (_, index) => `m${index}` as NodeName);
  const drains = nodesToDrain(nodes.map((node, index) => fault(node, `${index} processes`)));
  expect(drains).toHaveLength(9);
  expect(drains.at(-1)).toEqual({
    nodes: nodes.slice(8),
    reason: 'xce-sandbox: not certified clean; lease show',
  });
});

test('a reason is cut where it would fill a terminal', () => {
  const [drain] = nodesToDrain([fault(n1, 'x'.repeat(5000))]);
  expect(drain?.reason).toMatch(/^xce-sandbox: n1: x{182}~$/);
});

test('each batch system is told in its own words, the reason as one argument', () => {
  const drain = { nodes: [n1, n3], reason: 'xce-sandbox: it is "dirty" $(reboot)' };
  expect(drainArguments('slurm', drain)).toEqual([
    ...['update', 'nodename=n[1,3]', 'state=drain'],
    'reason=xce-sandbox: it is "dirty" $(reboot)',
  ]);
  expect(drainArguments('pbs', drain)).toEqual(['-C', drain.reason, '-o', 'n1', 'n3']);
  expect(drainArguments('flux', drain)).toEqual(['resource', 'drain', 'n[1,3]', drain.reason]);
  expect(drainArguments('xce', drain)).toEqual(['n[1,3]', drain.reason]);
});
