/** `lease renew` has a bundle of its own. What it says must be what the whole command line says. */
import { rmSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ALICE, CliHost, CONFIG_PATH, type End, type Options } from './host.ts';
import { wordsOf } from './transcript.ts';

let host: CliHost;
beforeAll(async () => {
  host = await CliHost.start();
  await host.must(['lease', 'init']);
  for (const attempt of ['0', '1']) {
    const terms = ['--submitter', String(ALICE), '--nodes', 'n[1-3]', '--attempt', attempt];
    await host.must(['lease', 'allocate', '--job', '42', ...terms]);
  }
  host.write('/etc/xce-sandbox/bad.ini', 'nonsense\n');
  host.write('/etc/xce-sandbox/open.ini', host.read(CONFIG_PATH), 0o666);
});
afterAll(() => host.end());

/** A command line that may have to show colours is run by the whole of it; with 0 there are none. */
const WHOLE = { FORCE_COLOR: '0' };

/** Without what two renewals differ by. */
const withoutTimes = ({ status, stdout, stderr }: End): End => ({
  status,
  stdout: stdout
    .replaceAll(/("(?:issuedWallMs|remainingMs)": )[0-9]+/g, '$1N')
    .replaceAll(/^(left: +)\S+/gm, '$1N'),
  stderr,
});

const say = async (args: string, options: Options): Promise<End> =>
  withoutTimes(await host.xce(wordsOf(args), options));

test.each([
  '--job 42',
  '--job=42',
  '--job 42 --attempt 1 --ttl 10m',
  '--job 42 --attempt 1 --ttl=10m --json',
  '--lease 2',
  '--json --lease 2 --config /etc/xce-sandbox/xce-sandbox.ini',
  // refused by the rules
  '--job 42 --attempt 0',
  '--job 42 --attempt 0 --json',
  '--job 43',
  '--job 43 --json',
  '--lease 99 --json',
  '--job 42 --ttl 1ms',
  '--job 42 --ttl 999d --json',
  // refused before
  '--job 42 --config /nowhere.ini',
  '--job 42 --config /etc/xce-sandbox/bad.ini --json',
  '--job 42 --config /etc/xce-sandbox/open.ini',
  // not plainly understood
  '',
  '--json',
  '--help',
  '--job',
  '--job 42 --lease 2',
  '--job 42 --job 43',
  '--attempt 1',
  '--job 42 --attempt x',
  '--job 42 --ttl 10',
  '--job 42 --colour',
  '--job 42 extra',
  '-j 42',
  '--lease 0 --json',
])('lease renew %s: both say the same', async (args) => {
  const [alone, whole] = [
    await say(`lease renew ${args}`, {}),
    await say(`lease renew ${args}`, { env: WHOLE }),
  ];
  expect(alone).toEqual(whole);
});

test('the code of a renewal is kept for root alone, and for the next one', async () => {
  rmSync(host.path('/run/xce-sandbox/hot.code'), { force: true });
  const first = await say('lease renew --job 42', {});
  expect(host.mode('/run/xce-sandbox/hot.code')).toBe('0600');
  expect(await say('lease renew --job 42', {})).toEqual(first);
  expect(first.status).toBe(0);
});

test('both refuse whoever is not root', async () => {
  const options = { uid: ALICE };
  const end = await say('lease renew --job 42', options);
  expect(end).toEqual(await say('lease renew --job 42', { ...options, env: WHOLE }));
  expect(end).toMatchObject({ status: 77, stdout: '' });
});
