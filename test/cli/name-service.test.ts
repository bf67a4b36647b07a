/** A getent that misbehaves about the uids of the pool, and knows everybody else. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ALICE, CliHost, CONFIG_PATH, configuration, LOG_DIRECTORY, POOL } from './host.ts';
import { check, expectRefusal } from './transcript.ts';

const TIMEOUT_MS = 1000;
/** What the commands take beside the time-out of the name service on a busy machine. */
const COMMAND_MS_MAX = 15_000;

const ALLOCATE = `lease allocate --job 5 --submitter ${ALICE} --nodes n1`;

let host: CliHost;
beforeAll(async () => {
  host = await CliHost.start();
  host.write(
    CONFIG_PATH,
    configuration().replace('control_uid = 1002', `control_uid = 1002\ntimeout = ${TIMEOUT_MS}ms`),
  );
  await host.must(['lease', 'init']);
  misbehave('exit 2');
  await host.shell('cp /usr/bin/getent /root/getent.real && mount --bind /root/getent /usr/bin/getent');
});
afterAll(() => host.end());

/** A line of sh in place of an answer about the pool. */
const misbehave = (line: string): void => {
  host.write(
    '/root/getent',
    `#!/bin/sh\nfor id; do :; done\ncase $id in 700??) ${line};; *) exec /root/getent.real "$@";; esac\n`,
    0o755,
  );
};

test.each([
  ['exits 3', 'exit 3', 'exit status 3'],
  ['sleeps', 'exec sleep 60', `no answer within ${TIMEOUT_MS} ms`],
  ['fails on input or output', 'echo "getent: Input/output error" >&2; exit 1', 'exit status 1'],
])('a getent that %s has not said that a uid is nobody’s', async (_claim, line, why) => {
  misbehave(line);
  const before = host.snapshot(LOG_DIRECTORY);
  const startMs = performance.now();
  await expectRefusal(host, {
    args: ALLOCATE,
    code: 'name-service',
    status: 69,
    says: new RegExp(`name service not answering \\(getent .* ${POOL.first}: ${why}`),
  });
  // With and without --json, one after the other.
  expect(performance.now() - startMs).toBeLessThan(2 * (TIMEOUT_MS + COMMAND_MS_MAX));
  expect(host.snapshot(LOG_DIRECTORY)).toEqual(before);
});

test('a getent that does not find the uid has said so, until it fails', async () => {
  misbehave('exit 2');
  await check(host, { args: ALLOCATE, stdout: new RegExp(`uid: +${POOL.first}\\n`) });
  misbehave('exit 3');
  await expectRefusal(host, { args: ALLOCATE.replace('5', '6'), code: 'name-service', status: 69 });
});

test('a control that nobody is any more is told with the key that names it', async () => {
  const before = host.read(CONFIG_PATH);
  const wrong = before.replace('control_uid = 1002', 'control_uid = 1999');
  host.write(CONFIG_PATH, wrong.replace(`timeout = ${TIMEOUT_MS}ms`, 'timeout = 1m'));
  await expectRefusal(host, {
    args: ALLOCATE.replace('5', '8'),
    code: 'name-service',
    status: 69,
    says: /getent .* 1999: it does not find \[directory\] control_uid.*\n(.*\n)? {2}next: .*\[directory\] control_uid /,
  });
  host.write(CONFIG_PATH, before);
});

test('a getent that others put into PATH is not asked', async () => {
  misbehave('exit 2');
  host.write('/srv/bin/getent', '#!/bin/sh\ntouch /srv/bin/asked\nexit 3\n', 0o755);
  const line = `PATH=/srv/bin:$PATH xce-sandbox ${ALLOCATE.replace('5', '7')}`;
  expect(await host.shell(line)).toMatchObject({ status: 0 });
  expect(host.exists('/srv/bin/asked')).toBe(false);
});
