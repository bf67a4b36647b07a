/** A pool that overlaps what something else hands out, told with the part that overlaps. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ALICE, CliHost, CONFIG_PATH, configuration, LOG_DIRECTORY } from './host.ts';
import { check } from './transcript.ts';

let host: CliHost;
beforeAll(async () => {
  host = await CliHost.start();
  host.write('/etc/login.defs', 'UID_MIN 1000\nUID_MAX 60000\nGID_MIN 1000\nGID_MAX 60000\n');
});
afterAll(() => host.end());

const usePool = (range: string): void => host.write(CONFIG_PATH, configuration({ 'pool.range': range }));

/** Every command that reads the configuration refuses; the log is not made. */
const expectRefused = async (args: string, says: RegExp): Promise<void> => {
  await check(host, { args, status: 78, stderr: says });
  expect(host.snapshot(LOG_DIRECTORY)).toEqual({});
};

describe('ranges of systemd and of the kernel', () => {
  test.each([
    ['61000-61500', /61184-61500 belongs to systemd's dynamic users \(61184-65519\)/],
    ['60000-60513', /60001-60513 belongs to systemd-homed \(60001-60513\)/],
    ['60513-60600', /60513 belongs to systemd-homed \(60001-60513\), 60514-60577 belongs to/],
    ['61000-61184', /61184 belongs to systemd's dynamic users/],
    ['65000-70000', /65534 belongs to nobody/],
    ['500000-600000', /524288-600000 belongs to systemd-nspawn containers/],
    ['1-10', /1-10 belongs to system accounts/],
    ['3000000000-3000000001', /3000000000-3000000001 belongs to ids above the supported maximum 2147483647/],
  ])('%s is refused before a log is made', async (range, says) => {
    usePool(range);
    await expectRefused('lease init', says);
  });

  test('60578-61183, between them, is taken', async () => {
    usePool('60578-61183');
    await check(host, { args: 'config show', stdout: /pool +range +60578-61183/ });
  });

  test('a uid above 2^31 never becomes another one', async () => {
    usePool('3000000000-3000000001');
    const args = `lease allocate --job 1 --submitter ${ALICE} --nodes n1`;
    await expectRefused(args, /3000000000-3000000001 belongs to ids above the supported maximum/);
  });
});

describe('a number in another notation', () => {
  test.each([
    '0xECB8',
    '0o166270',
    '+60600',
    '-60600',
    '60_600',
    '6e4',
    '60600.0',
    '060600',
    '',
    ' 60600 ',
    '60600abc',
    '６０６００',
    'Infinity',
    'NaN',
  ])('%j is refused as it was found', async (first) => {
    usePool(JSON.stringify(`${first}-60700`));
    const { stderr } = await check(host, { args: 'config show', status: 78, stderr: /config-value/ });
    const ascii = first.replace(/[^ -~]/g, (char) => `\\u${char.charCodeAt(0).toString(16)}`);
    expect(stderr).toMatch(/range/);
    expect([first, ascii].some((text) => stderr.includes(`${text}-60700`))).toBe(true);
  });

  test('blanks around the value do not count', async () => {
    usePool('   60600-60700   ');
    await check(host, { args: 'config show', stdout: /pool +range +60600-60700/ });
  });
});

/** What the node tests give sssd, and what sites add to it. */
const SSSD_CONF = `[sssd]
domains = site
services = nss

[nss]
memcache_timeout = 0

[domain/site]
id_provider = ldap
ldap_uri = ldap://ldap/
ldap_search_base = dc=site
ldap_id_use_start_tls = false
enumerate = false
`;

describe('a range that the machine declares', () => {
  const POOL = '70000-79999';
  test.each<[name: string, path: string, content: string, says: RegExp]>([
    [
      'login.defs',
      '/etc/login.defs',
      'UID_MAX 71000\n',
      /70000-71000 belongs to UID_MIN to UID_MAX of \/etc\/login.defs/,
    ],
    [
      'subordinate uids of login.defs',
      '/etc/login.defs',
      'SUB_UID_MIN 79000\n',
      /79000-79999 belongs to SUB_UID_MIN/,
    ],
    ['subuid', '/etc/subuid', 'alice:79990:65536\n', /79990-79999 belongs to "alice" in \/etc\/subuid:1/],
    ['subgid', '/etc/subgid', 'bob:65536:4465\n', /70000 belongs to "bob" in \/etc\/subgid:1/],
    [
      'id mapping of sssd',
      '/etc/sssd/sssd.conf',
      `${SSSD_CONF}ldap_id_mapping = true\nldap_idmap_range_min = 75000\nldap_idmap_range_max = 2000000000\n`,
      /75000-79999 belongs to the id mapping of SSSD "domain\/site"/,
    ],
    [
      'a snippet of sssd',
      '/etc/sssd/conf.d/10-ids.conf',
      '[domain/site]\nmin_id = 5000\nmax_id = 70009\n',
      /70000-70009 belongs to min_id to max_id of SSSD "domain\/site"/,
    ],
    [
      'Samba',
      '/etc/samba/smb.conf',
      '[global]\nidmap config * : range = 79999-99999\n',
      /79999 belongs to "idmap config \* : range"/,
    ],
  ])('%s: the part that overlaps is named', async (_claim, path, content, says) => {
    usePool(POOL);
    const before = host.exists(path) ? host.read(path) : undefined;
    host.write(path, content);
    try {
      await expectRefused('config show', says);
      await expectRefused(`lease allocate --job 1 --submitter ${ALICE} --nodes n1`, says);
    } finally {
      if (before === undefined) await host.shell(`rm ${path}`);
      else host.write(path, before);
    }
  });

  test('the ranges of FreeIPA are taken on a member of it', async () => {
    usePool('200000-200099');
    host.write('/etc/ipa/default.conf', '[global]\n');
    await expectRefused('config show', /200000-200099 belongs to FreeIPA/);
    await host.shell('rm /etc/ipa/default.conf');
  });

  test('[directory] ranges are taken as well', async () => {
    host.write(
      CONFIG_PATH,
      configuration({ 'pool.range': POOL }).replace('[directory]', '[directory]\nranges = 72000-72009'),
    );
    await expectRefused('config show', /72000-72009 belongs to \[directory\] ranges/);
  });

  test('an sssd.conf without ranges declares nothing', async () => {
    usePool(POOL);
    host.write('/etc/sssd/sssd.conf', SSSD_CONF, 0o600);
    await check(host, { args: 'config show', stdout: /pool +range +70000-79999/ });
    await host.shell('rm /etc/sssd/sssd.conf');
  });
});
