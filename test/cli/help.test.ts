import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { repositoryDirectory } from '../support/cluster/product.ts';
import { readCommands } from '../support/surface/commands.ts';
import { CliHost } from './host.ts';
import { check, checkAll, expectRefusal } from './transcript.ts';

const { version } = JSON.parse(readFileSync(join(repositoryDirectory, 'package.json'), 'utf8')) as {
  version: string;
};
const commands = await readCommands();

let host: CliHost;
beforeAll(async () => {
  host = await CliHost.start();
});
afterAll(() => host.end());

describe('help', () => {
  test('is what no arguments, --help, -h and help give', async () => {
    const { stdout } = await check(host, { args: '', stdout: /^COMMANDS$/m });
    await checkAll(host, [
      { args: '--help', stdout },
      { args: '-h', stdout },
      { args: 'help', stdout },
    ]);
  });

  test('of a topic lists its commands, however it is asked for', async () => {
    const { stdout } = await check(host, { args: 'lease', stdout: /^ {2}lease allocate /m });
    await checkAll(host, [
      { args: 'lease --help', stdout },
      { args: 'lease -h', stdout },
      { args: 'help lease', stdout },
    ]);
  });

  test.each([
    ['lease:release --job 7', /there is no command 'lease:release'/],
    ['lease:show', /there is no command 'lease:show'/],
    ['lease -- list', /'lease' alone is no command/],
  ])('is not what %s gets, which was meant to do something', async (args, says) => {
    await expectRefusal(host, { args, code: 'usage', status: 64, says });
  });

  test('is no document of a topic', async () => {
    const stdout = /"message": "'lease' alone is no command"/;
    await check(host, { args: 'lease --json', status: 64, stdout, stderr: /alone is no command/ });
  });

  test('of a command is the same before and behind its name', async () => {
    const { stdout } = await check(host, { args: 'lease allocate --help', stdout: /--submitter=UID/ });
    await checkAll(host, [
      { args: 'help lease allocate', stdout },
      { args: 'lease allocate -h', stdout },
    ]);
  });

  test('behind -- belongs to the command of the job', async () => {
    for (const flag of ['--help', '-h'])
      await expectRefusal(host, { args: `launch --job 1 -- id ${flag}`, code: 'log-missing', status: 125 });
  });

  test.each(commands.map(({ name }) => name))('of %s fits into 80 columns', async (name) => {
    const { stdout } = await check(host, { args: `help ${name}`, stdout: /^USAGE$/m });
    expect(stdout.split('\n').filter((line) => line.length > 80)).toEqual([]);
  });
});

test('--version names the release', async () => {
  const text = `xce-sandbox/${version} ${process.platform}-${process.arch} node-${process.version}\n`;
  await check(host, { args: '--version', stdout: text });
});

describe('a command line that is not valid', () => {
  test.each([
    ['frob', /there is no command 'frob' \[usage\]\n {2}next: xce-sandbox help\n/],
    [
      'stattus',
      /there is no command 'stattus'; did you mean 'status'\?.*\n {2}next: xce-sandbox help status\n/,
    ],
    ['help lease list --all', /'help' takes no flag '--all'.*\n {2}next: xce-sandbox help lease list\n/],
    ['lease allocte', /there is no command 'lease allocte'; did you mean 'lease allocate'\?/],
    ['lesae list', /did you mean 'lease list'\?/],
    ['lease frob', /there is no command 'lease frob' \[/],
    ['help frob', /there is no command 'frob'/],
    ['frob --help', /there is no command 'frob'/],
    ['-x', /'-x' is no command; flags come behind the command/],
    [
      'lease list extra',
      /'lease list' takes no argument 'extra' .*\n {2}next: xce-sandbox help lease list\n/,
    ],
    ['lease list --frob', /there is no flag '--frob' \[/],
    ['lease list --jsno', /there is no flag '--jsno'; did you mean '--json'\?/],
    ['launch --lable --job 1 -- id', /there is no flag '--lable'; did you mean '--label'\?/],
    [
      'lease list --status bogus',
      /--status: 'bogus' is none of active, draining, normalising, quarantined \[/,
    ],
    ['lease list --status activ', /--status: 'activ' is none of .*; did you mean 'active'\? \[/],
    ['lease list --status', /--status needs one of active, draining, normalising, quarantined \[/],
    ['lease list --config /none extra', /'lease list' takes no argument 'extra' \[/],
    ['lease allocate', /--job is missing; --nodes is missing; --submitter is missing \[/],
    ['lease show', /which lease is meant\?.*\n {2}next: give --job ID or --lease N\n/],
    ['lease show --job 1 --lease 2', /: --lease and --job cannot both be given \[/],
    ['lease probe --listen --peer ctl2', /: --peer and --listen cannot both be given \[/],
    ['lease show --attempt 1', /: --attempt is given without --job \[/],
    ['lease show --job', /: --job needs a value \[/],
    ['lease show --job 1 --job 2', /: --job is given more than once \[/],
    ['lease show --no-json --job 1', /there is no flag '--no-json'/],
    ['lease show --lease 0', /--lease: '0' is not a lease number/],
    ['lease show --lease 0x1', /--lease: '0x1' is not a lease number/],
    ['lease show --job 1 --attempt 1.5', /--attempt: '1\.5' is not an attempt/],
    ['lease renew --job 1 --ttl 10', /--ttl: '10' is not a duration such as 90s, 10m or 2h \[/],
    ['lease renew --job 1 --ttl -5s', /--ttl/],
    ['normalise --job 1 --plan --verify', /: --verify and --plan cannot both be given \[/],
    ['pki issue --role king --node n1 --out /x', /--role: 'king' is none of controller, worker, operator/],
  ])('is told as such: %s', async (args, says) => {
    const status = args.startsWith('launch') ? 125 : 64;
    const { next, message } = await expectRefusal(host, { args, code: 'usage', status, says });
    expect(next).toMatch(/^xce-sandbox help|^give /);
    // words of oclif
    expect(message).not.toMatch(/Missing|Expected|expects|provided|specified|Unexpected|Nonexistent|Parsing/);
  });

  test('shows what could steer a terminal as an escape', async () => {
    const args = ['lease', 'show', '--job', '\u001b[31mred\u202e'];
    const { message } = await expectRefusal(host, { args, code: 'usage', status: 64 });
    expect(message).toBe("--job: '\\x1b[31mred\\u{202e}' is not a job id");
    await expectRefusal(host, { args: ['\u001b[2J'], code: 'usage', status: 64, says: /'\\x1b\[2J'/ });
  });

  test('is told once on stderr and once on stdout with --json', async () => {
    await check(host, {
      args: 'lease show --json',
      status: 64,
      stdout:
        '{\n  "error": {\n    "code": "usage",\n    "message": "which lease is meant?",\n    "exitStatus": 64,\n' +
        '    "next": "give --job ID or --lease N"\n  }\n}\n',
      stderr: 'xce-sandbox: which lease is meant? [usage]\n  next: give --job ID or --lease N\n',
    });
  });
});

test('only root may use the log, the keys and the workers', async () => {
  for (const args of ['lease list', 'lease init', 'status', 'pki init', 'lease release --job 1']) {
    await expectRefusal(host, {
      args,
      uid: 1001,
      code: 'not-root',
      status: 77,
      says: /only root may do this/,
    });
  }
  await expectRefusal(host, { args: 'launch --job 1 -- id', uid: 1001, code: 'not-root', status: 125 });
});
