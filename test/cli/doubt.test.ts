/** Two controllers, notes of a host that are not what they should be, and clocks that disagree. */
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ALICE, CliHost, LOG_DIRECTORY } from './host.ts';
import { expectRefusal, wordsOf } from './transcript.ts';

let host: CliHost;
beforeEach(async () => {
  host = await CliHost.start();
  await host.must(['lease', 'init']);
  await host.must(wordsOf(allocate(1)));
});
afterEach(() => host.end());

const allocate = (job: number): string => `lease allocate --job ${job} --submitter ${ALICE} --nodes n1`;
const RUN = '/run/xce-sandbox';
const MEMORY = '/var/lib/xce-sandbox';
const TOKEN = `${RUN}/main/controller/epoch-1.token`;

/** What a host has of its own is put away under one name, and what was put away under another is its own now. */
const becomeHost = (from: string, to: string) =>
  host.shell(
    [RUN, MEMORY]
      .map((path) => `mv ${path} ${path}.${from}; mv ${path}.${to} ${path} 2>/dev/null`)
      .join('; '),
  );

test('a controller whose storage is gone and comes back after a takeover steps down before it writes a byte', async () => {
  await host.shell(`mount -t tmpfs -o mode=0700 tmpfs ${LOG_DIRECTORY}`);
  await expectRefusal(host, { args: allocate(2), code: 'log-missing', status: 66 });
  await host.shell(`umount ${LOG_DIRECTORY}`);

  await becomeHost('first', 'second');
  await host.must(['lease', 'takeover']);
  await host.must(wordsOf(allocate(3)));

  await becomeHost('second', 'first');
  const before = host.snapshot(LOG_DIRECTORY);
  for (const args of [allocate(5), 'lease renew --job 1'])
    await expectRefusal(host, { args, code: 'log-fenced', status: 77, says: /lease takeover/ });
  expect(host.snapshot(LOG_DIRECTORY)).toEqual(before);

  await becomeHost('first', 'second');
  await host.must(wordsOf(allocate(6)));
  const leases = JSON.parse(await host.must(['lease', 'list', '--json'])) as readonly {
    job: string;
    uid: number;
  }[];
  expect(leases.map(({ job }) => job)).toEqual(['1', '3', '6']);
  expect(new Set(leases.map(({ uid }) => uid)).size).toBe(3);
});

describe('a token that proves nothing is not taken for one, and not broken', () => {
  test.each([
    ['of another controller', (text: string) => `${'0'.repeat(32)}${text.slice(32)}`],
    ['of another boot of this host', (text: string) => text.replace(/\n[0-9a-f]{8}/, '\n00000000')],
    ['that names a process', () => 'host=ctl2 pid=1\n'],
    ['that is empty', () => ''],
  ])('%s', async (_, change) => {
    host.write(TOKEN, change(host.read(TOKEN)), 0o600);
    const changed = host.read(TOKEN);
    const before = host.snapshot(LOG_DIRECTORY);
    await expectRefusal(host, { args: allocate(2), code: 'log-fenced', status: 77, says: /lease takeover/ });
    expect(host.snapshot(LOG_DIRECTORY)).toEqual(before);
    expect(host.read(TOKEN)).toBe(changed);
    await host.must(['lease', 'takeover']);
    await host.must(wordsOf(allocate(2)));
  });

  test('a FIFO in its place is refused at once', async () => {
    await host.shell(`rm ${TOKEN}; mkfifo ${TOKEN}`);
    const before = host.snapshot(LOG_DIRECTORY);
    const { status, stderr } = await host.shell(`timeout 20 xce-sandbox ${allocate(2)}`);
    expect({ status, stderr }).toEqual({
      status: 74,
      stderr: expect.stringMatching(/not a regular file \[io\]/),
    });
    expect(host.snapshot(LOG_DIRECTORY)).toEqual(before);
  });
});

describe.each(['-646 seconds', '+646 seconds'])('a file server whose clock is off by %s', (offset) => {
  const touch = () => host.shell(`touch -d '${offset}' ${LOG_DIRECTORY}/leases.wal.*`);

  test('keeps no lease from being granted, and makes no age negative', async () => {
    for (const job of [2, 3]) {
      await touch();
      await host.must(wordsOf(allocate(job)));
    }
    await touch();
    await host.must(['lease', 'verify']);
    const leases = JSON.parse(await host.must(['lease', 'list', '--json'])) as readonly {
      readonly status: string;
      readonly ttlMs: number;
      readonly remainingMs: number;
    }[];
    expect(leases.map(({ status }) => status)).toEqual(['active', 'active', 'active']);
    for (const { ttlMs, remainingMs } of leases) {
      expect(remainingMs).toBeGreaterThan(0);
      expect(remainingMs).toBeLessThanOrEqual(ttlMs);
    }
  });
});
