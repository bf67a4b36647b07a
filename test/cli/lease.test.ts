import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ALICE, CliHost, CONFIG_PATH, configuration, LOG_DIRECTORY, POOL } from './host.ts';
import { check, expectRefusal, leavesAsIs, wordsOf } from './transcript.ts';

let host: CliHost;
beforeAll(async () => {
  host = await CliHost.start();
  await host.must(['lease', 'init']);
});
afterAll(() => host.end());

type Lease = {
  readonly outcome?: string;
  readonly lease: number;
  readonly uid: number;
  readonly job: string;
  readonly attempt: number;
  readonly status: string;
  readonly ttlMs: number;
  readonly remainingMs: number;
};

const json = async <T = Lease>(args: string): Promise<T> =>
  JSON.parse(await host.must([...wordsOf(args), '--json'])) as T;

const TERMS = `--submitter ${ALICE} --nodes n[1-3]`;
const allocate = (job: string, terms = TERMS): Promise<Lease> => json(`lease allocate --job ${job} ${terms}`);
const list = (): Promise<readonly Lease[]> => json<readonly Lease[]>('lease list');

/** Runs a command that must change nothing in the log. */
const changesNothing = (command: () => Promise<unknown>): Promise<void> =>
  leavesAsIs(host, LOG_DIRECTORY, command);

describe('allocate', () => {
  test('grants a uid of the pool, and says so to a person', async () => {
    await check(host, {
      args: `lease allocate --job 42 ${TERMS} --ttl 10m`,
      stdout:
        /^outcome: {3}granted\nlease: {5}1\nuid: {7}70000\njob: {7}42 \(attempt 0\)\nstate: {5}active\nleft: {6}(10m|9m59s) of 10m\nwaits for: -\nsubmitter: 1001:1001\nnodes: {5}n\[1-3\]\ncertified: -\nworkspace: \/srv\/shared\/xce\n$/,
    });
  });

  test('repeats the lease of the attempt while it is active', async () => {
    await changesNothing(async () => {
      expect(await allocate('42')).toMatchObject({ outcome: 'repeated', lease: 1, uid: 70_000 });
    });
  });

  test('says of a lease that it repeats that it keeps its own time', async () => {
    const again = `lease allocate --job 42 ${TERMS} --ttl`;
    await check(host, {
      args: `${again} 2h`,
      stdout: /^outcome: {3}repeated\n/,
      stderr:
        'xce-sandbox: lease 1 keeps its time of 10m; to change it: xce-sandbox lease renew --job 42 --attempt 0 --ttl 2h\n',
    });
    await check(host, { args: `${again} 10m`, stdout: /^outcome: {3}repeated\n/ });
  });

  test('gives another job another uid of the pool', async () => {
    const { uid } = await allocate('43');
    expect(uid).not.toBe(70_000);
    expect(uid).toBeGreaterThanOrEqual(POOL.first);
    expect(uid).toBeLessThanOrEqual(POOL.last);
  });

  test('gives a new attempt another uid, and keeps that of the one before until it is released', async () => {
    const first = await allocate('requeued');
    const second = await allocate('requeued', `--attempt 1 ${TERMS}`);
    expect(second).toMatchObject({ outcome: 'granted', attempt: 1 });
    expect(second.uid).not.toBe(first.uid);
    await check(host, {
      args: 'lease list --status quarantined',
      stdout: new RegExp(
        `^${first.lease} +${first.uid} +requeued +0 +quarantined .* superseded: attempt 1 `,
        'm',
      ),
    });
    expect(await json('lease show --job requeued')).toMatchObject({ attempt: 1, lease: second.lease });
    expect(await json('lease show --job requeued --attempt 0')).toMatchObject({ lease: first.lease });
    const again = {
      args: `lease allocate --job requeued --attempt 0 ${TERMS}`,
      code: 'lease-ended',
      status: 77,
    };
    await expectRefusal(host, { ...again, says: /is quarantined: the attempt has ended/ });
  });

  test('gives processes that ask at once each its own uid, and one lease for one attempt', async () => {
    const jobs = ['p1', 'p2', 'p3', 'p4', 'same', 'same'];
    const leases = await Promise.all(jobs.map((job) => allocate(job)));
    expect(leases.map(({ job }) => job)).toEqual(jobs);
    expect(new Set(leases.map(({ uid }) => uid)).size).toBe(5);
    expect(leases[4]?.lease).toBe(leases[5]?.lease);
    expect(
      leases
        .slice(4)
        .map(({ outcome }) => outcome)
        .sort(),
    ).toEqual(['granted', 'repeated']);
  });

  test.each([
    ['submitter', `--submitter 1002 --nodes n[1-3]`],
    ['nodes', `--submitter ${ALICE} --nodes n1`],
    ['workspace', `${TERMS} --workspace none`],
    ['writable paths', `${TERMS} --write /srv/shared/more`],
  ])('refuses a repeat with other terms: %s', async (term, terms) => {
    await changesNothing(() =>
      expectRefusal(host, {
        args: `lease allocate --job 42 ${terms}`,
        code: 'lease-conflict',
        status: 77,
        says: new RegExp(`lease 1 .* another value for: ${term} `),
      }),
    );
  });

  test.each([
    ['0', /'0' is not UID or UID:GID/],
    ['0:0', /is not UID or UID:GID/],
    ['-1', /submitter/],
    ['01001', /is not UID or UID:GID/],
    ['alice', /is not UID or UID:GID/],
    ['1001:0', /is not UID or UID:GID/],
    ['999', /999:999 is a system account/],
    ['65534', /65534:65534 is a system account/],
    ['1001:70001', /1001:70001 lies in the pool/],
    ['4242', /uid 4242 is unknown to the name service/],
    ['70001', /uid 70001 is unknown to the name service/],
    ['4294967295', /unknown|not an id/],
  ])('refuses the submitter %s', async (submitter, says) => {
    await changesNothing(() =>
      expectRefusal(host, {
        args: `lease allocate --job bad --submitter=${submitter} --nodes n1`,
        code: 'submitter',
        status: 64,
        says,
      }),
    );
  });

  test.each<[args: string, code: string, status: number, says: RegExp]>([
    [`--submitter ${ALICE} --nodes n9`, 'node-unknown', 68, /n9 is none of \[nodes\] hosts/],
    [`--submitter ${ALICE} --nodes n[1`, 'node-list', 64, /character 2: a bracket is not closed/],
    [`--submitter ${ALICE} --nodes n[1-9999999]`, 'node-list', 64, /n\[1-9999999\]/],
    [`${TERMS} --write /etc`, 'usage', 64, /\/etc is not below the path of any \[storage\]/],
    [`${TERMS} --write /srv/shared/../etc`, 'usage', 64, /is not below/],
    [`${TERMS} --workspace scratch`, 'usage', 64, /no \[storage scratch\] with a workspace/],
    [`${TERMS} --ttl 1ms`, 'usage', 64, /a lease lasts from 1s to 366d, not 1ms /],
    [`${TERMS} --ttl 400d`, 'usage', 64, /from 1s to 366d, not 400d /],
  ])('refuses %s', async (terms, code, status, says) => {
    await changesNothing(() =>
      expectRefusal(host, { args: `lease allocate --job bad ${terms}`, code, status, says }),
    );
  });

  test('keeps job ids digit for digit and byte for byte', async () => {
    const jobs = ['18014398509481984', '18014398509481985', '1234[7].pbs01', '0042', 'f8x+Kj_2'];
    const uids = new Set<number>();
    for (const job of jobs) {
      const lease = await allocate(job);
      expect(lease.job).toBe(job);
      uids.add(lease.uid);
      expect(await json(`lease show --job ${job}`)).toMatchObject({ job, lease: lease.lease });
    }
    expect(uids.size).toBe(jobs.length);
    const { stdout } = await check(host, { args: 'lease list', stdout: /^LEASE/ });
    for (const job of jobs) expect(stdout).toContain(` ${job} `);
    const listed = (await list()).map((lease) => lease.job);
    expect(listed).toEqual(expect.arrayContaining(jobs));
  });

  test.each([['a b'], ['a\nb'], [''], ['\u00e4'], ['x'.repeat(129)]])(
    'refuses the job id %j',
    async (job) => {
      await changesNothing(() =>
        expectRefusal(host, {
          args: ['lease', 'allocate', `--job=${job}`, '--submitter', '1001', '--nodes', 'n1'],
          code: 'usage',
          status: 64,
        }),
      );
    },
  );
});

describe('a lease', () => {
  test('is shown by its job or its number, and listed by its state', async () => {
    const byJob = await host.must(['lease', 'show', '--job', '43']);
    expect(byJob).toMatch(/^lease: {5}2\nuid: {7}70001\njob: {7}43 \(attempt 0\)\n/);
    expect(await json('lease show --lease 2')).toMatchObject({ job: '43', uid: 70_001, status: 'active' });
    const active = await host.must(['lease', 'list', '--status', 'active']);
    expect(active.split('\n')[0]).toMatch(/^LEASE +UID +JOB +ATTEMPT +STATE +LEFT +NODES +WAITS FOR$/);
    expect(await json<Lease[]>('lease list --status draining --status normalising')).toEqual([]);
  });

  test('gets a new term from renew', async () => {
    const { ttlMs, remainingMs } = await json('lease renew --job 43 --ttl 2h');
    expect(ttlMs).toBe(7_200_000);
    expect(remainingMs).toBeGreaterThan(7_190_000);
    await check(host, { args: 'lease show --job 43', stdout: /^left: {6}(2h|1h59m) of 2h$/m });
  });

  test('that is over cannot be renewed or repeated, and keeps its uid', async () => {
    const { uid } = await allocate('short', `${TERMS} --ttl 1s`);
    await new Promise((resolve) => setTimeout(resolve, 1100));
    await expectRefusal(host, { args: 'lease renew --job short', code: 'lease-expired', status: 77 });
    const repeat = { args: `lease allocate --job short ${TERMS}`, code: 'lease-expired', status: 77 };
    await expectRefusal(host, { ...repeat, says: /next: xce-sandbox lease release --job short/ });
    expect((await list()).map((lease) => lease.uid)).toContain(uid);
  });

  test.each([
    'lease show --job 77',
    'lease show --lease 4711',
    'lease renew --job 77',
    'lease release --job 77',
    'stop --job 77',
    'normalise --job 77 --plan',
  ])('that does not exist is told as missing: %s', async (args) => {
    await changesNothing(() => expectRefusal(host, { args, code: 'lease-missing', status: 66 }));
  });
});

test('an exhausted pool refuses without writing, and serves the attempts that have a lease', async () => {
  const small = await CliHost.start();
  try {
    small.write(CONFIG_PATH, configuration({ 'pool.range': '70000-70001' }));
    await small.must(['lease', 'init']);
    for (const job of ['a', 'b']) await small.must(wordsOf(`lease allocate --job ${job} ${TERMS}`));
    const before = small.snapshot(LOG_DIRECTORY);
    const args = `lease allocate --job c ${TERMS}`;
    await expectRefusal(small, { args, code: 'pool-exhausted', status: 75 });
    await check(small, { args: `lease allocate --job a ${TERMS}`, stdout: /^outcome: {3}repeated\n/ });
    expect(small.snapshot(LOG_DIRECTORY)).toEqual(before);
  } finally {
    await small.end();
  }
});

test('a name service that cannot find the control uid proves nothing', async () => {
  const lost = await CliHost.start();
  try {
    await lost.must(['lease', 'init']);
    lost.write('/etc/passwd', `root:x:0:0:root:/root:/bin/sh\nalice:x:${ALICE}:${ALICE}::/:/bin/sh\n`);
    await expectRefusal(lost, { args: `lease allocate --job 1 ${TERMS}`, code: 'name-service', status: 69 });
    expect(await lost.must(['lease', 'list', '--json'])).toBe('[]\n');
  } finally {
    await lost.end();
  }
});
