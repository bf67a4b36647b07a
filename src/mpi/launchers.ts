/**
 * The launchers of MPI programs that a head can run: prterun (Open MPI 5), mpirun (Open MPI 4, whose runtime is ORTE)
 * and mpiexec.hydra (MPICH 4). Each gets the nodes and their slots outright, so that it asks no scheduler and reads no
 * host file.
 */
import type { NodeName } from '../base/ids.ts';
import type { DaemonPlan } from '../launch/run.ts';
import { NO_MPICH, NO_OPEN_MPI } from './environment.ts';

export const MPI_LAUNCHERS = ['prrte', 'orte', 'hydra'] as const;
export type MpiLauncher = (typeof MPI_LAUNCHERS)[number];

/** What a head runs on which nodes. `tasksPerNode` slots on each node; `ranks` must fit in. */
export type MpiJob = {
  readonly nodes: readonly NodeName[];
  readonly ranks: number;
  readonly tasksPerNode: number;
  /** Further words for the launcher. */
  readonly options: readonly string[];
  readonly argv: readonly Buffer[];
};

const LAUNCHERS: Readonly<Record<MpiLauncher, (hosts: string, ranks: string) => readonly string[]>> = {
  prrte: (hosts, ranks) => ['prterun', '--host', hosts, '-n', ranks, '-x', NO_MPICH],
  orte: (hosts, ranks) => ['mpirun', '--host', hosts, '-n', ranks, '-x', NO_MPICH],
  hydra: (hosts, ranks) => [...['mpiexec.hydra', '-hosts', hosts, '-n', ranks], ...['-genv', ...NO_OPEN_MPI]],
};

/** The head's command: the launcher, and behind it what each rank runs. */
export const headArguments = (
  launcher: MpiLauncher,
  { nodes, ranks, tasksPerNode, options, argv }: MpiJob,
): readonly Buffer[] => {
  const hosts = nodes.map((node) => `${node}:${tasksPerNode}`).join(',');
  const own = [...LAUNCHERS[launcher](hosts, String(ranks)), ...options];
  return [...own.map((word) => Buffer.from(word)), ...argv];
};

/**
 * Open MPI has a daemon on every node that it is given, to its end; Hydra on those that it needs, in their order, and each
 * ends with the ranks of its node: MPI is over then, but ranks elsewhere may still have work of their own to do.
 */
export const daemonsOf = (
  launcher: MpiLauncher,
  { nodes, ranks, tasksPerNode }: Pick<MpiJob, 'nodes' | 'ranks' | 'tasksPerNode'>,
): DaemonPlan =>
  launcher === 'hydra'
    ? { nodes: nodes.slice(1, Math.ceil(ranks / tasksPerNode)), endWithHead: false }
    : { nodes: nodes.slice(1), endWithHead: true };
