/** A node that is lost for good, comes back, and what a job's uid waits for meanwhile. */
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { mustRun } from '../support/cluster/process.ts';
import { expectNothing, killWorkerForGood, launchOn, reviveWorker } from '../support/launches.ts';
import { type Allocated, Site, SUBMITTER, WORKSPACE } from '../support/site.ts';

let site: Site;
beforeAll(async () => {
  site = await Site.start();
});
afterAll(async () => {
  await site?.down();
});

type ErrorDocument = {
  readonly error: {
    readonly code: string;
    readonly message: string;
    readonly next?: string;
    readonly detail?: { readonly waitsFor?: readonly string[] };
  };
};

/** Runs a command that must be refused; returns the document. */
const refused = async (status: number, ...args: readonly string[]): Promise<ErrorDocument['error']> => {
  const end = await site.run([...args, '--json']);
  expect({ args, status: end.status, stderr: end.stderr }).toMatchObject({ status });
  return (JSON.parse(end.stdout) as ErrorDocument).error;
};

const ALLOCATE = ['lease', 'allocate', '--submitter', String(SUBMITTER.uid), '--ttl', '10m'] as const;
const RECLAIM = ['lease', 'reclaim', '--reason', 'power supply burnt'] as const;
const ownedBy = (uid: number): Promise<string> =>
  site.controller.must(['find', '/shared', '-uid', String(uid)]);

describe('a node that loses its power under a job', () => {
  const work = `${WORKSPACE}/main/60.0/work`;
  let uid = 0;
  let lease = 0;

  test('that answers is not reclaimed', async () => {
    ({ uid, lease } = await site.allocate('60'));
    await site.must('launch', '--job', '60', '--', 'sh', '-c', 'touch "from-$XCE_NODE"');
    const error = await refused(77, ...RECLAIM, '--job', '60', '--node', 'n2');
    expect(error.code).toBe('lease-state');
    expect(error.message).toBe(`n2 answers, in the boot that lease ${lease} is bound to`);
  });

  test('blocks the release, which the word of an operator lets go on', async () => {
    await site.cluster.node('n2').killHard();
    const blocked = await refused(69, 'lease', 'release', '--job', '60');
    expect(blocked.code).toBe('release-blocked');
    expect(await ownedBy(uid)).not.toBe('');
    const shown = await site.must(...RECLAIM, '--job', '60', '--node', 'n2', '--by', 'night shift');
    expect(shown).toMatch(/^state: +quarantined$/m);
    expect(shown).toMatch(/^reclaimed: +n2 by night shift at \S+Z: power supply burnt$/m);
  });

  test('does not keep the files, but the uid', async () => {
    const error = await refused(69, 'lease', 'release', '--job', '60');
    expect(error).toMatchObject({
      code: 'release-blocked',
      message: `files are handed over; uid ${uid} waits for node n2 to certify after its return`,
      detail: { waitsFor: ['n2'] },
    });
    expect(await ownedBy(uid)).toBe('');
    expect(await site.controller.must(['stat', '-c', '%u', `${work}/from-n2`])).toBe(`${SUBMITTER.uid}\n`);
    expect(await site.json('lease', 'show', '--job', '60')).toMatchObject({
      status: 'quarantined',
      quarantine: { code: 'reclaimed', node: 'n2' },
    });
  });

  test('serves no job, while its job runs again on the others under another uid', async () => {
    const withheld = await refused(69, ...ALLOCATE, '--job', '61', '--nodes', 'n1,n2');
    expect(withheld).toMatchObject({
      code: 'node-withheld',
      next: `xce-sandbox lease release --lease ${lease}`,
    });
    const again = JSON.parse(
      await site.must(...ALLOCATE, '--job', '60', '--attempt', '1', '--nodes', 'n1,n3', '--json'),
    ) as { uid: number };
    expect(again.uid).not.toBe(uid);
    const end = await site.run(['launch', '--job', '60', '--', 'id', '-u']);
    expect([end.status, end.stdout]).toEqual([0, `${again.uid}\n${again.uid}\n`]);
    await site.must('lease', 'release', '--job', '60', '--attempt', '1');
  });

  test('frees the uid once it is back, installed anew, and everything was looked at again', async () => {
    // What it may still have written before it was really off.
    await site.controller.must(['sh', '-c', `touch ${work}/late && chown ${uid}:${uid} ${work}/late`]);
    const node = site.cluster.node('n2');
    await node.boot();
    await node.must(['systemctl', 'stop', 'xce-sandbox-worker.service']);
    await node.must(['rm', '-rf', '/var/lib/xce-sandbox']);
    await node.must(['systemctl', 'start', 'xce-sandbox-worker.service']);

    const withheld = await refused(69, ...ALLOCATE, '--job', '61', '--nodes', 'n2');
    expect(withheld.code).toBe('node-withheld');
    expect(await site.json('lease', 'release', '--job', '60', '--attempt', '0')).toMatchObject({
      status: 'free',
      uid,
    });
    expect(await ownedBy(uid)).toBe('');
    expect(await site.controller.must(['stat', '-c', '%u', `${work}/late`])).toBe(`${SUBMITTER.uid}\n`);
  });

  test('serves jobs again', async () => {
    const { uid: next } = await site.allocate('61', 'n2');
    const end = await site.run(['launch', '--job', '61', '--', 'id', '-u']);
    expect([end.status, end.stdout]).toEqual([0, `${next}\n`]);
    await site.must('lease', 'release', '--job', '61');
    expect(await site.json('lease', 'list')).toEqual([]);
  });
});

describe('reconcile', () => {
  type Told = { readonly kind: string; readonly lease: number | null; readonly nodes: readonly string[] };
  type Reconciled = { readonly differences: readonly Told[] };
  /** What it tells where it fails, and where it does not. */
  const differing = async (...flags: readonly string[]): Promise<readonly Told[]> => {
    const end = await site.run(['reconcile', ...flags, '--json']);
    const document = JSON.parse(end.stdout) as
      | Reconciled
      | { readonly error: { readonly detail: Reconciled } };
    expect(end.status).toBe('error' in document ? 69 : 0);
    return 'error' in document ? document.error.detail.differences : document.differences;
  };

  test('tells what a node has of a lease that has ended, and ends it there', async () => {
    const { lease, uid } = await site.allocate('65', 'n1');
    await site.must('lease', 'release', '--job', '65');
    expect(await differing()).toEqual([]);
    const n1 = site.cluster.node('n1');
    await n1.must(['systemd-run', '-q', `--unit=xce-main-${lease}.65.0.step.ghost`, 'sleep', '300']);
    await n1.writeFile(`/run/userdb/xce-main-${lease}.user`, '{}');
    // A directory of a sandbox is what makes units of the name ours.
    for (const box of [lease, lease + 1000]) await n1.must(['mkdir', `/run/xce-sandbox/main/box/${box}`]);
    expect(await differing()).toMatchObject([
      { kind: 'sandbox-without-lease', lease, nodes: ['n1'], mend: 'drain' },
      { kind: 'sandbox-without-lease', lease: lease + 1000, nodes: ['n1'], mend: null },
    ]);
    expect(await differing('--apply')).toMatchObject([{ lease: lease + 1000 }]);
    await expectNothing([n1], { lease, uid });
    expect((await n1.exec(['test', '-e', `/run/userdb/xce-main-${lease}.user`])).exitCode).toBe(1);
    await n1.must(['rmdir', `/run/xce-sandbox/main/box/${lease + 1000}`]);
  });

  test('ends what is over, tells a node that is silent, and leaves a job that runs', async () => {
    const { lease: over, uid } = await site.json<Allocated>(
      ...['lease', 'allocate', '--job', '66', '--submitter', String(SUBMITTER.uid)],
      ...['--ttl', '15s', '--nodes', 'n1'],
    );
    const { lease: runs } = await site.allocate('67', 'n1,n2');
    const running = await launchOn(site, '67', ['n1', 'n2'], 'sleep 600');
    await site.must('launch', '--job', '66', '--nodes', 'n1', '--', 'touch', 'left');
    const told = async () => (await differing()).map(({ kind, lease }) => `${kind} ${lease}`);
    await expect.poll(told, { timeout: 90_000, interval: 500 }).toContain(`lease-overdue ${over}`);
    const n3 = site.cluster.node('n3');
    await killWorkerForGood(n3);
    expect(await differing('--apply')).toMatchObject([{ kind: 'node-silent', nodes: ['n3'] }]);
    await reviveWorker(n3);
    expect(await ownedBy(uid)).toBe('');
    expect(await site.json('lease', 'list')).toMatchObject([{ lease: runs, status: 'active' }]);
    await site.must('stop', '--job', '67');
    await running.child.ended;
    await site.must('lease', 'release', '--job', '67');
    expect(await differing()).toEqual([]);
  });
});

describe('a pool of two uids', () => {
  const CONFIG = '/etc/xce-sandbox/xce-sandbox.ini';
  const logBytes = (): Promise<string> =>
    site.controller.must(['sh', '-c', 'cat /ctl-shared/leases/leases.wal.* | sha256sum']);

  test('is exhausted by a job of which a file is left, writes nothing for who comes too early, and goes round', async () => {
    const text = (await site.controller.readFile(CONFIG)).toString();
    await site.controller.writeFile(CONFIG, text.replace(/^range = .*$/m, 'range = 70014-70015'), {
      mode: 0o644,
    });
    const first = await site.allocate('70', 'n3');
    await site.must('launch', '--job', '70', '--', 'touch', 'left');
    // No node may make a device; the storage of others may have one, and nobody is given it.
    const device = join(site.cluster.sharedPath, 'xce/main/70.0/work/device');
    await mustRun(['mknod', device, 'c', '1', '3']);
    await mustRun(['chown', `${first.uid}:${first.uid}`, device]);
    expect((await refused(69, 'lease', 'release', '--job', '70')).code).toBe('release-blocked');
    expect(await site.json('lease', 'show', '--job', '70')).toMatchObject({
      status: 'quarantined',
      quarantine: { code: 'normalise-partial' },
    });
    const second = await site.allocate('71', 'n1');
    expect(second.uid).not.toBe(first.uid);
    const before = await logBytes();
    for (let count = 0; count < 3; count += 1) {
      const error = await refused(75, ...ALLOCATE, '--job', '72', '--nodes', 'n1');
      expect(error.code).toBe('pool-exhausted');
    }
    expect(await logBytes()).toBe(before);

    await site.must('lease', 'release', '--job', '71');
    await mustRun(['rm', device]);
    await site.must('lease', 'release', '--job', '70');
    expect(await ownedBy(first.uid)).toBe('');
    // Both are free; the one that came back first goes out first.
    expect((await site.allocate('72', 'n1')).uid).toBe(second.uid);
    expect((await site.allocate('73', 'n1')).uid).toBe(first.uid);
    for (const job of ['72', '73']) await site.must('lease', 'release', '--job', job);
  });
});
