/** Compiled code that is kept from one run to the next: whose it is, and that it changes nothing. */
import { rmSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ALICE, CliHost, type End, type Options } from './host.ts';
import { wordsOf } from './transcript.ts';

const CODE = '/run/xce-sandbox/compiled-code';

let host: CliHost;
beforeAll(async () => {
  host = await CliHost.start();
  await host.must(['lease', 'init']);
  const terms = ['--submitter', String(ALICE), '--nodes', 'n[1-3]'];
  await host.must(['lease', 'allocate', '--job', '42', ...terms]);
});
afterAll(() => host.end());

/** Without what two runs of `lease renew` differ by. */
const say = async (args: string, options: Options = {}): Promise<End> => {
  const { status, stdout, stderr } = await host.xce(wordsOf(args), options);
  return { status, stdout: stdout.replaceAll(/^(left: +)\S+/gm, '$1N'), stderr };
};

test.each([
  ['lease renew --job 42', 'lease-renew-alone'],
  ['lease show --job 42', 'lease-show'],
  ['config show', 'config-show'],
  ['help', 'help'],
  ['lease --help', 'help'],
  ['--version', 'help'],
])('%s keeps its code for the next one, which says the same', async (args, name) => {
  const path = `${CODE}/${name}`;
  rmSync(host.path(path), { force: true });
  const first = await say(args);
  expect(first.status).toBe(0);
  expect(host.mode(path)).toBe('0644');
  expect(await say(args)).toEqual(first);
});

test('no run that was refused keeps code, and no word of a command line becomes a name', async () => {
  rmSync(host.path(CODE), { recursive: true, force: true });
  for (const args of ['lease show --job 43', 'lease ../x', 'frob', 'help frob', '']) await say(args);
  expect(Object.keys(host.snapshot(CODE))).toEqual(['help']);
});

test('a user runs with the code that root has kept, and keeps none', async () => {
  rmSync(host.path(CODE), { recursive: true, force: true });
  const alone = await say('help', { uid: ALICE });
  expect(host.exists(CODE)).toBe(false);
  await say('help');
  expect(await say('help', { uid: ALICE })).toEqual(alone);
  expect(alone.status).toBe(0);
});
