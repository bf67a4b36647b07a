/** The launchers of MPI programs on three real nodes, each with programs of its own library and of the other's. */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { expectNothing, processesOf, spawnLaunch } from '../support/launches.ts';
import { type Allocated, type CliEnd, Site } from '../support/site.ts';

const COMPILERS = { prrte: 'mpicc.openmpi', hydra: 'mpicc.mpich' } as const;
type Launcher = keyof typeof COMPILERS;
const other = (launcher: Launcher): Launcher => (launcher === 'prrte' ? 'hydra' : 'prrte');

let site: Site;
let job = '';
let lease: Allocated;
let jobs = 0;

beforeAll(async () => {
  site = await Site.start({ layers: ['mpich'] });
  for (const [launcher, compiler] of Object.entries(COMPILERS)) {
    for (const name of ['mpi-hello', 'mpi-end']) await site.compile(name, compiler, `${name}-${launcher}`);
  }
});

afterAll(async () => {
  await site?.down();
});

beforeEach(async () => {
  jobs += 1;
  job = `${jobs}`;
  lease = await site.allocate(job);
});

const program = (name: string, launcher: Launcher): string => `/shared/bin/${name}-${launcher}`;
const lines = (text: string): string[] => text.split('\n').filter((line) => line !== '');

const launch = (launcher: Launcher, ...command: readonly string[]): Promise<CliEnd> =>
  site.run([
    // Against an mpiexec that misses the death of a rank.
    ...['launch', '--job', job, `--mpi=${launcher}`, '-n', '6', '--timeout', '90s'],
    ...['--', ...command],
  ]);

/** What a script on the first node of the job comes to; the sandboxes of the others are there. */
const runScript = async (script: string): Promise<CliEnd> => {
  await site.must('launch', '--job', job, '--', 'true');
  return await site.run(['launch', '--job', job, '--nodes', 'n1', '--', 'sh', '-c', script]);
};

/** Releases the lease, which needs every node to certify that nothing of it is left there. */
const expectCleanEnd = async (): Promise<void> => {
  await site.must('lease', 'release', '--job', job);
  await expectNothing(site.workers, lease);
};

describe.each(['prrte', 'hydra'] as const)('%s', (launcher) => {
  const worldOf = (uid: number): string[] =>
    [0, 1, 2, 3, 4, 5].map(
      (rank) => `rank ${rank} of 6 on n${Math.floor(rank / 2) + 1} uid ${uid} sum right shared 2 of 2`,
    );

  test('has all ranks of one world on three nodes, and leaves nothing', async () => {
    const end = await launch(launcher, program('mpi-hello', launcher));
    expect(end.stderr).not.toMatch(/xce-sandbox-agent|unable/);
    expect(end.status).toBe(0);
    expect(lines(end.stdout).sort()).toEqual(worldOf(lease.uid));
    await expectCleanEnd();
  });

  test('gives standard input to rank 0', async () => {
    const script = 'if [ "${PMIX_RANK:-$PMI_RANK}" = 0 ]; then cat; fi';
    const end = await site.run(
      ['launch', '--job', job, `--mpi=${launcher}`, '-n', '3', '--', 'sh', '-c', script],
      { input: Buffer.from('whole\n') },
    );
    expect(end).toMatchObject({ status: 0, stdout: 'whole\n' });
  });

  test('gives the status with which a rank aborts, and leaves nothing', async () => {
    const end = await launch(launcher, program('mpi-end', launcher), 'abort');
    expect(end.status).toBe(5);
    await expectCleanEnd();
  });

  test('does not end well when a rank is killed, and leaves nothing', async () => {
    const end = await launch(launcher, program('mpi-end', launcher), 'kill');
    expect(end.status).not.toBe(0);
    await expectCleanEnd();
  });

  test('fails, and ends everywhere, when its daemon on another node is killed', async () => {
    const running = await spawnLaunch(site, [
      ...['--job', job, `--mpi=${launcher}`, '-n', '3', '--', 'sh', '-c'],
      `echo up $(hostname); exec ${program('mpi-end', launcher)} wait`,
    ]);
    for (const node of ['n1', 'n2', 'n3']) await running.shows(`up ${node}`);
    const daemon = launcher === 'prrte' ? 'prted' : 'hydra_pmi_proxy';
    await site.cluster.node('n2').must(['pkill', '-KILL', '-f', `^(/usr/bin/)?${daemon} `]);
    const end = await running.child.ended;
    expect(end.exitCode).not.toBe(0);
    for (const node of site.workers)
      expect([node.name, await processesOf(node, lease.uid)]).toEqual([node.name, '']);
  });

  test('does not end well with a program of another library, which finds no other ranks', async () => {
    const end = await launch(launcher, program('mpi-hello', other(launcher)));
    expect(end.status).not.toBe(0);
    expect(end.stdout).not.toMatch(/ of 1 on /);
    await expectCleanEnd();
  });

  test('works unchanged in a script of the job, twice in a row and two at a time', async () => {
    const command = {
      prrte: 'mpirun --host n1:2,n2:2,n3:2 -n 6',
      hydra: 'mpiexec.hydra -hosts n1:2,n2:2,n3:2 -n 6',
    }[launcher];
    const once = `${command} ${program('mpi-hello', launcher)}`;
    const end = await runScript(
      `${once} && ${once} && { ${once} & ${once}; first=$?; wait $! && exit $first; }`,
    );
    expect(end.status, end.stderr).toBe(0);
    const world = worldOf(lease.uid);
    expect(lines(end.stdout).sort()).toEqual([...world, ...world, ...world, ...world].sort());
    await expectCleanEnd();
  });
});

test('ranks that cannot find their launcher fail, and do not run each for itself', async () => {
  const script = `for name in $(env | sed -n 's/^\\(PMIX_SERVER_URI[^=]*\\)=.*/\\1/p'); do unset $name; done
    exec ${program('mpi-hello', 'prrte')}`;
  const end = await launch('prrte', 'sh', '-c', script);
  expect(end.status).not.toBe(0);
});
