/** An owner of a cluster that only waits to be killed; it tells where its cluster is. */
import { Cluster } from '../support/cluster/cluster.ts';
import { identify } from '../support/cluster/process.ts';

const start = async (): Promise<void> => {
  const cluster = await Cluster.start({ nodes: ['n1'], product: false });
  const leader = identify(cluster.node('n1').leaderPid);
  process.stdin.resume(); // keeps the process; nothing comes
  process.stdout.write(`${JSON.stringify({ directory: cluster.directory, leader })}\n`);
};

await start();
