/**
 * `npm run demo [-- --keep | --down]`: a controller and three nodes under real systemd, the whole life of a job on
 * them, and a table of what was found. Exit status 0 only if every fact in the table held. --keep leaves the nodes up,
 * --down ends what an earlier --keep left.
 */
import { chooseProgress } from '../../src/cli/progress.ts';
import { readArguments } from '../support/arguments.ts';
import { Cluster } from '../support/cluster/cluster.ts';
import { closeAll, listScopes, readFacts, settle, takeDown } from '../support/cluster/scope.ts';
import { SUBMITTER } from '../support/site.ts';
import { type Fact, formatFacts } from './facts.ts';
import { runMainJob } from './main-job.ts';

const say = (line: string): void => {
  process.stdout.write(`${line}\n`);
};

const takeDownKept = async (): Promise<number> => {
  const kept = listScopes().filter((directory) => readFacts(directory)?.kept === true);
  for (const directory of kept) await takeDown(directory);
  say(
    kept.length === 0
      ? 'nothing is up'
      : `took down ${kept.length === 1 ? 'the nodes' : `${kept.length} clusters`}`,
  );
  return 0;
};

/** How a person gets onto a node: a login shell with a clean environment. */
const shellCommand = (cluster: Cluster, name: string): string =>
  `nsenter -t ${cluster.node(name).leaderPid} -m -u -i -n -p -C --root --wd env -i HOME=/root TERM=$TERM bash -l`;

const runDemo = async (keep: boolean): Promise<number> => {
  const progress = chooseProgress(false);
  const facts: Fact[] = [];
  const cluster = await progress.phase('boot ctl, n1, n2, n3', (report) => Cluster.start({ report }));
  let failure: unknown;
  try {
    await runMainJob(cluster, { progress, fact: (what, found, holds) => facts.push({ what, found, holds }) });
  } catch (error) {
    failure = error;
  }
  if (stopping) return INTERRUPTED; // what failed, failed because its node was gone

  say(`\n${formatFacts(facts)}\n`);
  if (failure !== undefined) say(`stopped: ${failure instanceof Error ? failure.message : String(failure)}`);
  const failed = facts.filter(({ holds }) => !holds).length;
  say(
    `${facts.length - failed} of ${facts.length} facts hold${failure === undefined ? '' : '; not all were looked at'}`,
  );
  if (keep) {
    const lines = ['controller', shellCommand(cluster, 'ctl'), 'node n1', shellCommand(cluster, 'n1')];
    await cluster.keep();
    say(
      `\nThe nodes stay up.\n  ${lines[0]}:  ${lines[1]}\n  ${lines[2]}:     ${lines[3]}\n  take down:   npm run demo -- --down

On the controller keys and lease log are made, job 42 has ended. Another one:
  xce-sandbox lease allocate --job 43 --submitter ${SUBMITTER.uid} --nodes 'n[1-3]'
  xce-sandbox launch --job 43 --mpi -n 6 -- /shared/bin/mpi-hello`,
    );
  } else {
    await progress.phase('take down', () => cluster.down());
  }
  return failure === undefined && failed === 0 && facts.length > 0 ? 0 : 1;
};

const USAGE = `usage: npm run demo [-- --keep | --down]
  --keep      leave the nodes up
  --down      end what an earlier --keep left`;

const INTERRUPTED = 130;
let stopping = false;

/** Ends what is there at this moment, the making of the image included, and waits until it is gone. */
const stop = (): void => {
  if (stopping) return;
  stopping = true;
  say('interrupted; taking down');
  void closeAll().finally(() => process.exit(INTERRUPTED));
};

const main = async (): Promise<number> => {
  const { values } = readArguments(
    { options: { keep: { type: 'boolean' }, down: { type: 'boolean' } }, usage: USAGE },
    ([word]) => (word === undefined ? undefined : `no such argument: ${word}`),
  );
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, stop);
  if (values.down === true) return await takeDownKept();
  try {
    return await runDemo(values.keep === true);
  } finally {
    await settle(30_000);
  }
};

process.exitCode = await main();
