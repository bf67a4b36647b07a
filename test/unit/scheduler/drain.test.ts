import { expect, test } from 'vitest';
import type { NodeName } from '../../../src/base/ids.ts';
import { drainArguments, nodesToDrain } from '../../../src/scheduler/drain.ts';

const [n1, n2, n3] = ['n1', 'n2', 'n3'] as NodeName[] as [NodeName, NodeName, NodeName];

test('exactly the nodes that something is missing of are drained, each once, those of one reason together', () => {
  expect(
    nodesToDrain([
      { node: n1, text: 'n1 is dirty' },
      { node: null, text: 'files are left' },
      { node: n2, text: 'no answer' },
      { node: n3, text: 'no answer' },
      { node: n1, text: 'another thing' },
    ]),
  ).toEqual([
    { nodes: [n1], reason: 'xce-sandbox: n1 is dirty' },
    { nodes: [n2, n3], reason: 'xce-sandbox: no answer' },
  ]);
});

test('a reason is cut where it would fill a terminal', () => {
  const [drain] = nodesToDrain([{ node: n1, text: 'x'.repeat(5000) }]);
  expect(drain?.reason).toMatch(/^xce-sandbox: x{186}~$/);
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
