/** The main job of the suite on a controller and three nodes, each step checked where it shows. */
import type { Progress } from '../../src/operations/progress.ts';
import type { Cluster } from '../support/cluster/cluster.ts';
import { POOL, Site, SUBMITTER, WORKSPACE } from '../support/site.ts';

export type Report = {
  readonly progress: Progress;
  /** One line of the final table; the demo has failed unless all of them hold. */
  readonly fact: (what: string, found: string, holds: boolean) => void;
};

const JOB = '42';
const NODES = ['n1', 'n2', 'n3'];
const DIRECTORY = `${WORKSPACE}/main/${JOB}.0/work`;

type Lease = { readonly uid: number; readonly lease: number; readonly status: string };

const lines = (text: string): string[] => text.split('\n').filter((line) => line !== '');

/** `what` as found on every node, folded into one line. */
const onEachNode = async (site: Site, argv: readonly string[]): Promise<ReadonlyMap<string, string>> =>
  new Map(
    await Promise.all(
      site.workers.map(async (node): Promise<[string, string]> => {
        const end = await node.exec(argv);
        return [node.name, end.stdout.toString().trim()];
      }),
    ),
  );

const ownersOf = async (site: Site): Promise<readonly string[]> =>
  lines(await site.controller.must(['find', DIRECTORY, '-printf', '%U\n']));

const countOwned = (owners: readonly string[], uid: number): number =>
  owners.filter((owner) => owner === String(uid)).length;

const runTasks = async (site: Site, lease: Lease, { progress, fact }: Report): Promise<void> => {
  await progress.phase('launch a command on three nodes', async () => {
    const printed = lines(await site.must('launch', '--job', JOB, '--label', '--', 'id', '-u')).sort();
    const wanted = NODES.map((node) => `${node}: ${lease.uid}`);
    fact('id -u', printed.join(', '), printed.join() === wanted.join());

    const names = await onEachNode(site, ['getent', 'passwd', String(lease.uid)]);
    const name = `xce-main-${lease.lease}`;
    fact(
      'name of the uid',
      name,
      [...names.values()].every((line) => line.startsWith(`${name}:`)),
    );

    const script = 'grep -E "^(CapEff|NoNewPrivs):" /proc/self/status | tr "\\n" " "';
    const privileges = lines(
      await site.must('launch', '--job', JOB, '--nodes', 'n1', '--', 'sh', '-c', script),
    );
    const [text = ''] = privileges;
    fact('privileges', text.replaceAll('\t', ' ').trim(), /CapEff:\s0{16} NoNewPrivs:\s1/.test(text));

    const write =
      'echo "$XCE_NODE" > "of $XCE_NODE" && ln -s /etc/passwd "link $XCE_NODE" && mkdir "private $XCE_NODE"';
    await site.must('launch', '--job', JOB, '--', 'sh', '-c', write);
  });
};

const runMpi = async (site: Site, lease: Lease, { progress, fact }: Report): Promise<void> => {
  const program = await progress.phase('compile an MPI program', () => site.compile('mpi-hello'));
  await progress.phase('launch it with 6 ranks on three nodes', async () => {
    const ranks = lines(await site.must('launch', '--job', JOB, '--mpi', '-n', '6', '--', program)).sort();
    const wanted = [0, 1, 2, 3, 4, 5].map(
      (rank) =>
        `rank ${rank} of 6 on ${NODES[Math.floor(rank / 2)]} uid ${lease.uid} sum right shared 2 of 2`,
    );
    const holds = ranks.join() === wanted.join();
    fact('MPI', holds ? 'ranks 0-5, sum right, shared memory on each node' : ranks.join('; '), holds);
  });
};

const release = async (site: Site, lease: Lease, { progress, fact }: Report): Promise<void> => {
  const before = await ownersOf(site);
  fact(
    'files of the uid before',
    String(countOwned(before, lease.uid)),
    countOwned(before, lease.uid) === before.length,
  );
  const released = await progress.phase('release: drain, certify, hand over, verify, free', () =>
    site.json<{ status: string; nodes: readonly string[] }>('lease', 'release', '--job', JOB),
  );
  fact('certified clean', released.nodes.join(', '), released.nodes.join() === NODES.join());
  fact('state of the lease', released.status, released.status === 'free');
  const after = await ownersOf(site);
  const left = countOwned(after, lease.uid);
  fact('files of the uid after', String(left), left === 0);
  const given = countOwned(after, SUBMITTER.uid);
  fact(`files of ${SUBMITTER.name}`, String(given), given === before.length);

  const names = await onEachNode(site, ['getent', 'passwd', String(lease.uid)]);
  const units = await onEachNode(site, [
    'systemctl',
    'list-units',
    '--all',
    '--plain',
    '--no-legend',
    'xce-main-*',
  ]);
  const isGone = [...names.values(), ...units.values()].every((text) => text === '');
  fact(
    'left on the nodes',
    isGone ? 'no name, no unit' : [...names.values(), ...units.values()].join(),
    isGone,
  );
  const leases = await site.json<readonly unknown[]>('lease', 'list');
  fact('uids that are leased', String(leases.length), leases.length === 0);
};

export const runMainJob = async (cluster: Cluster, report: Report): Promise<void> => {
  const { progress, fact } = report;
  const site = await progress.phase('certificates, configuration, workers, lease log', () =>
    Site.setUp(cluster),
  );
  const version = (await site.must('--version')).split(' ')[0] ?? '';
  fact('installed by npm', version, version.startsWith('xce-sandbox/'));

  const lease = await progress.phase('lease a uid', async () => {
    const first = await site.allocate(JOB, NODES.join(','));
    const second = await site.allocate(JOB, NODES.join(','));
    const holds = first.uid >= POOL.first && first.uid <= POOL.last && second.lease === first.lease;
    fact('uid', `${first.uid} of ${POOL.first}-${POOL.last}, the same when asked again`, holds);
    fact('nodes', NODES.join(', '), site.workers.length === NODES.length);
    return first;
  });
  await runTasks(site, lease, report);
  await runMpi(site, lease, report);
  await release(site, lease, report);

  const runs = cluster.nodes.flatMap((node) => node.readSshRuns().map((line) => `${node.name}: ${line}`));
  fact('calls of ssh', runs.length === 0 ? 'none' : runs.join('; '), runs.length === 0);
};
