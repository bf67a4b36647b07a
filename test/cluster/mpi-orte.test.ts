/** Open MPI 4 and systemd 252 on nodes of Debian 12: ranks on all nodes, scripts, and ends that are not good. */
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { expectNothing, spawnLaunch } from '../support/launches.ts';
import { type Allocated, Site } from '../support/site.ts';

let site: Site;
let job = '';
let lease: Allocated;
let jobs = 0;

beforeAll(async () => {
  site = await Site.start({ suite: 'bookworm', workers: ['n1', 'n2'] });
  for (const name of ['mpi-hello', 'mpi-end']) await site.compile(name);
});

afterAll(async () => {
  await site?.down();
});

beforeEach(async () => {
  jobs += 1;
  job = `${jobs}`;
  lease = await site.allocate(job);
});

const lines = (text: string): string[] => text.split('\n').filter((line) => line !== '');
const worldOf = (uid: number): string[] =>
  [0, 1, 2, 3].map(
    (rank) => `rank ${rank} of 4 on n${Math.floor(rank / 2) + 1} uid ${uid} sum right shared 2 of 2`,
  );

test('has all ranks of one world on two nodes, also from a script of the job that passes variables on', async () => {
  expect(await site.cluster.node('n1').must(['mpirun', '--version'])).toMatch(/\(Open MPI\) 4\.1/);
  const end = await site.run([
    'launch',
    '--job',
    job,
    '--mpi=orte',
    '-n',
    '4',
    '--',
    '/shared/bin/mpi-hello',
  ]);
  expect(end.status, end.stderr).toBe(0);
  expect(lines(end.stdout).sort()).toEqual(worldOf(lease.uid));
  const script =
    'WORD=x mpirun -x WORD --host n1:2,n2:2 -n 4 sh -c "test x = \\$WORD && exec /shared/bin/mpi-hello"';
  const again = await site.run(['launch', '--job', job, '--nodes', 'n1', '--', 'sh', '-c', script]);
  expect(again.status, again.stderr).toBe(0);
  expect(lines(again.stdout).sort()).toEqual(worldOf(lease.uid));
  await site.must('lease', 'release', '--job', job);
  await expectNothing(site.workers, lease);
});

test('gives the status of a rank that aborts, and fails when a daemon is killed', async () => {
  const aborts = ['--job', job, '--mpi=orte', '-n', '4', '--', '/shared/bin/mpi-end', 'abort'];
  expect(await site.run(['launch', ...aborts])).toMatchObject({ status: 5 });
  const running = await spawnLaunch(site, [
    ...['--job', job, '--mpi=orte', '-n', '2', '--', 'sh', '-c'],
    'echo up $(hostname); exec /shared/bin/mpi-end wait',
  ]);
  for (const node of site.workers) await running.shows(`up ${node.name}`);
  await site.cluster.node('n2').must(['pkill', '-KILL', '-x', 'orted']);
  expect((await running.child.ended).exitCode).not.toBe(0);
  expect(running.errors.text).toMatch(/MPI daemon on n2 ended by signal 9/);
  await site.must('lease', 'release', '--job', job);
  await expectNothing(site.workers, lease);
});
