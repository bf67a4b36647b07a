import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ALICE, CliHost, CONFIG_PATH, configuration } from './host.ts';
import { check, expectRefusal } from './transcript.ts';

let host: CliHost;
beforeAll(async () => {
  host = await CliHost.start();
});
afterAll(() => host.end());

type Shown = {
  readonly path: string;
  readonly origins: readonly { section: string; key: string; value: string | null; from: string }[];
};

const showJson = async (args = 'config show --json'): Promise<Shown> =>
  JSON.parse((await check(host, { args, stdout: /^\{/ })).stdout) as Shown;

const originOf = ({ origins }: Shown, section: string, key: string) =>
  origins.find((origin) => origin.section === section && origin.key === key);

describe('config show', () => {
  test('says every value and where it comes from', async () => {
    const { stdout } = await check(host, { args: 'config show', stdout: /^SECTION +KEY +VALUE +FROM\n/ });
    const lines = stdout.split('\n').map((line) => line.split(/ {2,}/));
    expect(lines).toContainEqual(['pool', 'range', '70000-70099', `${CONFIG_PATH}:5`]);
    expect(lines).toContainEqual(['lease', 'ttl', '1h', 'default']);
    expect(lines).toContainEqual(['storage shared', 'workspace', '/srv/shared/xce', `${CONFIG_PATH}:20`]);
  });

  test('says the same with --json', async () => {
    const shown = await showJson();
    expect(shown.path).toBe(CONFIG_PATH);
    expect(originOf(shown, 'nodes', 'hosts')).toEqual({
      section: 'nodes',
      key: 'hosts',
      value: 'n[1-3]',
      from: `${CONFIG_PATH}:15`,
    });
    expect(originOf(shown, 'cluster', 'instance')).toMatchObject({ value: 'main', from: 'default' });
  });

  test('reads the file that --config names, also by a relative path', async () => {
    host.write('/etc/other/other.ini', configuration({ 'pool.range': '71000-71009' }));
    for (const args of ['--config /etc/other/other.ini', '--config etc/other/other.ini']) {
      const shown = await showJson(`config show --json ${args}`);
      expect(shown.path).toBe('/etc/other/other.ini');
      expect(originOf(shown, 'pool', 'range')?.value).toBe('71000-71009');
    }
  });

  test('lets root ignore XCE_SANDBOX_CONFIG, and others use it', async () => {
    host.write('/etc/other/other.ini', configuration({ 'pool.range': '71000-71009' }));
    const env = { XCE_SANDBOX_CONFIG: '/etc/other/other.ini' };
    const step = { args: 'config show', env };
    await check(host, { ...step, stdout: /70000-70099 +\/etc\/xce-sandbox\/xce-sandbox\.ini:5/ });
    await check(host, { ...step, stdout: /71000-71009 +\/etc\/other\/other\.ini:5/, uid: ALICE });
  });
});

/** The configuration with something else in place of one line. */
const replacing = (line: string, by: string): string => configuration().replace(`${line}\n`, by);

describe('a configuration that could be read in two ways is refused with its line', () => {
  const text = configuration();
  /** Number of the line that is added behind the last one. */
  const added = text.split('\n').length;
  const range = 'range = 70000-70099';
  test.each<[name: string, content: string | Buffer, says: RegExp]>([
    ['a value cut at #', replacing(range, 'range = 70000-70099 # ours\n'), /:5: .*cut at "#"/],
    ['a value cut at ;', replacing(range, 'range = 70000-70099 ; ours\n'), /:5: .*cut at ";"/],
    ['a key set twice', replacing(range, `${range}\nrange = 71000-71009\n`), /:6: "range" is set in line 5/],
    [
      'a section twice',
      `${text}[pool]\nrange = 1-2\n`,
      new RegExp(`:${added}: section "pool" stands in line 4 already`),
    ],
    [
      'an indented section',
      replacing('[pool]', '  [pool]\n'),
      /:4: the section line " {2}\[pool\]" is indented/,
    ],
    [
      'a section with a comment',
      replacing('[pool]', '[pool]   ; uids\n'),
      /:4: something follows the section/,
    ],
    ['a bare key', replacing(range, 'range\n'), /:5: "range" is neither a section nor "key = value"/],
    ['a list key', `${text}groups[] = video\n`, new RegExp(`:${added}: .*groups\\[\\]`)],
    ['a key before the sections', `name = x\n${text}`, /:1: "name" stands before the first section/],
    ['a quote that is not closed', replacing(range, 'range = "70000-70099\n'), /:5: .*a quote is not closed/],
    ['a single quote', replacing(range, "range = '70000-70099'\n"), /:5: .*' stands in a value/],
    [
      'an unknown section',
      `${text}[__proto__]\nallow_root = true\n`,
      new RegExp(`:${added}: unknown section "__proto__"`),
    ],
    [
      'a section with a dot',
      `${text}[constructor.prototype]\nx = 1\n`,
      new RegExp(`:${added}: unknown section "constructor\\.prototype"`),
    ],
    [
      'an unknown key',
      replacing(range, `${range}\nhasOwnProperty = 1\n`),
      /:6: unknown key "hasOwnProperty" in \[pool\]/,
    ],
    [
      'a key with a typing error',
      replacing('storage = local', 'storage = local\nttll = 1h\n'),
      /:13: .*did you mean "ttl"\?/,
    ],
    [
      'a control character',
      replacing('name = test', 'name = te\u0007st\n'),
      /:2: there is a control character/,
    ],
    [
      'a line that is not UTF-8',
      Buffer.from(replacing('name = test', 'name = t\u00ebst\n'), 'latin1'),
      /:2: the line is not UTF-8/,
    ],
    ['NUL', replacing('name = test', 'name = te\0st\n'), /NUL bytes or is UTF-16/],
    ['UTF-16', Buffer.from(`\ufeff${text}`, 'utf16le'), /NUL bytes or is UTF-16/],
    ['a carriage return alone', text.replaceAll('\n', '\r'), /:1: a carriage return/],
    [
      'full-width digits',
      replacing(range, 'range = ７００００-７００９９\n'),
      /:5: .*characters other than ASCII/,
    ],
  ])('%s', async (_, content, says) => {
    host.write('/etc/trap/trap.ini', content);
    const args = 'config show --config /etc/trap/trap.ini';
    await expectRefusal(host, { args, code: 'config-syntax', status: 78, says });
  });

  test.each<[name: string, content: string, code: string, says: RegExp]>([
    [
      'a missing key',
      replacing(range, ''),
      'config-value',
      /:4: \[pool\] range is missing; it has no default/,
    ],
    [
      'a number in another notation',
      replacing(range, 'range = 0x11170-70099\n'),
      'config-value',
      /:5: .*plain digits/,
    ],
    ['a leading zero', replacing(range, 'range = 070000-070099\n'), 'config-value', /:5: .*"070000-070099"/],
    [
      'a range that runs backwards',
      replacing(range, 'range = 70099-70000\n'),
      'config-value',
      /:5: .*runs backwards/,
    ],
    [
      'a relative path',
      replacing('directory = /srv/xce-lease', 'directory = srv\n'),
      'config-value',
      /:11: .*absolute path/,
    ],
    [
      'a pool of dynamic users',
      replacing(range, 'range = 61000-61500\n'),
      'pool-range',
      /61184-61500 belongs to systemd's dynamic users/,
    ],
    [
      'a pool above 2^31',
      replacing(range, 'range = 3000000000-3000000001\n'),
      'pool-range',
      /supported maximum/,
    ],
    ['a pool of people', replacing(range, 'range = 2000-2999\n'), 'pool-range', /2000-2999 belongs to/],
    [
      'a control uid in the pool',
      replacing('control_uid = 1002', 'control_uid = 70001\n'),
      'config-value',
      /:8: .*lies in the pool/,
    ],
    [
      'a log inside of a storage',
      replacing('path = /srv/shared', 'path = /srv\n'),
      'config-value',
      /:19: .*the lease log .* lies in it/,
    ],
  ])('%s', async (_, content, code, says) => {
    host.write('/etc/trap/trap.ini', content);
    const args = 'config show --config /etc/trap/trap.ini';
    await expectRefusal(host, { args, code, status: 78, says });
  });

  test('all faults are told at once, each with its line in the JSON', async () => {
    const content = replacing(range, 'range = 0x1\n').replace('storage = local', 'storage = nfs');
    host.write('/etc/trap/trap.ini', content);
    const args = 'config show --config /etc/trap/trap.ini';
    const { detail } = await expectRefusal(host, {
      args,
      code: 'config-value',
      status: 78,
      says: /^xce-sandbox: \S+: 2 faults \[[a-z-]+\]\n {2}line 5: .*\n {2}line 12: .*\n/,
    });
    expect(detail).toMatchObject({ count: 2, faults: [{ line: 5 }, { line: 12 }] });
  });

  test('a byte order mark and CRLF change nothing', async () => {
    host.write('/etc/trap/trap.ini', `\ufeff${text.replaceAll('\n', '\r\n')}`);
    const shown = await showJson('config show --json --config /etc/trap/trap.ini');
    expect(originOf(shown, 'pool', 'range')).toMatchObject({
      value: '70000-70099',
      from: '/etc/trap/trap.ini:5',
    });
    expect(JSON.stringify(shown)).not.toContain('\\r');
  });
});

describe('a file that others could have written is refused', () => {
  const args = 'config show --config /etc/open/x.ini';
  const unsafe = { args, code: 'config-unsafe', status: 78 };

  test('by its mode, its owner or a directory above it', async () => {
    host.write('/etc/open/x.ini', configuration(), 0o664);
    await expectRefusal(host, {
      ...unsafe,
      says: /x\.ini must belong to root .*\n.*\n? *next: chown root:root/,
    });
    await host.shell(`chmod 644 /etc/open/x.ini; chown ${ALICE} /etc/open/x.ini`);
    await expectRefusal(host, { ...unsafe, says: /x\.ini must belong to root/ });
    await host.shell('chown 0 /etc/open/x.ini; chmod 777 /etc/open');
    await expectRefusal(host, { ...unsafe, says: /\/etc\/open must belong to root/ });
    await host.shell('chmod 755 /etc/open');
    await check(host, { args, stdout: /70000-70099/ });
  });

  test('by a link on the way', async () => {
    host.write('/etc/open/x.ini', configuration());
    await host.shell('ln -sfn /etc/open /etc/linked');
    const linked = { ...unsafe, args: 'config show --config /etc/linked/x.ini' };
    await expectRefusal(host, {
      ...linked,
      says: /\/etc\/linked is not a directory, or is reached through a link/,
    });
  });

  test('a missing one is told with the page that describes it', async () => {
    const missing = { args: 'config show --config /etc/none.ini', code: 'config-missing', status: 78 };
    await expectRefusal(host, {
      ...missing,
      says: /\/etc\/none\.ini: ENOENT .*\n.*\n {2}next: begin with share\/xce-sandbox\.ini\.example .*man xce-sandbox\.ini/,
    });
    await expectRefusal(host, { ...missing, args: 'config show --config /etc', says: /not a regular file/ });
  });
});
