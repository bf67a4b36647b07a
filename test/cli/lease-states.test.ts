/** The life of a lease beyond the main road, as an operator sees it. No node of these hosts ever answers. */
import { symlinkSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { InstanceName, LeaseNumber, Uid } from '../../src/base/ids.ts';
import { encodeUserRecord } from '../../src/sandbox/user-record.ts';
import { ownClock, reboot, setClock } from './clock.ts';
import { ALICE, CliHost, CONFIG_PATH, configuration, LOG_DIRECTORY } from './host.ts';
import { check, expectRefusal, wordsOf } from './transcript.ts';

type Lease = {
  readonly lease: number;
  readonly uid: number;
  readonly job: string;
  readonly attempt: number;
  readonly status: string;
  readonly remainingMs: number;
  readonly expiry: string;
  readonly quarantine: { readonly code: string; readonly text: string } | null;
};
type Outcome = { readonly job: string; readonly outcome: string };

const terms = (nodes = 'n[1-3]'): string => `--submitter ${ALICE} --nodes ${nodes} --workspace none`;
const on = (host: CliHost) => ({
  json: async <T = Lease>(args: string): Promise<T> =>
    JSON.parse(await host.must([...wordsOf(args), '--json'])) as T,
  allocate: async (job: string, more = ''): Promise<Lease> =>
    JSON.parse(
      await host.must([...wordsOf(`lease allocate --job ${job} ${terms()} ${more}`), '--json']),
    ) as Lease,
  logNames: () => Object.keys(host.snapshot(LOG_DIRECTORY)).sort(),
});

/** A configuration in which no node is waited for. */
const quick = (changes: Readonly<Record<string, string>> = {}): string =>
  configuration(changes).replace('connect_timeout = 2s', 'connect_timeout = 1s');

describe('reclaim', () => {
  let host: CliHost;
  beforeAll(async () => {
    host = await CliHost.start();
    host.write(CONFIG_PATH, quick());
    await host.must(['lease', 'init']);
    await on(host).allocate('42');
  });
  afterAll(() => host.end());

  const WORD = ['lease', 'reclaim', '--job', '42', '--node', 'n2', '--reason', 'plug pulled'];

  test.each<[string, readonly string[], string, number, RegExp]>([
    ['of a node of another job', ['--job', '42', '--node', 'n9', '--reason', 'x'], 'node-unknown', 68, /n9/],
    ['of no node', ['--job', '42', '--reason', 'x'], 'usage', 64, /: --node is missing \[/],
    ['without a reason', ['--job', '42', '--node', 'n2'], 'usage', 64, /: --reason is missing \[/],
    ['with an empty reason', ['--job', '42', '--node', 'n2', '--reason= '], 'usage', 64, /the reason/],
    ['with no reason', ['--job', '42', '--node', 'n2', '--reason', ''], 'usage', 64, /--reason|the reason/],
    ['of an unknown job', ['--job', '77', '--node', 'n2', '--reason', 'x'], 'lease-missing', 66, /job 77/],
  ])('%s is refused', async (_, args, code, status, says) => {
    const before = host.snapshot(LOG_DIRECTORY);
    await expectRefusal(host, { args: ['lease', 'reclaim', ...args], code, status, says });
    expect(host.snapshot(LOG_DIRECTORY)).toEqual(before);
  });

  test('ends the attempt, and says who, when, why, and what it waits for', async () => {
    const { stdout } = await check(host, {
      args: [...WORD, '--by', 'night shift'],
      stdout: /^state: +quarantined$/m,
    });
    expect(stdout).toMatch(
      /^waits for: +reclaimed: certificate of n\[1,3\]; the return of n2, reclaimed by night shift$/m,
    );
    expect(stdout).toMatch(/^reclaimed: +n2 by night shift at 20\d\d-\d\d-\d\dT[0-9:.]+Z: plug pulled$/m);
    await check(host, {
      args: 'lease list',
      stdout: / quarantined .* the return of n2, reclaimed by night shift$/m,
    });
    await check(host, { args: 'lease show --job 42', stdout: /^reclaimed: +n2 by night shift at /m });
  });

  test('of the same node again changes nothing, whoever says it', async () => {
    const before = host.snapshot(LOG_DIRECTORY);
    await check(host, {
      args: WORD,
      stdout: /^reclaimed: +n2 by night shift at /m,
      stderr: /n2 was reclaimed before, by night shift at \S+: plug pulled; that stands/,
    });
    expect(host.snapshot(LOG_DIRECTORY)).toEqual(before);
  });

  test('is signed with the login, whatever the environment says', async () => {
    await host.must(wordsOf(`lease allocate --job 43 ${terms('n1,n3')}`));
    const lied = { USER: 'eve', LOGNAME: 'eve', SUDO_USER: 'eve' };
    const end = await host.xce(
      ['lease', 'reclaim', '--job', '43', '--node', 'n1', '--reason', 'off', '--json'],
      { env: lied },
    );
    expect(end.status).toBe(0);
    const { nodes } = JSON.parse(end.stdout) as { nodes: { node: string; reclaim: { by: string } | null }[] };
    expect(nodes.find(({ node }) => node === 'n1')?.reclaim?.by).toMatch(/^(root|.+ \(uid \d+\)|uid \d+)$/);
    expect(end.stdout).not.toContain('eve');
  });

  test('withholds the node from every job, and lets the job be requeued elsewhere', async () => {
    await expectRefusal(host, {
      args: `lease allocate --job 44 ${terms('n[2-3]')}`,
      code: 'node-withheld',
      status: 69,
      says: /n2 was reclaimed .*\n(.*\n)*? {2}next: xce-sandbox lease release --lease 1\n/,
    });
    const next = JSON.parse(
      await host.must(wordsOf(`lease allocate --job 42 --attempt 1 ${terms('n3')} --json`)),
    ) as Lease;
    expect(next).toMatchObject({ attempt: 1, status: 'active' });
    expect(next.uid).not.toBe((await on(host).json('lease show --lease 1')).uid);
  });

  test('outlives a takeover, which begins with a checkpoint', async () => {
    await host.must(['lease', 'takeover']);
    await check(host, { args: 'lease show --lease 1', stdout: /^reclaimed: +n2 by night shift at /m });
    await expectRefusal(host, {
      args: `lease allocate --job 44 ${terms('n2')}`,
      code: 'node-withheld',
      status: 69,
    });
  });
});

describe('clocks', () => {
  let host: CliHost;
  beforeAll(async () => {
    host = await CliHost.start();
    host.write(
      CONFIG_PATH,
      quick({ 'pool.range': '70000-70099' }).replace('storage = local', 'storage = local\nskew = 1m'),
    );
    ownClock(host);
    await host.must(['lease', 'init']);
  });
  afterAll(() => host.end());

  const expireAll = () => on(host).json<{ outcomes: readonly Outcome[] }>('lease expire --all');

  test('a lease lasts its time, whatever the wall clock does on the host that granted it', async () => {
    const { json, allocate } = on(host);
    await allocate('steady', '--ttl 1h');
    for (const offsetMs of [-3_600_000, 3_600_000, 360_000_000, 0]) {
      setClock(host, offsetMs);
      const { remainingMs } = await json('lease show --job steady');
      expect(remainingMs).toBeGreaterThan(3_300_000);
      expect(remainingMs).toBeLessThanOrEqual(3_600_000);
      expect((await expireAll()).outcomes).toEqual([
        expect.objectContaining({ job: 'steady', outcome: 'live' }),
      ]);
    }
  });

  test('a lease that is over is expired there, even by a clock that was set back', async () => {
    const { allocate, json } = on(host);
    const { uid } = await allocate('short', '--ttl 1s');
    setClock(host, -3_600_000);
    await expect
      .poll(async () => (await json('lease show --job short')).remainingMs, { timeout: 30_000 })
      .toBe(0);
    await check(host, { args: 'lease show --job short', stdout: /^left: +over \(it was 1s\)$/m });
    await check(host, {
      args: 'lease expire --job short',
      stdout: /^LEASE +UID +JOB +ATTEMPT +OUTCOME\n\d+ +\d+ +short +0 +expired\n$/,
    });
    setClock(host, 0);
    expect(await json('lease show --job short')).toMatchObject({
      uid,
      status: 'quarantined',
      quarantine: { code: 'expired' },
    });
    await expectRefusal(host, { args: 'lease expire --job short', code: 'lease-state', status: 77 });
    expect((await allocate('after', '--ttl 1h')).uid).not.toBe(uid);
  });

  test('one that lives is refused by name, and none is meant by nothing', async () => {
    await expectRefusal(host, {
      args: 'lease expire --job steady',
      code: 'lease-state',
      status: 77,
      says: /has not expired for certain/,
    });
    await expectRefusal(host, { args: 'lease expire', code: 'usage', status: 64 });
    await expectRefusal(host, { args: 'lease expire --all --job steady', code: 'usage', status: 64 });
  });

  test('another boot waits a whole skew bound longer than its own clock says', async () => {
    const { allocate } = on(host);
    // Seen from a clock 48 s ahead, one ends 20 s before and one 85 s before now.
    setClock(host, 48_000 - 620_000);
    await allocate('lately', '--ttl 10m');
    setClock(host, 48_000 - 685_000);
    await allocate('long-ago', '--ttl 10m');
    setClock(host, 48_000);
    await reboot(host);
    await host.must(['lease', 'takeover']);
    const { outcomes } = await expireAll();
    const said = Object.fromEntries(outcomes.map(({ job, outcome }) => [job, outcome]));
    expect(said).toMatchObject({ lately: 'live', 'long-ago': 'expired', steady: 'live' });
  });

  test('a host whose clock is off expires nothing of another boot, and goes on granting', async () => {
    const { json, allocate } = on(host);
    setClock(host, 9_000_000);
    await host.must(['lease', 'takeover']);
    const before = await json<readonly Lease[]>('lease list');
    const error = await expectRefusal(host, {
      args: 'lease expire --job steady',
      code: 'clock-skew',
      status: 69,
      says: /clock skew -?\S+ is over the bound of 1m,/,
    });
    expect(error.detail).toMatchObject({ skewBoundMs: 60_000 });
    const all = await host.xce(['lease', 'expire', '--all']);
    expect(all.status).toBe(69);
    expect(all.stdout).toMatch(/ steady +0 +unsure\n/);
    expect(all.stderr).toMatch(/^xce-sandbox: \d+ leases: clock skew -\S+ is .* \[clock-skew\]\n/);
    expect((await json<readonly Lease[]>('lease list')).map(({ status }) => status)).toEqual(
      before.map(({ status }) => status),
    );
    await allocate('while-off', '--ttl 1h');
    setClock(host, 0);
  });

  test('a clock that was set since the host owns the log expires nothing of another boot', async () => {
    const { json } = on(host);
    await host.must(['lease', 'takeover']);
    await on(host).allocate('of-this-boot', '--ttl 10m');
    await reboot(host);
    await host.must(['lease', 'takeover']);
    await on(host).allocate('of-the-next', '--ttl 1h');
    // The last record was written before, and shows no skew at all.
    setClock(host, 2 * 3_600_000);
    const { detail } = await expectRefusal(host, {
      args: 'lease expire --job of-this-boot',
      code: 'clock-skew',
      status: 69,
      says: /the clock of this host was set by (1h59m|2h).*\n.*\n {2}next: .*lease takeover/,
    });
    expect(detail).toMatchObject({ skewBoundMs: 60_000, stepMs: expect.any(Number) });
    // The host itself goes on, and its next epoch knows as much.
    await host.must(['lease', 'compact']);
    expect((await host.xce(['lease', 'expire', '--job', 'of-this-boot'])).status).toBe(69);
    expect(
      (await json<readonly Lease[]>('lease list')).filter(({ job }) => job.startsWith('of-')),
    ).toMatchObject([{ status: 'active' }, { status: 'active' }]);
    setClock(host, 0);
  });

  test('a file server whose clock is behind counts as a clock that is off', async () => {
    await host.must(['lease', 'takeover']);
    await on(host).json('lease renew --job while-off --ttl 1h');
    await host.must(['lease', 'takeover']);
    const newest = on(host)
      .logNames()
      .filter((name) => /^leases\.wal\.\d+$/.test(name))
      .sort((one, other) => one.length - other.length || (one < other ? -1 : 1))
      .at(-1);
    const { status } = await host.shell(`touch -d '-646 seconds' ${LOG_DIRECTORY}/${newest}`);
    expect(status).toBe(0);
    await expectRefusal(host, {
      args: 'lease expire --job steady',
      code: 'clock-skew',
      status: 69,
      says: /clock skew -10m\d+s /,
    });
    for (const { remainingMs } of await on(host).json<readonly Lease[]>('lease list'))
      expect(remainingMs).toBeGreaterThanOrEqual(0);
    const { stdout, stderr } = await host.xce(['lease', 'verify']);
    expect(stdout).toMatch(/^skew: +storage is 10m\d+s behind the writer of the newest record\n/m);
    expect(stdout).not.toMatch(/ -\d/);
    expect(stderr).toMatch(/^xce-sandbox: the clocks are further apart than \[lease\] skew allows/);
    await on(host).allocate('goes-on');
  });
});

describe('the name service', () => {
  let host: CliHost;
  const PASSWD = '/etc/passwd';
  let people = '';
  beforeAll(async () => {
    host = await CliHost.start();
    host.write(CONFIG_PATH, quick());
    await host.must(['lease', 'init']);
    for (const job of ['a', 'b']) await on(host).allocate(job);
    people = host.read(PASSWD);
  });
  afterAll(() => host.end());

  test('that knows no leased uid makes an audit clean', async () => {
    await check(host, {
      args: 'lease audit',
      stderr: /look up the uids of 2 leases: done/,
      stdout: /^leases: +2\nuid unknown to all: 2\nnot asked: +0\n$/,
    });
    expect(await on(host).json('lease audit')).toEqual({ leases: 2, absent: 2, found: [], skipped: 0 });
  });

  test('that is out of order is no answer, and flags nothing', async () => {
    host.write(PASSWD, people.replace(/^bob:.*\n/m, ''));
    const end = await host.xce(['lease', 'audit']);
    expect(end.status).toBe(69);
    expect(end.stdout).toMatch(/ unknown +name service not answering/);
    expect(end.stderr).toMatch(/ leased uids that may be somebody's: 2; lease 1: .*\[name-service\]\n/);
    expect((await on(host).json<readonly Lease[]>('lease list')).map(({ status }) => status)).toEqual([
      'active',
      'active',
    ]);
    host.write(PASSWD, people);
  });

  test('that knows a leased uid gets the lease flagged, which is never freed in silence', async () => {
    host.write(PASSWD, `${people}eve:x:70001:70001::/:/bin/sh\n`);
    const end = await host.xce(['lease', 'audit']);
    expect(end.status).toBe(77);
    expect(end.stdout).toMatch(/^2 +70001 +b +0 +present +passwd knows 70001 as "eve"$/m);
    expect(end.stderr).toMatch(
      /^xce-sandbox: leased uids that are somebody's: 1; lease 2: .*\[uid-taken\]\n/m,
    );
    await check(host, {
      args: 'lease list',
      stdout: /^2 +70001 +b +0 +quarantined .* uid-taken: passwd knows 70001 as "eve"$/m,
    });
    await expectRefusal(host, { args: 'lease renew --job b', code: 'lease-state', status: 77 });
    await expectRefusal(host, { args: `lease allocate --job b ${terms()}`, code: 'lease-ended', status: 77 });
  });

  test('is asked by normalise before anything changes its owner', async () => {
    await expectRefusal(host, {
      args: 'normalise --job b',
      code: 'uid-taken',
      status: 77,
      says: /uid 70001 of lease 2 is somebody's: passwd knows 70001 as "eve"/,
    });
    host.write(PASSWD, people.replace(/^bob:.*\n/m, ''));
    await expectRefusal(host, {
      args: 'normalise --job b',
      code: 'name-service',
      status: 69,
      says: /no file changed its owner/,
    });
    host.write(PASSWD, people);
  });
});

/** As a sandbox of the lease makes it on the node that it is on. */
const writeRecord = (host: CliHost, lease: number, uid: number): void => {
  const record = encodeUserRecord({
    instance: 'main' as InstanceName,
    lease: lease as LeaseNumber,
    uid: uid as Uid,
  });
  for (const { name, text } of record.files) host.write(`/run/userdb/${name}`, text);
  for (const { name, target } of record.links) symlinkSync(target, host.path(`/run/userdb/${name}`));
};

describe('a controller that is a node', () => {
  let host: CliHost;
  let people = '';
  beforeAll(async () => {
    host = await CliHost.start();
    host.write(CONFIG_PATH, quick());
    host.write('/etc/nsswitch.conf', 'passwd: files systemd\ngroup: files systemd\n');
    await host.must(['lease', 'init']);
    for (const job of ['a', 'b']) await on(host).allocate(job);
    people = host.read('/etc/passwd');
  });
  afterAll(() => host.end());

  test("takes the record of the lease's own sandbox for nobody, and sees who stands behind it", async () => {
    writeRecord(host, 1, 70_000);
    expect((await host.shell('getent -s systemd passwd 70000')).stdout).toMatch(/^xce-main-1:/);
    expect((await on(host).json<{ absent: number }>('lease audit')).absent).toBe(2);

    host.write('/etc/passwd', `${people}eve:x:70000:70000::/:/bin/sh\n`);
    const behind = await host.xce(['lease', 'audit', '--json']);
    expect([behind.status, behind.stdout]).toEqual([77, expect.stringContaining('eve')]);
    expect(await on(host).json('lease show --job a')).toMatchObject({ quarantine: { code: 'uid-taken' } });
    host.write('/etc/passwd', people);
  });

  test('takes the record of another sandbox for somebody', async () => {
    writeRecord(host, 9, 70_001);
    const end = await host.xce(['lease', 'audit', '--json']);
    expect([end.status, end.stdout]).toEqual([77, expect.stringContaining('xce-main-9')]);
    expect(await on(host).json('lease show --job b')).toMatchObject({ quarantine: { code: 'uid-taken' } });
  });
});
