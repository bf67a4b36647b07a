/** Jobs of a real Slurm, whose slurmctld runs the hooks of the package: what each job leaves, and what a lost node does. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { expectNothing } from '../support/launches.ts';
import { CONFIG_PATH, Site, SUBMITTER } from '../support/site.ts';
import { Slurm } from '../support/slurm.ts';

let site: Site;
let slurm: Slurm;

type Lease = {
  readonly lease: number;
  readonly job: string;
  readonly attempt: number;
  readonly uid: number;
  readonly status: string;
  readonly ttlMs: number;
  readonly submitter: { readonly uid: number };
};

const HOOKS = '\n[hooks]\nscheduler = slurm\ngrace = 1m\ndrain = /usr/bin/scontrol\n';

beforeAll(async () => {
  site = await Site.start({ layers: ['slurm'] });
  const config = (await site.controller.readFile(CONFIG_PATH)).toString('utf8');
  await site.controller.writeFile(CONFIG_PATH, config + HOOKS, { mode: 0o644 });
  slurm = await Slurm.setUp(site);
});
afterAll(() => site?.down());

const leases = () => site.json<readonly Lease[]>('lease', 'list');
const untilNoLease = () => slurm.until('no lease', async () => (await leases()).length === 0);

/** Nothing of the lease is left on any node, and its uid has no name there. */
const expectNothingOf = async (lease: Lease): Promise<void> => {
  await expectNothing(site.workers, lease);
  for (const node of site.workers) {
    expect((await node.exec(['getent', 'passwd', String(lease.uid)])).exitCode).toBe(2);
  }
};

describe('a job', () => {
  test('has a lease while it runs, in which its tasks run on each of its nodes, and none afterwards', async () => {
    const job = await slurm.submit(3, 'sleep 600');
    await slurm.untilState(job, 'RUNNING');
    const [lease, ...others] = await leases();
    expect(others).toEqual([]);
    // DefaultTime, and the grace; the prolog takes its part of the job's time.
    expect(lease).toMatchObject({ job, attempt: 0, status: 'active', submitter: { uid: SUBMITTER.uid } });
    expect(lease?.ttlMs).toBeGreaterThan(600_000);
    expect(lease?.ttlMs).toBeLessThanOrEqual(660_000);
    if (lease === undefined) throw new Error('there is a lease');
    expect(await site.must('launch', '--job', job, '--', 'id', '-u')).toBe(`${lease.uid}\n`.repeat(3));
    await slurm.must('scancel', job);
    await untilNoLease();
    await expectNothingOf(lease);
    expect(
      (
        await site.run([
          'prolog',
          '--scheduler',
          'slurm',
          '--job',
          job,
          '--submitter',
          '1001',
          '--nodes',
          'n1',
        ])
      ).stderr,
    ).toMatch(/\[lease-ended\]/);
  });

  test('that is requeued gets another uid, and the one before is freed by its own epilog', async () => {
    const job = await slurm.submit(2, 'sleep 600');
    await slurm.untilState(job, 'RUNNING');
    const [first] = await leases();
    await slurm.must('scontrol', 'requeue', job);
    await untilNoLease();
    // Slurm waits for two minutes before a job that was requeued begins again, unless it is told.
    await slurm.untilState(job, 'PENDING');
    await slurm.must('scontrol', 'update', `jobid=${job}`, 'starttime=now');
    await slurm.untilState(job, 'RUNNING');
    const [second, ...others] = await leases();
    expect(others).toEqual([]);
    expect(second).toMatchObject({ job, attempt: 1, status: 'active' });
    expect(second?.uid).not.toBe(first?.uid);
    await slurm.must('scancel', job);
    await untilNoLease();
  });

  test('leaves nothing when jobs come one after another', async () => {
    const jobs: string[] = [];
    for (let index = 0; index < 6; index += 1) jobs.push(await slurm.submit(1, 'true'));
    for (const job of jobs) await slurm.untilState(job, 'COMPLETED');
    await untilNoLease();
    for (const node of site.workers) {
      const units = await node.must([
        'systemctl',
        'list-units',
        '--all',
        '--plain',
        '--no-legend',
        'xce-main-*',
      ]);
      expect(units).toBe('');
    }
  });
});

describe('a node whose worker is down', () => {
  test('is drained with the reason, alone, and serves again once the release has come to its end', async () => {
    const [n1, n2, n3] = site.workers;
    if (n1 === undefined || n2 === undefined || n3 === undefined) throw new Error('three workers');
    await n3.must(['systemctl', 'stop', 'xce-sandbox-worker.service', 'xce-sandbox-worker-tls.socket']);
    const job = await slurm.submit(3, 'true');
    await slurm.until('a drained node', async () => (await slurm.node('n3')).state.includes('DRAIN'));
    expect((await slurm.node('n3')).reason).toMatch(/^xce-sandbox: n3: /);
    for (const name of ['n1', 'n2']) expect((await slurm.node(name)).state).not.toMatch(/DRAIN|DOWN/);
    const [lease] = await leases();
    expect(lease).toMatchObject({ job, attempt: 0, status: 'quarantined' });

    await slurm.must('scancel', job);
    await n3.must(['systemctl', 'start', 'xce-sandbox-worker-tls.socket', 'xce-sandbox-worker.service']);
    await site.must('lease', 'release', '--job', job);
    await slurm.must('scontrol', 'update', 'nodename=n3', 'state=resume');
    const next = await slurm.submit(3, 'true');
    await slurm.untilState(next, 'COMPLETED');
    await untilNoLease();
  });
});
