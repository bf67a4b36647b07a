import { describe, expect, test } from 'vitest';
import { decodeText, FILE, MINIMAL, refusalOf, withLine } from './sample.ts';

/** What is said of `[section] key = value`, without file, line and key. */
const reasonFor = (section: string, key: string, value: string): string => {
  const present = new RegExp(`^${key} = .*$`, 'm');
  const start = MINIMAL.indexOf(`[${section}]\n`);
  const own = start === -1 ? '' : (MINIMAL.slice(start).split('\n[')[0] ?? '');
  const text =
    start === -1
      ? `${MINIMAL}[${section}]\n${section.startsWith('storage') && key !== 'path' ? 'path = /s\n' : ''}${key} = ${value}\n`
      : MINIMAL.replace(
          own,
          present.test(own)
            ? own.replace(present, () => `${key} = ${value}`)
            : `${own.trimEnd()}\n${key} = ${value}\n`,
        );
  const { message } = refusalOf(text);
  const [, reason] = new RegExp(`^${FILE}:[0-9]+: \\[${section}\\] ${key}: (.*)$`).exec(message) ?? [];
  return reason ?? message;
};

const PLAIN_RANGE = 'a range such as 70000-79999 in plain digits';

describe('numbers', () => {
  test.each([
    '0xECB8',
    '0o166270',
    '+60600',
    '-60600',
    '60_600',
    '6e4',
    '60600.0',
    '060600',
    '60600abc',
    'Infinity',
    'NaN',
    '0',
    '',
  ])('a pool that starts at %s is refused with the raw value', (first) => {
    expect(reasonFor('pool', 'range', `${first}-60700`)).toBe(`"${first}-60700" is not ${PLAIN_RANGE}`);
  });

  test.each([
    ['""', `it is empty; it must be ${PLAIN_RANGE}`],
    ['', `it is empty; it must be ${PLAIN_RANGE}`],
    ['" 60600-60700 "', `" 60600-60700 " is not ${PLAIN_RANGE}`],
    ['"６０６００-60700"', `"６０６００-60700" is not ${PLAIN_RANGE}`],
    ['60600', `"60600" is not ${PLAIN_RANGE}`],
    ['60600 - 60700', `"60600 - 60700" is not ${PLAIN_RANGE}`],
    ['60600-60700-60800', `"60600-60700-60800" is not ${PLAIN_RANGE}`],
    ['60700-60600', 'the range "60700-60600" runs backwards'],
    ['true', `"true" is not ${PLAIN_RANGE}`],
  ])('the pool %s is refused', (value, reason) => {
    expect(reasonFor('pool', 'range', value)).toBe(reason);
  });

  test('full-width digits are refused outside quotes as well', () => {
    expect(reasonFor('pool', 'range', '６０６００-60700')).toMatch(
      /"６０６００-60700": characters other than ASCII/,
    );
  });

  test('unquoted blanks around a number are no part of it', () => {
    const { pool } = decodeText(withLine('range = 70000-79999', 'range =   60600-60700   ')).settings;
    expect(pool).toEqual({ first: 60_600, last: 60_700 });
  });

  test.each([
    ['directory', 'control_uid', '0', '"0" is not a uid from 1 to 2147483647 in plain digits'],
    [
      'directory',
      'control_uid',
      '2147483648',
      '"2147483648" is not a uid from 1 to 2147483647 in plain digits',
    ],
    ['directory', 'control_uid', 'root', '"root" is not a uid from 1 to 2147483647 in plain digits'],
    ['nodes', 'port', '65536', '"65536" is not a whole number from 1 to 65535 in plain digits'],
    [
      'sandbox',
      'tasks_max',
      'infinity',
      '"infinity" is not a whole number from 16 to 4194304 in plain digits',
    ],
    ['sandbox', 'tasks_max', '08', '"08" is not a whole number from 16 to 4194304 in plain digits'],
  ])('[%s] %s = %s is refused', (section, key, value, reason) => {
    expect(reasonFor(section, key, value)).toBe(reason);
  });
});

describe('durations, days and sizes', () => {
  test.each([
    ['lease', 'ttl', '10', '"10" is not a duration such as 500ms, 30s, 10m, 2h or 7d'],
    ['lease', 'ttl', '1h30m', '"1h30m" is not a duration such as 500ms, 30s, 10m, 2h or 7d'],
    ['lease', 'ttl', '10 m', '"10 m" is not a duration such as 500ms, 30s, 10m, 2h or 7d'],
    ['lease', 'ttl', '367d', '367d is not between 1s and 366d'],
    ['directory', 'timeout', '50ms', '50ms is not between 100ms and 1m'],
    ['lease', 'remember', '24h', '"24h" is not a number of days from 1d to 3650d'],
    ['lease', 'remember', '0d', '"0d" is not a number of days from 1d to 3650d'],
    ['sandbox', 'tmp_size', '1024', '"1024" is not a size such as 512K, 64M or 4G'],
    ['sandbox', 'tmp_size', '1GB', '"1GB" is not a size such as 512K, 64M or 4G'],
    ['sandbox', 'tmp_size', '1.5G', '"1.5G" is not a size such as 512K, 64M or 4G'],
    ['sandbox', 'shm_size', '9999999999G', '9999999999G is over 65536G'],
    ['sandbox', 'memlock', 'unlimited', '"unlimited" is not "infinity" or a size such as 64M'],
  ])('[%s] %s = %s is refused', (section, key, value, reason) => {
    expect(reasonFor(section, key, value)).toBe(reason);
  });
});

describe('paths', () => {
  test.each([
    ['srv/lease', '"srv/lease" is not an absolute path'],
    ['~/lease', '"~/lease" is not an absolute path'],
    ['', 'it is empty; it must be an absolute path'],
    ['/', '"/" is the root directory'],
    ['/srv/../etc', '"/srv/../etc" is not a normal path (no "..", ".", "//" or "/" at the end)'],
    ['/srv/./x', '"/srv/./x" is not a normal path (no "..", ".", "//" or "/" at the end)'],
    ['/srv//x', '"/srv//x" is not a normal path (no "..", ".", "//" or "/" at the end)'],
    ['/srv/', '"/srv/" is not a normal path (no "..", ".", "//" or "/" at the end)'],
    ['"/srv/a b"', '"/srv/a b" is not a path of letters, digits and . _ @ + -'],
    ['/srv/a:b', '"/srv/a:b" is not a path of letters, digits and . _ @ + -'],
    ['/srv/%n', '"/srv/%n" is not a path of letters, digits and . _ @ + -'],
    ['/srv/$HOME', '"/srv/$HOME" is not a path of letters, digits and . _ @ + -'],
    [`/${'x'.repeat(4095)}`, 'the path is over 4095 bytes'],
  ])('%s is refused', (value, reason) => {
    expect(reasonFor('lease', 'directory', value)).toBe(reason);
  });

  test('a run directory in which a socket path would not fit is refused', () => {
    expect(reasonFor('worker', 'run_directory', `/run/${'x'.repeat(54)}`)).toBe('the path is over 58 bytes');
  });

  test.each([
    ['/etc/passwd', '"/etc/passwd" is not the path of a device below /dev'],
    ['/dev/../etc', '"/dev/../etc" is not a normal path (no "..", ".", "//" or "/" at the end)'],
    ['/dev', '"/dev" is not the path of a device below /dev'],
  ])('the device %s is refused', (value, reason) => {
    expect(reasonFor('sandbox', 'devices', value)).toBe(reason);
  });
});

describe('names and words', () => {
  test.each([
    ['cluster', 'name', '"a b"', '"a b" is not a cluster name (letters, digits and . _ -, at most 64)'],
    [
      'cluster',
      'instance',
      'Main',
      '"Main" is not an instance name (a lower-case letter, then lower-case letters, digits and _, at most 16)',
    ],
    [
      'cluster',
      'instance',
      'a-b',
      '"a-b" is not an instance name (a lower-case letter, then lower-case letters, digits and _, at most 16)',
    ],
    ['lease', 'storage', 'nfs', '"nfs" is not "shared" or "local"'],
    ['worker', 'node', 'n[1-2]', '"n[1-2]" is not a node name'],
    ['nodes', 'hosts', 'n[1-', '"n[1-" at character 5: a bracket is not closed'],
    ['nodes', 'hosts', '', '"" at character 1: a name is missing'],
    ['nodes', 'hosts', 'n1,n1', '"n1,n1" at character 4: the node n1 is named twice'],
    [
      'nodes',
      'hosts',
      'n[1-99999]',
      '"n[1-99999]" at character 1: the list reaches 99999 names here; the limit is 65536',
    ],
    ['sandbox', 'groups', 'root', '"root" is not the name of a group other than root'],
    ['sandbox', 'groups', '0', '"0" is not the name of a group other than root'],
    ['sandbox', 'pass_environment', 'A=B', '"A=B" is not the name of a variable'],
    ['sandbox', 'pass_environment', 'LANG,HOME', 'HOME: every sandbox sets it itself'],
    ['sandbox', 'pass_environment', 'LANG,,TERM', 'an item of "LANG,,TERM" is empty'],
    ['sandbox', 'pass_environment', 'LANG,', 'an item of "LANG," is empty'],
    ['sandbox', 'pass_environment', 'LANG LANG', '"LANG" stands in the list twice'],
    [
      'mpi',
      'interfaces',
      '10.1.0.0/33',
      '"10.1.0.0/33" is not an interface name or a network such as 10.1.0.0/16',
    ],
    ['mpi', 'interfaces', '10.1.0.0', '"10.1.0.0" is not an interface name or a network such as 10.1.0.0/16'],
    [
      'mpi',
      'interfaces',
      'fd00::/129',
      '"fd00::/129" is not an interface name or a network such as 10.1.0.0/16',
    ],
    [
      'mpi',
      'interfaces',
      'a-name-of-16-byt',
      '"a-name-of-16-byt" is not an interface name or a network such as 10.1.0.0/16',
    ],
  ])('[%s] %s = %s is refused', (section, key, value, reason) => {
    expect(reasonFor(section, key, value)).toBe(reason);
  });

  test('a list over its bound is refused', () => {
    const names = Array.from({ length: 257 }, (_, index) => `V${index}`).join(' ');
    expect(reasonFor('sandbox', 'pass_environment', names)).toBe('the list has more than 256 items');
  });

  test.each(['ib0,eth1.10', '10.1.0.0/16 fd00::/64', ''])('the interfaces %j are accepted', (value) => {
    expect(refusalOf(`${MINIMAL}[mpi]\ninterfaces = ${value}\n`).code).toBe('accepted');
  });
});

describe('listen', () => {
  test.each([
    ['0.0.0.0', { address: '0.0.0.0', port: 7713 }],
    ['10.1.0.1:99', { address: '10.1.0.1', port: 99 }],
    ['[::]', { address: '::', port: 7713 }],
    ['[fd00::1]:99', { address: 'fd00::1', port: 99 }],
  ])('%s is accepted', (value, listen) => {
    expect(decodeText(`${MINIMAL}[worker]\nlisten = ${value}\n`).settings.worker.listen).toEqual(listen);
  });

  test.each([
    'n1',
    'localhost:99',
    '::',
    'fd00::1',
    '10.1.0',
    '10.1.0.256',
    '10.1.0.01',
    '10.1.0.1:',
    '10.1.0.1:0',
    '10.1.0.1:65536',
    '10.1.0.1:+9',
    '[]:99',
    '[10.1.0.1]',
    '[fe80::1%eth0]:99',
    '*:99',
    '',
  ])('%j is refused', (value) => {
    expect(reasonFor('worker', 'listen', value)).toMatch(/(is not|must be) an address such as 10\.1\.0\.1/);
  });
});

describe('values that must fit together', () => {
  const storage = (path: string, workspace?: string): string =>
    `${MINIMAL}[storage s]\npath = ${path}\n${workspace === undefined ? '' : `workspace = ${workspace}\n`}`;

  test.each([
    ['/etc', 'path: /etc is, or lies in, the system directory /etc'],
    ['/proc/self/cwd', 'path: /proc/self/cwd is, or lies in, the system directory /proc'],
    ['/dev/shm', 'path: /dev/shm is, or lies in, the system directory /dev'],
    ['/tmp/shared', 'path: /tmp/shared is, or lies in, the system directory /tmp'],
    ['/var', 'path: /var is, or lies in, the system directory /var'],
    ['/srv', 'path: the directory of the lease log /srv/xce-lease lies in it'],
    ['/srv/xce-lease/jobs', 'path: it lies in the directory of the lease log /srv/xce-lease'],
    ['/var/lib/xce-sandbox', 'path: the state directory /var/lib/xce-sandbox/main lies in it'],
  ])('a storage at %s is refused', (path, reason) => {
    expect(refusalOf(storage(path)).message).toContain(`12: [storage s] ${reason}`);
  });

  test.each(['/srv/xce', '/srv/xce-lease2', '/etcetera', '/var/scratch', '/home'])(
    'a storage at %s is accepted',
    (path) => {
      expect(refusalOf(storage(path)).code).toBe('accepted');
    },
  );

  test.each(['/scratch2/xce', '/scratch', '/other'])(
    'the workspace %s does not lie below /scratch',
    (workspace) => {
      expect(refusalOf(storage('/scratch', workspace)).message).toBe(
        `${FILE}:13: [storage s] workspace: ${workspace} does not lie below the path /scratch`,
      );
    },
  );

  test('two storages of one path are refused', () => {
    expect(refusalOf(`${storage('/scratch')}[storage t]\npath = /scratch\n`).message).toBe(
      `${FILE}:14: [storage t] path: /scratch is the path of [storage s] already`,
    );
  });

  test('the 65th storage is refused', () => {
    const sections = Array.from({ length: 65 }, (_, index) => `[storage s${index}]\npath = /s${index}\n`);
    expect(refusalOf(MINIMAL + sections.join('')).message).toBe(
      `${FILE}:139: there are more than 64 [storage] sections`,
    );
  });

  test('a control uid in the pool is refused', () => {
    expect(refusalOf(withLine('control_uid = 1001', 'control_uid = 70000')).message).toBe(
      `${FILE}:6: [directory] control_uid 70000 lies in the pool; it must be somebody who always exists`,
    );
  });

  test('a drain that ends before its steps may is refused', () => {
    expect(refusalOf(`${MINIMAL}[sandbox]\nstop_timeout = 30s\n`).message).toContain(
      '[worker] drain_timeout 30s must be longer than [sandbox] stop_timeout 30s',
    );
  });
});

describe('the pool', () => {
  const poolMessage = (range: string, more = ''): string => {
    const { code, message } = refusalOf(withLine('range = 70000-79999', `range = ${range}`) + more);
    return `${code} ${message.replace(`${FILE}:4: [pool] range `, '')}`;
  };

  test.each([
    ['61000-61500', "61000-61500: 61184-61500 belongs to systemd's dynamic users (61184-65519)"],
    ['61000-61184', "61000-61184: 61184 belongs to systemd's dynamic users (61184-65519)"],
    ['60513-60513', '60513: 60513 belongs to systemd-homed (60001-60513)'],
    [
      '60514-60600',
      '60514-60600: 60514-60577 belongs to host users that systemd-nspawn maps into containers (60514-60577)',
    ],
    [
      '65530-65536',
      '65530-65536: 65534 belongs to nobody (65534), 65535 belongs to the 16-bit uid -1 (65535)',
    ],
    ['500-600', '500-600: 500-600 belongs to system accounts (1-999)'],
    [
      '500000-600000',
      '500000-600000: 524288-600000 belongs to systemd-nspawn containers (524288-1879048191)',
    ],
    [
      '2147352576-2147352580',
      "2147352576-2147352580: 2147352576-2147352580 belongs to systemd's foreign uids (2147352576-2147418111)",
    ],
    [
      '3000000000-3000000001',
      '3000000000-3000000001: 3000000000-3000000001 belongs to ids above the supported maximum 2147483647 (2147483648-9999999999)',
    ],
    [
      '2147483647-2147483648',
      '2147483647-2147483648: 2147483648 belongs to ids above the supported maximum 2147483647 (2147483648-9999999999)',
    ],
  ])('%s is refused with the part that is taken and its owner', (range, expected) => {
    expect(poolMessage(range)).toBe(`pool-range ${expected}`);
  });

  test.each(['60578-61183', '65520-65533', '65536-99999', '70000-79999', '2147483647-2147483647'])(
    '%s is accepted',
    (range) => {
      expect(poolMessage(range)).toBe('accepted ');
    },
  );

  test('a range that the site declares is taken', () => {
    const text = MINIMAL.replace('control_uid = 1001\n', 'control_uid = 1001\nranges = 1-2 75000-75009\n');
    expect(refusalOf(text).message).toContain('75000-75009 belongs to [directory] ranges (75000-75009)');
  });
});

describe('what a job may use', () => {
  const decoded = (line: string): unknown => {
    const text = `${MINIMAL}[sandbox]\n${line}\n`;
    const { code, message } = refusalOf(text);
    return code === 'accepted' ? decodeText(text).settings.sandbox : message;
  };

  test.each([
    ['cpu_quota = 50%', { cpuPercent: 50 }],
    ['cpus = 8,0-2', { cpus: [0, 1, 2, 8] }],
    ['memory_max = 16M', { memoryBytes: 16 << 20 }],
    ['stack = infinity', { stackBytes: null }],
    ['network_allow = 10.0.0.2 fd00::/8', { networkAllow: [{ prefix: 32 }, { prefix: 8 }] }],
    ['devices = /dev/infiniband/*', { devices: ['/dev/infiniband/*'] }],
  ])('%s is accepted', (line, expected) => {
    expect(decoded(line)).toMatchObject(expected);
  });

  test.each([
    ['cpu_quota = 50', /a share of processors/],
    ['cpu_quota = 0%', /a share of processors/],
    ['cpus = 2-1', /a list of processors/],
    ['cpus = 0-2,1', /names processor 1 twice/],
    ['cpus = 0-8192', /a list of processors/],
    ['memory_max = 15M', /less than 16M/],
    ['stack = 4M', /less than 8M/],
    ['network = closed', /"job-nodes" or "open"/],
    ['network_names = ib', /%n for the name/],
    ['network_allow = host.example', /an address or a network/],
    ['network_allow = 10.0.0.0/33', /an address or a network/],
    ['path = /usr/bin:bin', /an absolute path/],
    ['devices = /dev/*/x', /letters, digits/],
    ['devices = /dev/a*b*', /letters, digits/],
    ['devices = /etc/*', /below \/dev/],
  ])('%s is refused', (line, expected) => {
    expect(decoded(line)).toMatch(expected);
  });

  test('an environment has variables of its own, and none that the sandbox sets', () => {
    const of = (lines: string): string => refusalOf(`${MINIMAL}${lines}`).message;
    expect(of('[environment gcc]\nPATH = /opt/gcc/bin\nmodulepath = /opt\n')).toBe('');
    expect(of('[environment Gcc]\nPATH = /x\n')).toMatch(/does not name an environment/);
    expect(of('[environment gcc]\nHOME = /x\n')).toMatch(/HOME: every sandbox sets it itself/);
    expect(of('[environment gcc]\nXCE_TASK = 1\n')).toMatch(/XCE_TASK: names that begin with XCE_ are/);
    expect(of('[environment gcc]\na-b = /x\n')).toMatch(/is not the name of a variable/);
  });
});
