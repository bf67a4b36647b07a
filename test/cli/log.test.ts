import { truncateSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ALICE, CliHost, CONFIG_PATH, configuration, LOG_DIRECTORY } from './host.ts';
import { check, checkAll, expectRefusal, wordsOf } from './transcript.ts';

let host: CliHost;
beforeEach(async () => {
  host = await CliHost.start();
});
afterEach(() => host.end());

const ALLOCATE = `lease allocate --job 1 --submitter ${ALICE} --nodes n1`;
const LOG = `${LOG_DIRECTORY}/leases.wal.1`;

/** What reads or writes the log, each with what it does when there is none. */
const USERS = ['lease list', 'lease show --job 1', 'lease verify', 'lease takeover', ALLOCATE, 'status'];

const snapshotAll = () =>
  ['/srv', '/run/xce-sandbox/main', '/var/lib/xce-sandbox'].map((directory) => host.snapshot(directory));

test('a directory for the first log is asked for with the command that makes it', async () => {
  await host.shell(`rmdir ${LOG_DIRECTORY}`);
  const { next } = await expectRefusal(host, { args: 'lease init', code: 'log-missing', status: 66 });
  const [, command = ''] = /: (mkdir [^;]+);/.exec(next ?? '') ?? [];
  expect(await host.shell(command)).toMatchObject({ status: 0 });
  expect([host.mode(LOG_DIRECTORY), host.mode('/srv')]).toEqual(['0700', '0755']);
  await host.must(['lease', 'init']);
});

describe('init', () => {
  test('makes the log, readable by root alone, and once', async () => {
    await check(host, { args: 'lease init', stdout: /^epoch: {3}1\nowner: {3}\S+\nrecords: 2\n$/ });
    expect(host.mode(LOG)).toBe('0600');
    const before = host.snapshot(LOG_DIRECTORY);
    await expectRefusal(host, {
      args: 'lease init',
      code: 'log-exists',
      status: 77,
      says: /leases\.wal\.1.*\n(.*\n)*? {2}next: xce-sandbox lease verify; no file of a log is ever removed/,
    });
    expect(host.snapshot(LOG_DIRECTORY)).toEqual(before);
  });

  test('says its position with --json', async () => {
    const position: unknown = JSON.parse(await host.must(['lease', 'init', '--json']));
    expect(position).toMatchObject({ epoch: 1, sequence: 2, token: expect.stringMatching(/^[0-9a-f]{32}$/) });
  });

  test('makes no directory', async () => {
    host.write(CONFIG_PATH, configuration({ 'lease.directory': '/srv/elsewhere' }));
    await expectRefusal(host, { args: 'lease init', code: 'log-missing', status: 66 });
    expect(host.exists('/srv/elsewhere')).toBe(false);
  });

  test.each(['leases.wal.1.bak', 'leases.wal.7', 'leases.wal.torn'])('refuses beside %s', async (name) => {
    host.write(`${LOG_DIRECTORY}/${name}`, '');
    const before = snapshotAll();
    await expectRefusal(host, { args: 'lease init', code: 'log-exists', status: 77, says: new RegExp(name) });
    expect(snapshotAll()).toEqual(before);
  });

  test('refuses storage that is not what the configuration says', async () => {
    host.write(CONFIG_PATH, configuration().replace('storage = local', 'storage = shared'));
    const before = snapshotAll();
    await expectRefusal(host, { args: 'lease init', code: 'storage-unfit', status: 78 });
    expect(snapshotAll()).toEqual(before);
  });
});

describe('probe', () => {
  test('says what local storage keeps, and leaves nothing behind', async () => {
    await check(host, {
      args: 'lease probe',
      stdout: /^directory: \/srv\/xce-lease\nstorage: {3}.*\n(kept: {6}[a-z ]+\n){6}$/,
    });
    expect(snapshotAll()).toEqual([{}, {}, {}]);
    for (const flags of ['--listen', '--peer ctl2']) {
      await expectRefusal(host, { args: `lease probe ${flags}`, code: 'usage', status: 64 });
    }
  });

  test('of shared storage takes two controllers', async () => {
    host.write(CONFIG_PATH, configuration().replace('storage = local', 'storage = shared'));
    await expectRefusal(host, {
      args: 'lease probe',
      code: 'usage',
      status: 64,
      says: /lease probe --listen/,
    });
  });
});

describe('without a log nothing starts as new', () => {
  test.each(USERS)('%s: an empty directory', async (args) => {
    await expectRefusal(host, {
      args,
      code: 'log-missing',
      status: 66,
      says: /\/srv\/xce-lease holds no lease log/,
    });
    expect(snapshotAll()).toEqual([{}, {}, {}]);
  });

  test.each(USERS)('%s: no directory', async (args) => {
    host.write(CONFIG_PATH, configuration({ 'lease.directory': '/srv/elsewhere' }));
    await expectRefusal(host, {
      args,
      code: 'log-missing',
      status: 66,
      says: /\/srv\/elsewhere is not a directory/,
    });
    expect(snapshotAll()).toEqual([{}, {}, {}]);
  });

  test.each(USERS)('%s: an empty file', async (args) => {
    host.write(LOG, '', 0o600);
    await expectRefusal(host, { args, code: 'log-corrupt', status: 65 });
    expect(host.snapshot(LOG_DIRECTORY)).toEqual({ 'leases.wal.1': '' });
  });

  test('the directory below an unmounted file system is told apart from the log that was there', async () => {
    await host.must(['lease', 'init']);
    await host.must(wordsOf(ALLOCATE));
    await host.shell(`mount -t tmpfs -o mode=0700 tmpfs ${LOG_DIRECTORY}`);
    for (const args of ['lease list', 'lease init', ALLOCATE]) {
      const end = await host.xce([...wordsOf(args), '--json']);
      expect(end.status, args).not.toBe(0);
      expect(end.stderr, args).toMatch(/\[(log-missing|log-rollback|log-exists)\]/);
    }
    expect(host.snapshot(LOG_DIRECTORY)).toEqual({});
  });
});

describe('a log', () => {
  beforeEach(async () => {
    await host.must(['lease', 'init']);
    await host.must(wordsOf(ALLOCATE));
  });

  test('is verified, and says how much it holds', async () => {
    await check(host, {
      args: 'lease verify',
      stdout:
        /^epoch: {6}1\nowner: {6}\S+\nrecords: {4}3\ntorn bytes: 0\nleases: {5}1\nepoch 1: {4}complete, 4 records, [0-9]+ bytes\nskew: {7}storage is in step with the writer of the newest record\nnewest: {5}written \S+ ago\n$/,
    });
    expect(JSON.parse(await host.must(['lease', 'verify', '--json']))).toMatchObject({ epoch: 1, leases: 1 });
  });

  test('with a changed byte is refused by everything, with the offset, and left as it is', async () => {
    const bytes = Buffer.from(host.snapshot(LOG_DIRECTORY)['leases.wal.1'] ?? '', 'hex');
    const at = bytes.length - 9;
    bytes.writeUInt8(bytes.readUInt8(at) ^ 1, at);
    host.write(LOG, bytes, 0o600);
    const before = host.snapshot(LOG_DIRECTORY);
    for (const args of ['lease verify', 'lease list', ALLOCATE]) {
      await expectRefusal(host, { args, code: 'log-corrupt', status: 65, says: /offset [0-9]+/ });
    }
    expect(host.snapshot(LOG_DIRECTORY)).toEqual(before);
  });

  test.each([
    ['whose file others may write', `chmod 0666 ${LOG}`],
    ['whose file belongs to somebody else', `chown 1001 ${LOG}`],
    ['in a directory that others may change', `chmod 0777 ${LOG_DIRECTORY}`],
  ])('%s is used by nothing', async (_, script) => {
    await host.shell(script);
    const before = host.snapshot(LOG_DIRECTORY);
    for (const args of ['lease verify', 'lease list', 'lease takeover', ALLOCATE]) {
      await expectRefusal(host, { args, code: 'config-unsafe', status: 78, says: /writable by root alone/ });
    }
    expect(host.snapshot(LOG_DIRECTORY)).toEqual(before);
  });

  test('that is shorter than this host has seen is a rollback', async () => {
    const before = host.snapshot(LOG_DIRECTORY);
    await host.must(wordsOf(ALLOCATE.replace('--job 1', '--job 2')));
    await host.must(['lease', 'list']);
    host.write(LOG, Buffer.from(before['leases.wal.1'] ?? '', 'hex'), 0o600);
    await expectRefusal(host, { args: ALLOCATE, code: 'log-rollback', status: 65 });
    expect(host.snapshot(LOG_DIRECTORY)).toEqual(before);
  });

  test('with a torn tail goes on in the next epoch, and says so', async () => {
    await host.must(['lease', 'renew', '--job', '1']);
    truncateSync(
      host.path(LOG),
      Buffer.from(host.snapshot(LOG_DIRECTORY)['leases.wal.1'] ?? '', 'hex').length - 3,
    );
    await host.shell('rm -r /var/lib/xce-sandbox');
    const torn = /^xce-sandbox: torn tail: [0-9]+ bytes from offset [0-9]+ of .*leases\.wal\.1 do not count/m;
    await check(host, { args: 'lease verify', stdout: /^torn bytes: [1-9]/m, stderr: torn });
    await check(host, {
      args: ALLOCATE.replace('--job 1', '--job 2'),
      stdout: /^outcome: {3}granted\n/,
      stderr: torn,
    });
    expect(host.exists(`${LOG_DIRECTORY}/leases.wal.2`)).toBe(true);
  });

  test('of another owner is only read until it is taken over', async () => {
    await host.shell('rm -r /run/xce-sandbox'); // as a reboot leaves it
    await check(host, { args: 'lease list', stdout: /^1 +70000 +1 /m });
    await expectRefusal(host, {
      args: ALLOCATE.replace('--job 1', '--job 2'),
      code: 'log-fenced',
      status: 77,
      says: /lease takeover/,
    });
    await check(host, { args: 'lease takeover', stdout: /^epoch: {3}2\n/ });
    await checkAll(host, [
      { args: ALLOCATE, stdout: /^outcome: {3}repeated\nlease: {5}1\nuid: {7}70000\n/ },
      {
        args: ALLOCATE.replace('--job 1', '--job 2'),
        stdout: /^outcome: {3}granted\nlease: {5}2\nuid: {7}70001\n/,
      },
    ]);
  });

  test('of another cluster is refused', async () => {
    host.write(CONFIG_PATH, configuration().replace('name = test', 'name = other'));
    await expectRefusal(host, { args: 'lease list', code: 'log-rollback', status: 65, says: /seen\.json/ });
    await host.shell('rm -r /var/lib/xce-sandbox');
    for (const args of ['lease list', ALLOCATE, 'lease takeover']) {
      await expectRefusal(host, { args, code: 'log-foreign', status: 65 });
    }
  });
});

test('a full disk loses nothing that was acknowledged, and grants nothing twice', async () => {
  await host.shell(`mount -t tmpfs -o size=64k,mode=0700 tmpfs ${LOG_DIRECTORY}`);
  await host.must(['lease', 'init']);
  await host.fillLog(37); // close to the end of the file's last block
  await host.shell(`head -c 100000 /dev/zero > ${LOG_DIRECTORY}/fill; true`);
  const allocate = (job: string): readonly string[] => wordsOf(ALLOCATE.replace('--job 1', `--job ${job}`));
  const jobs = (): Promise<readonly { job: string; uid: number }[]> =>
    host.must(['lease', 'list', '--json']).then((text) => JSON.parse(text) as { job: string; uid: number }[]);

  const acknowledged: string[] = [];
  let failed: { job: string; status: number; stderr: string } | undefined;
  for (let count = 0; failed === undefined && count < 12; count += 1) {
    const job = `full-${count}`;
    const { status, stderr } = await host.xce(allocate(job));
    if (status === 0) acknowledged.push(job);
    else failed = { job, status, stderr };
  }
  expect(failed?.stderr).toMatch(/ENOSPC.* \[(log-io|log-outcome-unknown)\]\n/);
  expect([74, 77]).toContain(failed?.status);
  expect((await jobs()).map(({ job }) => job)).toEqual(expect.arrayContaining(acknowledged));

  await host.shell(`rm ${LOG_DIRECTORY}/fill`);
  await host.must(allocate(failed?.job ?? ''));
  await host.must(allocate('after'));
  const after = await jobs();
  expect(after.map(({ job }) => job)).toEqual(
    expect.arrayContaining([...acknowledged, failed?.job, 'after', 'fill-0', 'fill-36']),
  );
  expect(new Set(after.map(({ uid }) => uid)).size).toBe(after.length);
});

test('storage that is mounted read-only is told as such', async () => {
  await host.must(['lease', 'init']);
  await host.shell(
    `mount --bind ${LOG_DIRECTORY} ${LOG_DIRECTORY}; mount -o remount,bind,ro ${LOG_DIRECTORY}`,
  );
  const { stderr, status } = await host.xce(wordsOf(ALLOCATE));
  expect(status).toBe(78);
  expect(stderr).toMatch(/it is mounted read-only .*\[storage-unfit\]/);
});
