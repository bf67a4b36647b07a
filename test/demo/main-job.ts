/** The main job of the suite on a controller and three nodes, each step checked where it shows. */
import type { Progress } from '../../src/operations/progress.ts';
import type { Cluster } from '../support/cluster/cluster.ts';

export type Report = {
  readonly progress: Progress;
  /** One line of the final table; the demo has failed unless all of them hold. */
  readonly fact: (what: string, found: string, holds: boolean) => void;
};

const installedVersion = async (cluster: Cluster, name: string): Promise<string> =>
  (await cluster.node(name).must(['xce-sandbox', '--version'])).trim();

export const runMainJob = async (cluster: Cluster, { progress, fact }: Report): Promise<void> => {
  const versions = await progress.phase('ask each node for the version it has installed', () =>
    Promise.all(cluster.nodes.map((node) => installedVersion(cluster, node.name))),
  );
  const [first = ''] = versions;
  fact(
    'installed by npm',
    [...new Set(versions)].join(' and '),
    first !== '' && new Set(versions).size === 1,
  );

  const runs = cluster.nodes.flatMap((node) => node.readSshRuns().map((line) => `${node.name}: ${line}`));
  fact('calls of ssh', runs.length === 0 ? 'none' : runs.join('; '), runs.length === 0);
};
