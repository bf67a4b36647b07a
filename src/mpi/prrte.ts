import type { NodeName } from '../base/ids.ts';

/**
 * The head's command for Open MPI 5: prterun with the nodes and their slots given outright, so that it asks no
 * scheduler and reads no host file. `tasksPerNode` is the number of slots of each node; `ranks` must fit in.
 */
export const prterunArguments = (job: {
  readonly nodes: readonly NodeName[];
  readonly ranks: number;
  readonly tasksPerNode: number;
  readonly argv: readonly Buffer[];
}): readonly Buffer[] => {
  const hosts = job.nodes.map((node) => `${node}:${job.tasksPerNode}`).join(',');
  return [
    ...['prterun', '--host', hosts, '-n', String(job.ranks)].map((word) => Buffer.from(word)),
    ...job.argv,
  ];
};
