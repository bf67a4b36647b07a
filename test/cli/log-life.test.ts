import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ALICE, CliHost, LOG_DIRECTORY } from './host.ts';
import { check, expectRefusal, wordsOf } from './transcript.ts';

let host: CliHost;
beforeEach(async () => {
  host = await CliHost.start();
  await host.must(['lease', 'init']);
  await host.must(allocate('01'));
});
afterEach(() => host.end());

const allocate = (job: string): readonly string[] =>
  wordsOf(`lease allocate --job ${job} --submitter ${ALICE} --nodes n1,n2`);
const logPath = (epoch: number): string => `${LOG_DIRECTORY}/leases.wal.${epoch}`;

const alter = (epoch: number, change: (bytes: Buffer) => Buffer): void => {
  const bytes = Buffer.from(host.snapshot(LOG_DIRECTORY)[`leases.wal.${epoch}`] ?? '', 'hex');
  host.write(logPath(epoch), change(bytes), 0o600);
};
const flipAt =
  (at: number) =>
  (bytes: Buffer): Buffer => {
    bytes.writeUInt8(bytes.readUInt8(bytes.length + at) ^ 1, bytes.length + at);
    return bytes;
  };
const forgetSeen = (): Promise<unknown> => host.shell('rm -r /var/lib/xce-sandbox');

type Line = { readonly type: string; readonly [name: string]: unknown };
const linesOf = (text: string): readonly Line[] =>
  text
    .split('\n')
    .filter(Boolean)
    .map((line) => JSON.parse(line) as Line);

describe('lease dump', () => {
  test('writes a line for everything that the newest epoch holds, and leaves it as it is', async () => {
    await host.must(['lease', 'compact']);
    expect(linesOf(await host.must(['lease', 'dump', '--epoch', '1', '--json'])).at(-1)).toMatchObject({
      epoch: 1,
      event: { kind: 'allocate', job: '01' },
    });
    await host.must(allocate('2'));
    // what was replaced is emptied behind the first commit of its successor
    await expectRefusal(host, {
      args: 'lease dump --epoch 1',
      code: 'log-missing',
      status: 66,
      says: /emptied/,
    });
    const before = host.snapshot('/srv');
    const lines = linesOf(await host.must(['lease', 'dump']));
    expect(host.snapshot('/srv')).toEqual(before);
    expect(lines.map(({ type, part, epoch, sequence }) => [type, part, epoch, sequence])).toEqual([
      ['header', undefined, 2, 0],
      ['checkpoint', 'head', 2, 1],
      ['checkpoint', 'used', 2, 1],
      ['checkpoint', 'lease', 2, 1],
      ['checkpoint', 'nodes', 2, 1],
      ['complete', undefined, 2, 2],
      ['event', undefined, 2, 3],
    ]);
    expect(lines[0]).toMatchObject({ offset: 0, cluster: 'test', storage: { path: expect.any(String) } });
    // digits of a job id are kept as they are
    expect(lines[3]?.['value']).toMatchObject({ number: 1, job: '01', uid: 70_000, status: 'active' });
    expect(lines[4]?.['value']).toMatchObject({ lease: 1, nodes: [{ node: 'n1' }, { node: 'n2' }] });
    expect(lines[5]).toMatchObject({ base: { epoch: 1 }, items: 4 });
    expect(lines[6]).toMatchObject({ event: { kind: 'allocate', job: '2', nodes: ['n1', 'n2'] } });
  });

  test('shows what comes before a record that does not check, then its offset', async () => {
    await host.must(allocate('2'));
    alter(1, flipAt(-9));
    for (const args of ['lease dump', 'lease dump --json']) {
      const { status, stdout, stderr } = await host.xce(wordsOf(args));
      expect({ status, stderr }).toMatchObject({
        status: 65,
        stderr: /at offset [0-9]+: .* \[log-corrupt\]/,
      });
      const [, offset] = /at offset ([0-9]+)/.exec(stderr) ?? [];
      const lines = linesOf(stdout);
      expect(lines.filter(({ type }) => type === 'event')).toHaveLength(1);
      expect(Number(offset)).toBeGreaterThan(
        Number(lines.findLast(({ type }) => type === 'event')?.['offset']),
      );
      if (args.endsWith('--json')) expect(lines.at(-1)).toMatchObject({ error: { code: 'log-corrupt' } });
    }
  });

  test('says on stderr that a torn tail is left out, and refuses an epoch that is not there', async () => {
    alter(1, (bytes) => bytes.subarray(0, -3));
    const { stdout, stderr, status } = await host.xce(['lease', 'dump']);
    expect(status).toBe(0);
    expect(linesOf(stdout).some(({ type }) => type === 'event')).toBe(false);
    expect(stderr).toMatch(
      /^xce-sandbox: torn tail: [0-9]+ bytes from offset [0-9]+ of .*leases\.wal\.1 do not/,
    );
    await expectRefusal(host, { args: 'lease dump --epoch 4', code: 'log-missing', status: 66 });
    await expectRefusal(host, { args: 'lease dump --epoch 0', code: 'usage', status: 64 });
  });
});

describe('lease compact', () => {
  test('goes on in the next epoch with the same leases', async () => {
    const before = await host.must(['lease', 'list']);
    await check(host, { args: 'lease compact', stdout: /^epoch: {3}2\nowner: {3}\S+\nrecords: 2\n$/ });
    expect((await host.must(['lease', 'list'])).split('\n').length).toBe(before.split('\n').length);
    await check(host, { args: allocate('01'), stdout: /^outcome: {3}repeated\nlease: {5}1\n/ });
  });

  test('is for the owner alone', async () => {
    await host.shell('rm -r /run/xce-sandbox');
    await expectRefusal(host, {
      args: 'lease compact',
      code: 'log-fenced',
      status: 77,
      says: /lease takeover/,
    });
    expect(host.exists(logPath(2))).toBe(false);
  });
});

describe('lease repair', () => {
  test('of a log that is whole says so, and writes nothing', async () => {
    await host.must(['lease', 'list']);
    const before = ['/srv', '/run/xce-sandbox/main', '/var/lib/xce-sandbox'].map((path) =>
      host.snapshot(path),
    );
    await check(host, { args: 'lease repair', stdout: /^outcome: nothing was wrong\nepoch: {3}1\n/ });
    expect(
      ['/srv', '/run/xce-sandbox/main', '/var/lib/xce-sandbox'].map((path) => host.snapshot(path)),
    ).toEqual(before);
  });

  test('of a log that is whole says as well that this host may not write to it', async () => {
    await host.shell('rm -r /run/xce-sandbox');
    await check(host, {
      args: 'lease repair',
      stdout: /^outcome: the log is whole; this host does not own it, .*"lease takeover"\nepoch: {3}1\n/,
    });
    expect(JSON.parse(await host.must(['lease', 'repair', '--json']))).toMatchObject({
      repaired: false,
      owned: false,
    });
  });

  test('of a torn tail goes on in the next epoch, and keeps the broken file as it is', async () => {
    await host.must(allocate('2'));
    await forgetSeen();
    alter(1, (bytes) => bytes.subarray(0, -3));
    const before = host.snapshot(LOG_DIRECTORY)['leases.wal.1'];
    const result: unknown = JSON.parse(await host.must(['lease', 'repair', '--json']));
    expect(result).toMatchObject({ repaired: true, epoch: 2, kept: [{ path: logPath(1) }] });
    const [kept] = (result as { kept: readonly { offset: number; bytes: number }[] }).kept;
    expect((kept?.offset ?? 0) + (kept?.bytes ?? 0)).toBe((before?.length ?? 0) / 2);
    expect(host.snapshot(LOG_DIRECTORY)['leases.wal.1']).toBe(before);
    await check(host, { args: 'lease list', stdout: /^1 +70000 +01 /m });
    await check(host, { args: 'lease repair', stdout: /^outcome: nothing was wrong\n/ });
  });

  test('of an epoch that was never completed goes on above it', async () => {
    alter(1, (bytes) => bytes);
    await host.must(['lease', 'compact']);
    alter(2, (bytes) => bytes.subarray(0, -3));
    await forgetSeen();
    await check(host, {
      args: 'lease repair',
      stdout:
        /^outcome: repaired\nepoch: {3}3\n[\s\S]*kept: {4}\S+\/leases\.wal\.2: [0-9]+ bytes from offset/,
      stderr: /^xce-sandbox: took epoch 3 of the lease log/,
    });
    await check(host, { args: 'lease list', stdout: /^1 +70000 +01 /m });
  });

  test('is for the owner alone', async () => {
    await host.must(allocate('2'));
    await forgetSeen();
    alter(1, (bytes) => bytes.subarray(0, -3));
    await host.shell('rm -r /run/xce-sandbox');
    const before = host.snapshot(LOG_DIRECTORY);
    await expectRefusal(host, {
      args: 'lease repair',
      code: 'log-fenced',
      status: 77,
      says: /lease takeover/,
    });
    expect(host.snapshot(LOG_DIRECTORY)).toEqual(before);
  });
});

describe('a damaged log is the same to every command, and none touches it:', { timeout: 60_000 }, () => {
  type Refused = {
    readonly code: string;
    readonly status: number;
    readonly says: RegExp;
    readonly next: RegExp;
  };

  /** The first is `verify`, which says beyond the others which epochs are whole. */
  const expectOfAll = async ({ code, status, says, next }: Refused): Promise<string> => {
    const before = host.snapshot(LOG_DIRECTORY);
    const commands = ['lease verify', 'lease repair', 'lease list', 'lease show --job 01', allocate('3')];
    const ends = await Promise.all(
      commands.map(async (args) => {
        const words = wordsOf(args);
        const { status, stdout, stderr } = await host.xce([...words, '--json']);
        const { error } = JSON.parse(stdout) as { error: Record<string, unknown> };
        return { words, stderr, said: { ...error, status, unchanged: '', detail: '' } };
      }),
    );
    const [first] = ends;
    for (const { words, said } of ends) expect({ words, said }).toEqual({ words, said: first?.said });
    expect(first?.said).toMatchObject({ code, status, exitStatus: status });
    expect(first?.stderr).toMatch(says);
    expect(first?.stderr.split('\n').find((line) => line.startsWith('  next: '))).toMatch(next);
    expect(host.snapshot(LOG_DIRECTORY)).toEqual(before);
    return first?.stderr ?? '';
  };

  test('bytes that do not check', async () => {
    await host.must(['lease', 'compact']);
    alter(2, flipAt(-9));
    const stderr = await expectOfAll({
      code: 'log-corrupt',
      status: 65,
      says: /leases\.wal\.2 does not check at offset [0-9]+/,
      next: /cp -a .*bring back .*leases\.wal\.2 .*lease verify; .*RECOVERY/,
    });
    expect(stderr).toMatch(/unchanged: nothing was written to the lease log; epochs that check: 1\n/);
  });

  test('a file that is missing', async () => {
    await host.must(['lease', 'compact']);
    await host.must(['lease', 'compact']);
    await host.shell(`rm ${logPath(2)}`);
    await expectOfAll({
      code: 'log-corrupt',
      status: 65,
      says: /has epoch 3, but not every one below it/,
      next: /bring back the files that are missing .*RECOVERY/,
    });
  });

  test('one that is older than this host has seen', async () => {
    const older = Buffer.from(host.snapshot(LOG_DIRECTORY)['leases.wal.1'] ?? '', 'hex');
    await host.must(['lease', 'compact']);
    await host.must(allocate('2'));
    await host.shell(`rm ${logPath(2)}`);
    host.write(logPath(1), older, 0o600);
    await expectOfAll({
      code: 'log-rollback',
      status: 65,
      says: /its newest epoch is 1, and this host has seen 2/,
      next: /bring back the newest state of \S+ from a snapshot .*RECOVERY/,
    });
  });

  test('one of which this host cannot read what it has seen', async () => {
    host.write('/var/lib/xce-sandbox/main/controller/seen.json', 'nothing', 0o600);
    await expectOfAll({
      code: 'log-rollback',
      status: 65,
      says: /seen\.json cannot be read/,
      next: /remove it only if the log is known to be the newest/,
    });
  });

  test('one whose newest epoch has lost its bytes', async () => {
    alter(1, () => Buffer.alloc(0));
    await forgetSeen();
    await expectOfAll({
      code: 'log-corrupt',
      status: 65,
      says: /leases\.wal\.1 is empty, and no epoch above it is complete/,
      next: /bring back the newest epoch that was complete/,
    });
  });

  test('a directory that is gone, and one that holds no log', async () => {
    await host.shell(`mv ${LOG_DIRECTORY} /srv/away`);
    const none = { code: 'log-missing', status: 66 };
    await expectOfAll({ ...none, says: /is not a directory/, next: /mount the storage of the lease log/ });
    await host.shell(`mkdir -m 0700 ${LOG_DIRECTORY}`);
    await expectOfAll({ ...none, says: /holds no lease log/, next: /check that its storage is mounted/ });
  });

  test('a torn tail, which is no error to who reads', async () => {
    await host.must(allocate('2'));
    await forgetSeen();
    alter(1, (bytes) => bytes.subarray(0, -3));
    const tail =
      /^xce-sandbox: torn tail: \d+ bytes from offset \d+ of \S+ do not count; "lease repair".*\n$/;
    for (const args of ['lease list', 'lease show --job 01', 'lease verify'])
      await check(host, { args, stdout: /./, stderr: tail });
  });
});

describe('lease verify', () => {
  beforeEach(async () => {
    await host.must(['lease', 'compact']);
    await host.must(allocate('2'));
  });

  const EPOCHS =
    /^leases: {5}2\nepoch 2: {4}complete, 4 records, [0-9]+ bytes\nepoch 1: {4}(complete|empty), /m;

  test('works on a disk that is full', async () => {
    await host.shell(`cp -a ${LOG_DIRECTORY} /srv/copy && mount -t tmpfs -o size=64k,mode=0700 tmpfs ${LOG_DIRECTORY} &&
      cp -a /srv/copy/. ${LOG_DIRECTORY} && { head -c 100000 /dev/zero > ${LOG_DIRECTORY}/fill; df ${LOG_DIRECTORY}; }`);
    expect((await host.shell(`echo x > ${LOG_DIRECTORY}/more`)).stderr).toMatch(/No space left/);
    await check(host, { args: 'lease verify', stdout: EPOCHS });
  });

  test('works on storage that is mounted read-only, with the memory of the host read-only as well', async () => {
    for (const path of [LOG_DIRECTORY, '/var/lib/xce-sandbox']) {
      await host.shell(`mount --bind ${path} ${path} && mount -o remount,bind,ro ${path}`);
      expect((await host.shell(`echo x > ${path}/more`)).stderr).toMatch(/Read-only file system/);
    }
    await check(host, { args: 'lease verify', stdout: EPOCHS });
  });

  test('finds that the log is older than what this host has seen', async () => {
    const before = host.snapshot(LOG_DIRECTORY);
    await host.must(allocate('3'));
    host.write(logPath(2), Buffer.from(before['leases.wal.2'] ?? '', 'hex'), 0o600);
    await expectRefusal(host, { args: 'lease verify', code: 'log-rollback', status: 65 });
  });
});
