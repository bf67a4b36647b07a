import { expect, test } from 'vitest';
import type { NodeName } from '../../../src/base/ids.ts';
import { prterunArguments } from '../../../src/mpi/prrte.ts';

test('prterun gets the nodes with their slots, the ranks, and the command as it is', () => {
  const argv = prterunArguments({
    nodes: ['n1', 'n10'] as NodeName[],
    ranks: 5,
    tasksPerNode: 3,
    argv: [Buffer.from('./a out'), Buffer.from([0xff]), Buffer.alloc(0)],
  });
  expect(argv.map((word) => word.toString('latin1'))).toEqual([
    ...['prterun', '--host', 'n1:3,n10:3', '-n', '5'],
    ...['./a out', '\xff', ''],
  ]);
});
