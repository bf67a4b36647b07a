/**
 * Storage that stops answering under a command: a FUSE mount whose daemon is stopped. Of Gluster it has the type in the
 * mount table and the virtual directory in which a client shows its quorum and how it was started; all else is real.
 */
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, watch } from 'node:fs';
import { text } from 'node:stream/consumers';
import { setTimeout as wait } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { parseMountTable } from '../../src/os/mount-table.ts';
import { marksOf } from '../../src/wal/host-record.ts';
import { ALICE, CliHost, CONFIG_PATH, configuration, type End } from './host.ts';
import { expectRefusal, wordsOf } from './transcript.ts';

const BACKING = '/mnt/backing';
const MOUNT = '/mnt/gluster';
const LOG = `${MOUNT}/lease`;
const TRANSLATOR = `${BACKING}/.meta/graphs/active/gv0-replicate-0`;
const RECORD = '/var/lib/xce-sandbox/main/controller/storage.json';
const TOKENS = '/run/xce-sandbox/main/controller';
/** A second of [lease] storage_timeout, and ample time for the start of a program; without a time-out there is no end. */
const END_MS_MAX = 1000 + 30_000;

let host: CliHost;
let daemon: ChildProcess;

const mountStorage = async (): Promise<void> => {
  daemon = host.spawn(['bindfs', '-f', '-o', 'subtype=glusterfs,fsname=g1:/gv0', BACKING, MOUNT]);
  for (let left = 500; ; left -= 1) {
    const { stdout } = await host.shell('cat /proc/self/mountinfo');
    const mount = parseMountTable(Buffer.from(stdout)).find(({ path }) => path === MOUNT);
    if (mount !== undefined) {
      const probe = { kept: ['look'], peer: { node: 'ctl2', rounds: 1000, stale: 0 } };
      const record = { cluster: 'test', instance: 'main', wallMs: Date.now(), mount: marksOf(mount), probe };
      host.write(RECORD, JSON.stringify({ format: 1, ...record }), 0o600);
      return;
    }
    if (left === 0) throw new Error('bindfs did not mount');
    await wait(10);
  }
};

beforeEach(async () => {
  host = await CliHost.start();
  for (const path of [`${TRANSLATOR}/options`, MOUNT]) mkdirSync(host.path(path), { recursive: true });
  mkdirSync(host.path(`${BACKING}/lease`), { mode: 0o700 });
  host.write(`${TRANSLATOR}/type`, 'cluster/replicate\n');
  host.write(`${TRANSLATOR}/private`, 'child_count = 3\nquorum-type = auto\n');
  const words = ['glusterfs', '--attribute-timeout=0', '--entry-timeout=0', '--direct-io-mode=enable'];
  host.write(`${BACKING}/.meta/cmdline`, JSON.stringify({ Cmdlinestr: words.join(' ') }));
  const ini = configuration({ 'lease.directory': LOG });
  host.write(CONFIG_PATH, ini.replace('storage = local', 'storage = shared\nstorage_timeout = 1s'));
  await mountStorage();
  await host.must(['lease', 'init']);
  await host.must(wordsOf(allocate(1)));
});
afterEach(async () => {
  const ended = new Promise((resolve) => daemon.once('close', resolve));
  daemon.kill('SIGCONT');
  daemon.kill('SIGTERM'); // it unmounts
  await ended;
  await host.end();
});

const allocate = (job: number): string => `lease allocate --job ${job} --submitter ${ALICE} --nodes n1`;

type Listed = { readonly job: string; readonly uid: number };

const listed = async (): Promise<readonly Listed[]> =>
  (JSON.parse(await host.must(['lease', 'list', '--json'])) as readonly Listed[]).map(({ job, uid }) => ({
    job,
    uid,
  }));

test('a command that finds the storage silent ends at the time-out, and changes nothing', async () => {
  const before = [await listed(), host.snapshot(`${BACKING}/lease`)];
  daemon.kill('SIGSTOP');
  for (const args of [allocate(2), 'lease renew --job 1', 'lease list', 'lease takeover', 'lease verify']) {
    const startMs = performance.now();
    const says = /^xce-sandbox: cannot .*: ETIMEDOUT .*\n(?: .*\n)* {2}next: bring back/;
    await expectRefusal(host, { args, code: 'log-io', status: 74, says });
    expect(performance.now() - startMs, args).toBeLessThan(END_MS_MAX);
  }
  daemon.kill('SIGCONT');
  expect([await listed(), host.snapshot(`${BACKING}/lease`)]).toEqual(before);
  await host.must(['lease', 'renew', '--job', '1']);
  await host.must(wordsOf(allocate(2)));
});

/** Runs a command, and stops the daemon when it has written on this host that a commit, or a take, has begun. */
const runIntoSilence = async (args: string): Promise<End> => {
  const watcher = watch(host.path(TOKENS), () => {
    watcher.close();
    daemon.kill('SIGSTOP');
  });
  const command = host.begin(wordsOf(args));
  const ended = once(command, 'close');
  // The kernel keeps the process itself until there is an answer, where the daemon was stopped over one.
  const [stdout, stderr] = await Promise.all([text(command.stdout), text(command.stderr)]);
  watcher.close();
  daemon.kill('SIGCONT');
  const [status] = await ended;
  return { status, stdout, stderr };
};

const WRITES = [10, 11, 12, 13].map((job) => ({ args: allocate(job), job: String(job) }));

test('a uid is told only where its lease counts, when the storage falls silent in the middle', async () => {
  const others = ['lease renew --job 1', 'lease takeover'].map((args) => ({ args, job: undefined }));
  for (const { args, job } of [...WRITES, ...others]) {
    const startMs = performance.now();
    const { status, stdout, stderr } = await runIntoSilence(args);
    const what = `${args}: ${status} ${stderr}`;
    expect(performance.now() - startMs, what).toBeLessThan(END_MS_MAX);
    expect([0, 74, 77], what).toContain(status);
    const lease = (await listed()).find((each) => each.job === job);
    if (status === 0) expect(stdout, what).toContain(String(lease?.uid ?? ''));
    else expect(stdout, what).toBe('');
    if (status === 74) expect(lease, what).toBeUndefined();
    if (status === 77) expect(stderr, what).toMatch(/ETIMEDOUT.*\[log-outcome-unknown\]/);
  }
  const uids = (await listed()).map(({ uid }) => uid);
  expect(new Set(uids).size).toBe(uids.length);
  await host.must(['lease', 'renew', '--job', '1']);
  await host.must(['lease', 'verify']);
});
