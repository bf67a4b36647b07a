/**
 * The launchers of MPI programs that a head can run: prterun (Open MPI 5) and mpiexec.hydra (MPICH 4). Each gets the
 * nodes and their slots outright, so that it asks no scheduler and reads no host file.
 *
 * A program of another MPI library than the launcher's finds nobody to tell it of the other ranks, and runs as a world
 * of its own, rank 0 of 1; all of them end well. So the ranks find a setting with which such a library cannot start,
 * and at which the launcher's own library never looks.
 */
import type { NodeName } from '../base/ids.ts';
import type { DaemonPlan } from '../launch/run.ts';

export const MPI_LAUNCHERS = ['prrte', 'hydra'] as const;
export type MpiLauncher = (typeof MPI_LAUNCHERS)[number];

/** What a head runs on which nodes. `tasksPerNode` slots on each node; `ranks` must fit in. */
export type MpiJob = {
  readonly nodes: readonly NodeName[];
  readonly ranks: number;
  readonly tasksPerNode: number;
  readonly argv: readonly Buffer[];
};

/** The descriptor on which MPICH would talk to its launcher: no process can have so many open. */
const NO_DESCRIPTOR = `PMI_FD=${2 ** 31 - 1}`;

const LAUNCHERS: Readonly<Record<MpiLauncher, (hosts: string, ranks: string) => readonly string[]>> = {
  prrte: (hosts, ranks) => ['prterun', '--host', hosts, '-n', ranks, '-x', NO_DESCRIPTOR],
  hydra: (hosts, ranks) => [
    ...['mpiexec.hydra', '-hosts', hosts, '-n', ranks],
    // Of any version of Open MPI, which shows the name of the component that it does not find.
    ...['-genv', 'OMPI_MCA_pml', 'not_started_by_open_mpi'],
  ],
};

/** The head's command: the launcher, and behind it what each rank runs. */
export const headArguments = (
  launcher: MpiLauncher,
  { nodes, ranks, tasksPerNode, argv }: MpiJob,
): readonly Buffer[] => {
  const hosts = nodes.map((node) => `${node}:${tasksPerNode}`).join(',');
  return [...LAUNCHERS[launcher](hosts, String(ranks)).map((word) => Buffer.from(word)), ...argv];
};

/**
 * PRRTE has a daemon on every node that it is given, to its end; Hydra on those that it needs, in their order, and each
 * ends with the ranks of its node: MPI is over then, but ranks elsewhere may still have work of their own to do.
 */
export const daemonsOf = (
  launcher: MpiLauncher,
  { nodes, ranks, tasksPerNode }: Omit<MpiJob, 'argv'>,
): DaemonPlan =>
  launcher === 'prrte'
    ? { nodes: nodes.slice(1), endWithHead: true }
    : { nodes: nodes.slice(1, Math.ceil(ranks / tasksPerNode)), endWithHead: false };
