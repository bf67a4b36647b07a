import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { decodeConfig } from '../../../src/config/decode.ts';
import { KEYS, STORAGE_KEYS } from '../../../src/config/keys.ts';
import { decodeText, FILE, MINIMAL, refusalOf, withLine } from './sample.ts';

describe('a good file', () => {
  test('the smallest one gives every default', () => {
    expect(decodeText(MINIMAL).settings).toEqual({
      cluster: { name: 'hpc', instance: 'main', pki: '/etc/xce-sandbox/pki' },
      pool: { first: 70_000, last: 79_999 },
      directory: { controlUid: 1001, ranges: [], timeoutMs: 5000 },
      lease: {
        directory: '/srv/xce-lease',
        storage: 'shared',
        probeListen: { address: '0.0.0.0', port: 7714 },
        lockTimeoutMs: 10_000,
        storageTimeoutMs: 30_000,
        skewMs: 5000,
        ttlMs: 3_600_000,
        rememberDays: 30,
      },
      nodes: { hosts: ['n1', 'n2', 'n3'], port: 7713, connectTimeoutMs: 5000, requestTimeoutMs: 60_000 },
      worker: {
        node: 'n1',
        listen: { address: '0.0.0.0', port: 7713 },
        stateDirectory: '/var/lib/xce-sandbox/main',
        runDirectory: '/run/xce-sandbox/main',
        drainTimeoutMs: 30_000,
      },
      sandbox: {
        tasksMax: 4096,
        cpuPercent: null,
        cpus: null,
        memoryBytes: null,
        tmpBytes: 2 ** 30,
        tmpInodes: 100_000,
        shmBytes: 2 ** 30,
        memlock: String(64 * 2 ** 20),
        stackBytes: 8 * 2 ** 20,
        stopTimeoutMs: 5000,
        network: 'job-nodes',
        networkNames: ['%n'],
        networkAllow: [],
        path: '/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin',
        devices: [],
        groups: [],
        passEnvironment: [],
      },
      storage: [],
      environments: [],
      hooks: {
        scheduler: null,
        deadlineMs: 300_000,
        graceMs: 600_000,
        drain: undefined,
        own: {
          job: 'XCE_JOB_ID',
          attempt: 'XCE_JOB_ATTEMPT',
          uid: 'XCE_JOB_UID',
          nodes: 'XCE_JOB_NODES',
          ends: 'XCE_JOB_END_TIME',
        },
      },
      mpi: { interfaces: [], agentTimeoutMs: 30_000 },
    });
  });

  test('every value of the file arrives in its own unit', () => {
    const { settings } = decodeText(
      `# a comment, don't "touch
; another = one [x]
[cluster]
name = hpc-1
instance = night
pki = /etc/xce-sandbox/keys
[pool]
range = 60600-60700
[directory]
control_uid = 5000
ranges = 200000-299999, 300000-399999 400000-400000
timeout = 250ms
[lease]
directory = /srv/xce-lease
storage = local
probe_listen = 10.1.0.1
lock_timeout = 2m
storage_timeout = 40s
skew = 1s
ttl = 7d
remember = 90d
[nodes]
hosts = rack[1-2]n[01-02]
port = 7000
connect_timeout = 2s
request_timeout = 10m
[worker]
node = rack1n01.cluster.example
listen = [fd00::1]:7001
state_directory = /var/lib/xce
run_directory = /run/xce
drain_timeout = 5m
[sandbox]
tasks_max = 100000
cpu_quota = 6400%
cpus = 0-2,8
memory_max = 256G
tmp_size = 512M
tmp_inodes = 5000
shm_size = 16G
memlock = infinity
stack = infinity
stop_timeout = 1m
network = job-nodes
network_names = %n %n-ib
network_allow = 10.2.0.0/16 fd00::5
path = /opt/bin:/usr/bin
devices = /dev/infiniband/uverbs* /dev/nvidia0
groups = rdma
pass_environment = OMP_NUM_THREADS,LANG
[environment gcc-13]
PATH = /opt/gcc-13/bin:/usr/bin
MODULEPATH = "/opt/modules; /site"
[storage scratch]
path = /scratch
workspace = /scratch/xce
local = yes
[storage proj-2]
path = /proj
[hooks]
scheduler = xce
deadline = 90s
grace = 2m
drain = /opt/site/drain
xce_job = SITE_JOB
xce_attempt = SITE_TRY
xce_submitter = SITE_UID
xce_nodes = SITE_NODES
xce_end = SITE_END

[mpi]
interfaces = ib0, 10.1.0.0/16
agent_timeout = 45s
`,
    );
    expect(settings).toEqual({
      cluster: { name: 'hpc-1', instance: 'night', pki: '/etc/xce-sandbox/keys' },
      pool: { first: 60_600, last: 60_700 },
      directory: {
        controlUid: 5000,
        ranges: [
          { first: 200_000, last: 299_999 },
          { first: 300_000, last: 399_999 },
          { first: 400_000, last: 400_000 },
        ],
        timeoutMs: 250,
      },
      lease: {
        directory: '/srv/xce-lease',
        storage: 'local',
        probeListen: { address: '10.1.0.1', port: 7714 },
        lockTimeoutMs: 120_000,
        storageTimeoutMs: 40_000,
        skewMs: 1000,
        ttlMs: 604_800_000,
        rememberDays: 90,
      },
      nodes: {
        hosts: ['rack1n01', 'rack1n02', 'rack2n01', 'rack2n02'],
        port: 7000,
        connectTimeoutMs: 2000,
        requestTimeoutMs: 600_000,
      },
      worker: {
        node: 'rack1n01.cluster.example',
        listen: { address: 'fd00::1', port: 7001 },
        stateDirectory: '/var/lib/xce/night',
        runDirectory: '/run/xce/night',
        drainTimeoutMs: 300_000,
      },
      sandbox: {
        tasksMax: 100_000,
        cpuPercent: 6400,
        cpus: [0, 1, 2, 8],
        memoryBytes: 256 * 2 ** 30,
        tmpBytes: 512 * 2 ** 20,
        tmpInodes: 5000,
        shmBytes: 16 * 2 ** 30,
        memlock: 'infinity',
        stackBytes: null,
        stopTimeoutMs: 60_000,
        network: 'job-nodes',
        networkNames: ['%n', '%n-ib'],
        networkAllow: [
          { address: '10.2.0.0', prefix: 16 },
          { address: 'fd00::5', prefix: 128 },
        ],
        path: '/opt/bin:/usr/bin',
        devices: ['/dev/infiniband/uverbs*', '/dev/nvidia0'],
        groups: ['rdma'],
        passEnvironment: ['OMP_NUM_THREADS', 'LANG'],
      },
      storage: [
        { name: 'scratch', path: '/scratch', workspace: '/scratch/xce', local: true },
        { name: 'proj-2', path: '/proj', workspace: undefined, local: false },
      ],
      environments: [
        {
          name: 'gcc-13',
          variables: [
            { name: 'PATH', value: '/opt/gcc-13/bin:/usr/bin' },
            { name: 'MODULEPATH', value: '/opt/modules; /site' },
          ],
        },
      ],
      hooks: {
        scheduler: 'xce',
        deadlineMs: 90_000,
        graceMs: 120_000,
        drain: '/opt/site/drain',
        own: {
          job: 'SITE_JOB',
          attempt: 'SITE_TRY',
          uid: 'SITE_UID',
          nodes: 'SITE_NODES',
          ends: 'SITE_END',
        },
      },
      mpi: { interfaces: ['ib0', '10.1.0.0/16'], agentTimeoutMs: 45_000 },
    });
  });

  test.each([
    ['a byte order mark and CRLF', `\ufeff${MINIMAL.replaceAll('\n', '\r\n')}`],
    ['no line end at the end', MINIMAL.trimEnd()],
    ['blanks around values', withLine('range = 70000-79999', '  range\t=   70000-79999  ')],
    ['blanks behind a section', withLine('[pool]', '[pool] \t')],
    ['a value in double quotes', withLine('directory = /srv/xce-lease', 'directory = "/srv/xce-lease"')],
    ['no blanks around =', withLine('name = hpc', 'name=hpc')],
    ['a comment with an unclosed quote', `# don't "touch\n  ; nor 'this\n${MINIMAL}`],
  ])('%s changes nothing', (_claim, text) => {
    expect(decodeText(text).settings).toEqual(decodeText(MINIMAL).settings);
  });

  test('the port of the listener follows the port of the nodes', () => {
    const text = withLine('hosts = n[1-3]', 'hosts = n[1-3]\nport = 9000\n[worker]\nlisten = 10.0.0.1');
    expect(decodeText(text).settings.worker.listen).toEqual({ address: '10.0.0.1', port: 9000 });
  });
});

describe('origins', () => {
  test('each key says its value and the line or default that it came from', () => {
    const { origins } = decodeText(`${MINIMAL}[storage scratch]\npath = /scratch\n`);
    const find = (section: string, key: string): unknown =>
      origins.find((origin) => origin.section === section && origin.key === key);
    expect(find('pool', 'range')).toEqual({
      section: 'pool',
      key: 'range',
      value: '70000-79999',
      from: `${FILE}:4`,
    });
    expect(find('lease', 'ttl')).toEqual({ section: 'lease', key: 'ttl', value: '1h', from: 'default' });
    expect(find('worker', 'node')).toEqual({
      section: 'worker',
      key: 'node',
      value: 'n1',
      from: 'host name',
    });
    expect(find('storage scratch', 'path')).toMatchObject({ value: '/scratch', from: `${FILE}:12` });
    expect(find('storage scratch', 'workspace')).toMatchObject({ value: null, from: 'default' });
  });

  test('every key of the table has exactly one origin', () => {
    const names = decodeText(`${MINIMAL}[storage s]\npath = /s\n`).origins.map(
      ({ section, key }) => `${section} ${key}`,
    );
    const expected = [
      ...Object.entries(KEYS).flatMap(([section, keys]) =>
        Object.keys(keys).map((key) => `${section} ${key}`),
      ),
      ...Object.keys(STORAGE_KEYS).map((key) => `storage s ${key}`),
    ];
    expect(names.toSorted()).toEqual(expected.toSorted());
  });
});

describe('required keys', () => {
  test.each([
    ['name = hpc', '[cluster] name'],
    ['range = 70000-79999', '[pool] range'],
    ['control_uid = 1001', '[directory] control_uid'],
    ['directory = /srv/xce-lease', '[lease] directory'],
    ['hosts = n[1-3]', '[nodes] hosts'],
  ])('without %s there is no configuration', (line, name) => {
    const lineOfSection = withLine(line, '').split('\n').indexOf('');
    expect(refusalOf(withLine(line, ''))).toEqual({
      code: 'config-value',
      message: `${FILE}:${lineOfSection}: ${name} is missing; it has no default`,
    });
  });

  test('an empty file is refused with everything that it lacks', () => {
    const { code, message } = refusalOf('');
    expect(code).toBe('config-value');
    expect(message).toBe(
      `${FILE}: 5 faults: [cluster] name is missing; it has no default; [pool] range is missing; it has no default; ` +
        '[directory] control_uid is missing; it has no default; [lease] directory is missing; it has no default; ' +
        '[nodes] hosts is missing; it has no default',
    );
  });

  test('a storage without a path is refused', () => {
    expect(refusalOf(`${MINIMAL}[storage s]\n`).message).toBe(
      `${FILE}:11: [storage s] path is missing; it has no default`,
    );
  });

  test('a host name that is no node name is refused, unless the file names the node', () => {
    const decode = (text: string): unknown =>
      decodeConfig(Buffer.from(text), FILE, 'bad host').settings.worker.node;
    expect(() => decode(MINIMAL)).toThrow('the host name "bad host" is not a node name; set [worker] node');
    expect(decode(`${MINIMAL}[worker]\nnode = n2\n`)).toBe('n2');
  });
});

describe('faults', () => {
  test('all of them are told with their lines, syntax and values alike', () => {
    const text = `stray = 1
[cluster]
name = h p c
[pool]
range = 70000-79999 ; ours
[lease]
directory = srv
directory = /srv
[nodes]
hosts = n[1-
[bogus]
[directory]
control_uid = 0x10
`;
    try {
      decodeText(text);
      expect.unreachable();
    } catch (error) {
      expect(error).toBeInstanceOf(XceError);
      if (!(error instanceof XceError)) return;
      expect(error.code).toBe('config-syntax');
      expect(error.exitStatus).toBe(78);
      expect(error.facts.at).toBe(`${FILE}:1`);
      const faults = error.facts.detail?.['faults'] as readonly { line: number }[];
      expect(faults.map(({ line }) => line)).toEqual([1, 3, 5, 7, 8, 10, 11, 13]);
      expect(error.message).toContain(
        'line 8: "directory" is set in line 7 already; line 10: [nodes] hosts: ',
      );
      expect(error.message).not.toContain('\n');
      expect(error.message).not.toContain('is missing');
    }
  });

  test('a file full of faults is told in part and counted in full', () => {
    const { message } = refusalOf(`${MINIMAL}${'junk\n'.repeat(500)}`);
    expect(message).toMatch(/: 500 faults: .*; and 450 more$/);
    expect(message.length).toBeLessThan(8000);
  });
});
