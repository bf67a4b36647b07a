import { expect, test } from 'vitest';
import type { NodeName } from '../../../src/base/ids.ts';
import { daemonsOf, headArguments } from '../../../src/mpi/launchers.ts';

test('prterun gets the nodes with their slots, the ranks, and the command as it is', () => {
  const argv = headArguments('prrte', {
    nodes: ['n1', 'n10'] as NodeName[],
    ranks: 5,
    tasksPerNode: 3,
    options: [],
    argv: [Buffer.from('./a out'), Buffer.from([0xff]), Buffer.alloc(0)],
  });
  expect(argv.map((word) => word.toString('latin1'))).toEqual([
    ...['prterun', '--host', 'n1:3,n10:3', '-n', '5', '-x', 'PMI_FD=2147483647'],
    ...['./a out', '\xff', ''],
  ]);
});

test('mpiexec gets the same in its own words', () => {
  const argv = headArguments('hydra', {
    nodes: ['n1', 'n10'] as NodeName[],
    ranks: 5,
    tasksPerNode: 3,
    options: ['-ppn', '1'],
    argv: [Buffer.from('-n'), Buffer.from('--')],
  });
  expect(argv.map((word) => word.toString('latin1'))).toEqual([
    ...['mpiexec.hydra', '-hosts', 'n1:3,n10:3', '-n', '5'],
    ...['-genv', 'OMPI_MCA_pml', 'not_started_by_open_mpi', '-ppn', '1'],
    ...['-n', '--'],
  ]);
});

test('mpirun of Open MPI 4 gets them as prterun does', () => {
  const job = { nodes: ['n1', 'n2'] as NodeName[], ranks: 3, tasksPerNode: 2 };
  const argv = headArguments('orte', { ...job, options: ['--bind-to', 'none'], argv: [Buffer.from('x')] });
  expect(argv.map((word) => word.toString())).toEqual([
    ...['mpirun', '--host', 'n1:2,n2:2', '-n', '3', '-x', 'PMI_FD=2147483647', '--bind-to', 'none', 'x'],
  ]);
  expect(daemonsOf('orte', job)).toEqual({ nodes: ['n2'], endWithHead: true });
});

test('prterun has a daemon on every further node, mpiexec only on those that its ranks need', () => {
  const job = { nodes: ['n1', 'n2', 'n3'] as NodeName[], tasksPerNode: 2 };
  const nodesOf = (launcher: 'prrte' | 'hydra', ranks: number): readonly string[] =>
    daemonsOf(launcher, { ...job, ranks }).nodes;
  expect([1, 2, 3, 4, 5, 6].map((ranks) => nodesOf('hydra', ranks))).toEqual([
    [],
    [],
    ['n2'],
    ['n2'],
    ['n2', 'n3'],
    ['n2', 'n3'],
  ]);
  expect(nodesOf('prrte', 1)).toEqual(['n2', 'n3']);
});
