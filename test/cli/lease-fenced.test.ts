/** Two controllers on one log. Each has a /run and a memory of its own, and the second has another boot id. */
import { chmodSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { reboot } from './clock.ts';
import { ALICE, CliHost, CONFIG_PATH, configuration } from './host.ts';
import { preload } from './preload.ts';

let directory = '';
let hosts: readonly CliHost[] = [];

const start = async (): Promise<CliHost> => {
  const host = await CliHost.start();
  hosts = [...hosts, host];
  const text = configuration({ 'lease.directory': directory });
  host.write(CONFIG_PATH, text.replace('storage = local', 'storage = local\nskew = 1m'));
  return host;
};

beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'xce-fenced-'));
  chmodSync(directory, 0o700);
});
afterAll(async () => {
  await Promise.all(hosts.map((host) => host.end()));
  rmSync(directory, { recursive: true });
});

const show = async (host: CliHost) =>
  JSON.parse(await host.must(['lease', 'show', '--job', '1', '--json'])) as {
    readonly status: string;
    readonly ttlMs: number;
    readonly remainingMs: number;
  };

test('an expiry that was stopped before its write does not undo the renewal of the next owner', async () => {
  const first = await start();
  await first.must(['lease', 'init']);
  const terms = ['--submitter', String(ALICE), '--nodes', 'n1', '--workspace', 'none'];
  await first.must(['lease', 'allocate', '--job', '1', ...terms, '--ttl', '1s']);
  await expect.poll(async () => (await show(first)).remainingMs, { timeout: 30_000 }).toBe(0);

  preload(first, 'stop-shim');
  first.write('/etc/stop-at-write', '');
  const expiry = first.xce(['lease', 'expire', '--job', '1']);
  await expect.poll(() => first.exists('/etc/stopped'), { timeout: 30_000 }).toBe(true);
  const pid = Number(first.read('/etc/stopped'));
  try {
    const second = await start();
    await reboot(second);
    await second.must(['lease', 'takeover']);
    await second.must(['lease', 'renew', '--job', '1', '--ttl', '1h']);
  } finally {
    process.kill(pid, 'SIGCONT');
  }

  const { status, stdout, stderr } = await expiry;
  expect([status, stdout]).toEqual([77, '']);
  expect(stderr).toMatch(/\[log-(fenced|outcome-unknown)\]\n/);
  const third = await start();
  for (const host of [...hosts.slice(0, 2), third]) {
    expect(await show(host)).toMatchObject({ status: 'active', ttlMs: 3_600_000 });
    await host.must(['lease', 'verify']);
  }
  // Whoever asks the first controller now is told who owns the log.
  const again = await first.xce(['lease', 'expire', '--all']);
  expect([again.status, again.stdout]).toEqual([77, '']);
  expect(again.stderr).toMatch(/\[log-fenced\]\n/);
});
