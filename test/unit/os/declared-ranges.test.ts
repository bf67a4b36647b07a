import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { readDeclaredRanges } from '../../../src/os/declared-ranges.ts';

let etc = '';
beforeEach(() => {
  etc = mkdtempSync(join(tmpdir(), 'xce-etc-'));
});
afterEach(() => {
  rmSync(etc, { recursive: true });
});

const write = (name: string, text: string | Buffer): void => {
  mkdirSync(dirname(join(etc, name)), { recursive: true });
  writeFileSync(join(etc, name), text);
};

/** `first-last owner`, with the temporary directory shown as /etc. */
const ranges = (): readonly string[] =>
  readDeclaredRanges(etc).map(
    ({ first, last, owner }) => `${first}-${last} ${owner.replaceAll(etc, '/etc')}`,
  );

const refusal = (): string => {
  try {
    readDeclaredRanges(etc);
  } catch (error) {
    if (error instanceof Error && 'code' in error)
      return `${String(error.code)} ${error.message.replaceAll(etc, '/etc')}`;
  }
  return 'accepted';
};

test('a machine without any of the files declares nothing', () => {
  expect(ranges()).toEqual([]);
});

// sssd.conf is readable for root alone.
test.skipIf(process.geteuid?.() !== 0)('the files of this very machine can be read', () => {
  expect(readDeclaredRanges().every(({ first, last }) => first <= last)).toBe(true);
});

describe('login.defs', () => {
  test('declares its ranges, and shadow defaults where it is silent', () => {
    write(
      'login.defs',
      '# UID_MIN 5\nUID_MIN\t\t 1000\nUID_MAX 60000\n  GID_MAX 50000 \nUMASK 022\nSUB_UID_COUNT x\n',
    );
    expect(ranges()).toEqual([
      '1000-60000 UID_MIN to UID_MAX of /etc/login.defs',
      '1000-50000 GID_MIN to GID_MAX of /etc/login.defs',
      '101-999 SYS_UID_MIN to SYS_UID_MAX of /etc/login.defs',
      '101-999 SYS_GID_MIN to SYS_GID_MAX of /etc/login.defs',
      '100000-600100000 SUB_UID_MIN to SUB_UID_MAX of /etc/login.defs',
      '100000-600100000 SUB_GID_MIN to SUB_GID_MAX of /etc/login.defs',
    ]);
  });

  test('users that start below the system accounts leave none of these', () => {
    write('login.defs', 'UID_MIN 100\n');
    expect(ranges().filter((range) => range.includes('SYS_UID'))).toEqual([]);
  });

  test.each([
    ['UID_MAX 0xEA60\n', '/etc/login.defs:1: "0xEA60" is not an id'],
    ['\nUID_MAX\n', '/etc/login.defs:2: "" is not an id'],
    ['UID_MAX 060000\n', '/etc/login.defs:1: "060000" is not an id'],
    ['UID_MAX 60000 # x\n', '/etc/login.defs:1: "60000 # x" is not an id'],
    ['UID_MIN 70000\n', '/etc/login.defs: UID_MIN 70000 is above UID_MAX 60000'],
    ['UID_MIN 1000\0\n', '/etc/login.defs: is not a text file (it has NUL bytes)'],
  ])('%j is refused', (text, message) => {
    write('login.defs', text);
    expect(refusal()).toBe(`declared-ranges ${message}`);
  });
});

describe('subuid and subgid', () => {
  test('declare one range a line', () => {
    write('subuid', 'alice:100000:65536\n\n# none\nbob:165536:65536\nidle:5:0\n');
    write('subgid', '1000:70000:10');
    expect(ranges()).toEqual([
      '100000-165535 "alice" in /etc/subuid:1',
      '165536-231071 "bob" in /etc/subuid:4',
      '70000-70009 "1000" in /etc/subgid:1',
    ]);
  });

  test.each(['alice:100000', 'alice:100000:65536:x', ':1:1', 'alice:-1:5', 'alice:1e5:5', 'junk'])(
    'the line %j is refused, not skipped',
    (line) => {
      write('subuid', `bob:1:1\n${line}\n`);
      expect(refusal()).toBe(`declared-ranges /etc/subuid:2: "${line}" is not owner:first:count`);
    },
  );
});

describe('SSSD', () => {
  test('id mapping of an AD domain is on by default, from 200000', () => {
    write('sssd/sssd.conf', '[sssd]\ndomains = ad.example\n; c\n[domain/ad.example]\nid_provider = ad\n');
    expect(ranges()).toEqual(['200000-2000200000 the id mapping of SSSD "domain/ad.example"']);
  });

  test('an LDAP domain maps only when told, in the range that it is told', () => {
    write(
      'sssd/sssd.conf',
      '[domain/a]\nid_provider = ldap\n[domain/b]\nid_provider = ldap\nldap_id_mapping = True\nldap_idmap_range_min = 70000\nldap_idmap_range_max=90000\n',
    );
    expect(ranges()).toEqual(['70000-90000 the id mapping of SSSD "domain/b"']);
  });

  test('an AD domain without mapping declares nothing, with min_id and max_id these', () => {
    write('sssd/sssd.conf', '[domain/a]\nid_provider = ad\nldap_id_mapping = false\n');
    expect(ranges()).toEqual([]);
    write('sssd/conf.d/50-range.conf', '[domain/a]\nmin_id = 50000\nmax_id = 59999\n');
    expect(ranges()).toEqual(['50000-59999 min_id to max_id of SSSD "domain/a"']);
  });

  test('a FreeIPA domain, and a FreeIPA client, take the ranges that IPA chooses from', () => {
    write('sssd/sssd.conf', '[domain/i]\nid_provider = ipa\n');
    write('ipa/default.conf', '[global]\n');
    expect(ranges()).toEqual([
      '200000-2000200000 the FreeIPA ranges of SSSD "domain/i"',
      '200000-2000200000 FreeIPA (this machine has /etc/ipa/default.conf)',
    ]);
  });

  test('later snippets win, hidden files and other names are no snippets', () => {
    write('sssd/conf.d/10-a.conf', '[domain/a]\nid_provider = ldap\nldap_id_mapping = true\n');
    write('sssd/conf.d/20-b.conf', '[domain/a]\nldap_id_mapping = false\n');
    write('sssd/conf.d/.hidden.conf', 'junk');
    write('sssd/conf.d/old.conf.bak', 'junk');
    expect(ranges()).toEqual([]);
  });

  test('a value that goes on in an indented line is not a fault', () => {
    write('sssd/sssd.conf', '[sssd]\ndomains = a,\n  b\n[domain/a]\n  id_provider = ad\n');
    expect(ranges()).toHaveLength(1);
  });

  test.each([
    ['id_provider = ad\n', '1: "id_provider = ad" is not a setting'],
    ['[domain/a]\njunk\n', '2: "junk" is not a setting'],
    ['[domain/a\n', '1: "[domain/a" is not a setting'],
    ['[domain/a]\nldap_id_mapping = maybe\n', '2: "maybe" is neither true nor false'],
    ['[domain/a]\nldap_id_mapping = true\nldap_idmap_range_min = 0x10\n', '3: "0x10" is not an id'],
    [
      '[domain/a]\nldap_id_mapping = true\nldap_idmap_range_max = 5\n',
      '3: ldap_idmap_range_min 200000 is above ldap_idmap_range_max 5',
    ],
  ])('%j is refused', (text, message) => {
    write('sssd/sssd.conf', text);
    expect(refusal()).toBe(`declared-ranges /etc/sssd/sssd.conf:${message}`);
  });
});

describe('Samba', () => {
  test('idmap ranges are found however their names are written', () => {
    write(
      'samba/smb.conf',
      [
        '[global]',
        ' workgroup = X',
        '; idmap config * : range = 1-2',
        ' idmap config * : backend = tdb',
        ' idmap config * : range = 3000-7999',
        ' IDMAP Config  DOM:RANGE=70000 - 79999',
        ' idmap config \\',
        '   D2 : range = 80000-80009',
        ' winbind uid = 10000-20000',
        '[share]',
        ' path = /x',
      ].join('\n'),
    );
    expect(ranges()).toEqual([
      '3000-7999 "idmap config * : range" in /etc/samba/smb.conf:5',
      '70000-79999 "IDMAP Config  DOM:RANGE" in /etc/samba/smb.conf:6',
      '80000-80009 "idmap config    D2 : range" in /etc/samba/smb.conf:8',
      '10000-20000 "winbind uid" in /etc/samba/smb.conf:9',
    ]);
  });

  test('included files count once; names with variables and absent files do not', () => {
    write(
      'samba/smb.conf',
      `include = ${etc}/samba/a.conf\ninclude = ${etc}/samba/%m.conf\ninclude = /nonexistent/x\n`,
    );
    write('samba/a.conf', `include = ${etc}/samba/smb.conf\nidmap uid = 5-6\\\n`);
    expect(ranges()).toEqual(['5-6 "idmap uid" in /etc/samba/a.conf:3']);
  });

  test.each(['10000', '20000-10000', '0x10-20', ''])('the range %j is refused', (value) => {
    write('samba/smb.conf', `idmap config * : range = ${value}\n`);
    expect(refusal()).toBe(`declared-ranges /etc/samba/smb.conf:1: "${value}" is not a range of ids`);
  });
});

describe('files that cannot be read', () => {
  test('a directory in place of a file is refused', () => {
    mkdirSync(join(etc, 'subuid'));
    expect(refusal()).toBe(`declared-ranges /etc/subuid: cannot be read: /etc/subuid is not a regular file`);
  });

  test('a link that points nowhere is not an absent file', () => {
    symlinkSync('nowhere', join(etc, 'login.defs'));
    expect(refusal()).toBe('declared-ranges /etc/login.defs: cannot be read: ENOENT');
  });

  test('a link to a file is followed', () => {
    write('real', 'alice:1:1\n');
    symlinkSync('real', join(etc, 'subuid'));
    expect(ranges()).toEqual(['1-1 "alice" in /etc/subuid:1']);
  });

  test('a file in place of a directory is refused', () => {
    write('sssd', '');
    expect(refusal()).toBe('declared-ranges /etc/sssd/conf.d: cannot be looked up: ENOTDIR');
  });
});
