/** The built program with calls of the system that fail (test/crash/faults/shim.c). */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { EXIT } from '../../src/base/errors.ts';
import { compileShim } from '../support/shim.ts';
import { ALICE, CliHost, CONFIG_PATH, configuration, LOG_DIRECTORY } from './host.ts';
import { expectRefusal, wordsOf } from './transcript.ts';

let directory = '';
let shim = '';
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'xce-cli-faults-'));
  shim = compileShim(directory);
});
afterAll(() => {
  rmSync(directory, { recursive: true, force: true });
});

let host: CliHost;
beforeEach(async () => {
  host = await CliHost.start();
  await host.must(['lease', 'init']);
});
afterEach(() => host.end());

const allocate = (job: string): string =>
  `lease allocate --job ${job} --submitter ${ALICE} --nodes n1 --json`;

type Listed = { readonly job: string; readonly uid: number };
const list = async (): Promise<readonly Listed[]> =>
  JSON.parse(await host.must(['lease', 'list', '--json'])) as readonly Listed[];

const ERRNO = { EIO: 5, EBADF: 9, EAGAIN: 11, EACCES: 13, ENOLCK: 37, ENOSYS: 38, EOPNOTSUPP: 95 };

type Fault = {
  readonly at: number;
  readonly errno: keyof typeof ERRNO;
  readonly mode?: 'once' | 'always';
  readonly calls?: string;
  readonly below?: string;
  readonly trace?: string;
};

const faulty = ({ at, errno, mode = 'once', calls = '', below = LOG_DIRECTORY, trace = '' }: Fault) => ({
  LD_PRELOAD: shim,
  XCE_FAULT_AT: String(at),
  XCE_FAULT_ERRNO: String(ERRNO[errno]),
  XCE_FAULT_MODE: mode,
  XCE_FAULT_CALLS: calls,
  XCE_FAULT_BELOW: below,
  XCE_FAULT_TRACE: trace,
});

const EVERYTHING = `${LOG_DIRECTORY}:/run/xce-sandbox:/var/lib/xce-sandbox`;
/** Every call is made to fail by test/crash/faults.test.ts; whole processes take one in so many. */
const STEP = 3;

test('with a call that fails, allocate prints a uid exactly if the lease is there', {
  timeout: 300_000,
}, async () => {
  const trace = join(directory, 'trace');
  let wasReached = true;
  let faults = 0;
  for (let at = 1; wasReached; at += STEP) {
    const job = `cut-${at}`;
    rmSync(trace, { force: true });
    const env = faulty({ at, errno: 'EIO', below: EVERYTHING, trace });
    const { status, stdout } = await host.xce(wordsOf(allocate(job)), { env });
    wasReached = readFileSync(trace, 'utf8').split('\n').length > at;
    const listed = (await list()).find((lease) => lease.job === job);
    const what = { at, status, stdout };
    if (status === 0) {
      expect({ ...what, uid: JSON.parse(stdout).uid }).toEqual({ ...what, uid: listed?.uid });
    } else {
      faults += 1;
      expect(Object.values(EXIT) as number[]).toContain(status);
      expect(status).not.toBe(EXIT.software);
      const document = JSON.parse(stdout) as { readonly error: { readonly code: string } };
      expect(Object.keys(document)).toEqual(['error']);
      expect(stdout).not.toMatch(/"uid"/);
      if (document.error.code !== 'log-outcome-unknown') expect(listed, stdout).toBeUndefined();
    }
    const next = await host.xce(wordsOf(allocate(`next-${at}`)));
    expect({ ...what, next: next.status, stderr: next.stderr }).toEqual({
      ...what,
      next: 0,
      stderr: expect.anything(),
    });
  }
  expect(faults).toBeGreaterThan(10);
  const uids = (await list()).map(({ uid }) => uid);
  expect(new Set(uids).size).toBe(uids.length);
});

describe('an fsync of the log that fails once, and works again afterwards', () => {
  // On storage of one host the first fsync of the log is the one behind the record.
  const failedFsync = () => ({
    env: faulty({ at: 1, errno: 'EIO', calls: ',fsync,', below: `${LOG_DIRECTORY}/leases.wal.1` }),
  });

  test('behind the record: it counts only as part of a new file, and is not claimed by a second fsync', async () => {
    const { status, stdout, stderr } = await host.xce(wordsOf(allocate('1')), failedFsync());
    expect({ status, stderr }).toEqual({ status: 0, stderr: expect.stringMatching(/epoch 2/) });
    // What the file of the failed fsync holds does not matter any more.
    host.write(`${LOG_DIRECTORY}/leases.wal.1`, '', 0o600);
    expect((await list()).map(({ job }) => job)).toEqual(['1']);
    await host.must(wordsOf(allocate('2')));
    const leases = await list();
    expect(leases.map(({ job }) => job)).toEqual(['1', '2']);
    expect(JSON.parse(stdout).uid).toBe(leases[0]?.uid);
    expect(leases[0]?.uid).not.toBe(leases[1]?.uid);
  });

  test("and never works again: refused, and the uid is nobody else's", async () => {
    const env = faulty({ at: 1, errno: 'EIO', mode: 'always', calls: ',fsync,' });
    const { status, stdout } = await host.xce(wordsOf(allocate('1')), { env });
    expect([EXIT.io, EXIT.noPermission]).toContain(status);
    expect(stdout).not.toMatch(/"uid"/);
    await host.must(wordsOf(allocate('2')));
    const leases = await list();
    expect(new Set(leases.map(({ uid }) => uid)).size).toBe(leases.length);
    expect(leases.map(({ job }) => job)).toContain('2');
  });
});

describe('storage that answers a lock with', () => {
  const locked = (errno: Fault['errno']) => ({
    env: faulty({ at: 1, errno, mode: 'always', calls: ',lock,' }),
  });

  test.each(['ENOSYS', 'EOPNOTSUPP', 'ENOLCK', 'EBADF'] as const)(
    '%s is refused, and no other lock is tried',
    async (errno) => {
      const before = host.snapshot(LOG_DIRECTORY);
      await expectRefusal(host, {
        args: allocate('1').replace(' --json', ''),
        code: 'storage-unfit',
        status: EXIT.config,
        says: new RegExp(
          `no cluster-wide lock on ${LOG_DIRECTORY}/leases\\.wal\\.1: ${errno.replace('EOPNOTSUPP', 'ENOTSUP')}`,
        ),
        ...locked(errno),
      });
      expect(host.snapshot(LOG_DIRECTORY)).toEqual(before);
    },
  );

  test.each(['EAGAIN', 'EACCES'] as const)(
    '%s is held by another: waited for, until the deadline',
    async (errno) => {
      host.write(
        CONFIG_PATH,
        configuration().replace('storage = local', 'storage = local\nlock_timeout = 1s'),
      );
      const before = host.snapshot(LOG_DIRECTORY);
      await expectRefusal(host, {
        args: allocate('1').replace(' --json', ''),
        code: 'log-busy',
        status: EXIT.tryAgain,
        says: /another process holds .*leases\.wal\.1/,
        inTurn: true,
        ...locked(errno),
      });
      expect(host.snapshot(LOG_DIRECTORY)).toEqual(before);
    },
  );
});
