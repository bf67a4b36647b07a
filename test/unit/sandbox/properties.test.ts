import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import type { Attempt, InstanceName, JobId, LeaseNumber, Uid } from '../../../src/base/ids.ts';
import type { DbusValue } from '../../../src/os/dbus-wire.ts';
import { encodeCall } from '../../../src/os/dbus-wire.ts';
import { boxPaths } from '../../../src/sandbox/box.ts';
import { sandboxNames } from '../../../src/sandbox/names.ts';
import {
  anchorUnit,
  deadlineUnits,
  sliceUnit,
  stepUnit,
  type UnitDraft,
  type UnitFacts,
} from '../../../src/sandbox/properties.ts';

const lease = 7 as LeaseNumber;
const names = sandboxNames({
  instance: 'main' as InstanceName,
  job: '42' as JobId,
  attempt: 0 as Attempt,
  lease,
});
const facts: UnitFacts = {
  uid: 70_001 as Uid,
  names,
  box: boxPaths('/run/xce-sandbox/main', lease),
  workspace: '/scratch/xce/main/42.0',
  writablePaths: [],
  allowance: {
    cpuPercent: null,
    cpus: null,
    memoryBytes: null,
    tasks: 4096,
    devices: [],
    profile: null,
  },
  devices: [],
  network: null,
  resolverFiles: [],
  settings: {
    tasksMax: 4096,
    cpuPercent: null,
    cpus: null,
    memoryBytes: null,
    tmpBytes: 1,
    tmpInodes: 1,
    shmBytes: 1,
    memlock: 'infinity',
    stackBytes: 8 << 20,
    stopTimeoutMs: 5000,
    network: 'open',
    networkNames: ['%n'],
    networkAllow: [],
    path: '/usr/bin:/bin',
    devices: [],
    groups: [],
    passEnvironment: [],
  },
};
const ANCHOR = 'xce-main-7.42.0.anchor.service';
const BOX = '/run/xce-sandbox/main/box/7';

const plain = (value: DbusValue): unknown => {
  if (typeof value === 'bigint') return Number(value);
  return Array.isArray(value) ? (value as readonly DbusValue[]).map(plain) : value;
};
/** `name:type` and the bare value. */
const listed = (draft: UnitDraft): [string, unknown][] =>
  draft.properties.map(([name, { signature, value }]) => [`${name}:${signature}`, plain(value)]);
const valueIn = (draft: UnitDraft, key: string): unknown => listed(draft).find(([name]) => name === key)?.[1];
const argvOf = (draft: UnitDraft): string[] => {
  const [[, argv]] = valueIn(draft, 'ExecStart:a(sasb)') as [[string, string[], string[]]];
  return argv;
};

/** What systemd makes of a word of a command: `$$` is `$`, anything else after `$` would be replaced. */
const asExpanded = (word: string): string => {
  if (/(^|[^$])(\$\$)*\$([^$]|$)/.test(word)) throw new Error(`systemd would expand ${word}`);
  return word.replaceAll('$$', '$');
};

const CONFINEMENT: [string, unknown][] = [
  ['User:s', '70001'],
  ['Group:s', '70001'],
  ['NoNewPrivileges:b', true],
  ['CapabilityBoundingSet:t', 0],
  ['AmbientCapabilities:t', 0],
  ['RestrictSUIDSGID:b', true],
  ['KeyringMode:s', 'private'],
  ['LockPersonality:b', true],
  ['RestrictNamespaces:t', 0],
  ['RestrictRealtime:b', true],
  ['RestrictAddressFamilies:(bas)', [true, ['AF_UNIX', 'AF_INET', 'AF_INET6', 'AF_NETLINK']]],
  ['SystemCallArchitectures:as', ['native']],
  ['SystemCallErrorNumber:i', 1],
  ['SystemCallFilter:(bas)', [true, ['@system-service']]],
  ['SystemCallFilter:(bas)', [false, ['@keyring', 'io_uring_setup', 'io_uring_enter', 'io_uring_register']]],
  ['ProtectSystem:s', 'strict'],
  ['ProtectHome:s', 'yes'],
  ['ProtectProc:s', 'invisible'],
  ['ProtectKernelTunables:b', true],
  ['ProtectKernelModules:b', true],
  ['ProtectKernelLogs:b', true],
  ['ProtectControlGroups:b', true],
  ['ProtectClock:b', true],
  ['ProtectHostname:b', true],
  ['PrivateDevices:b', true],
  ['PrivateIPC:b', true],
  ['RemoveIPC:b', true],
  ['TemporaryFileSystem:a(ss)', [['/run', 'ro,mode=0755']]],
  [
    'BindReadOnlyPaths:a(ssbt)',
    [
      ['/run/userdb', '/run/userdb', false, 16_384],
      [BOX, '/run/xce', false, 0],
    ],
  ],
  [
    'BindPaths:a(ssbt)',
    [
      [`${BOX}/scratch/home`, '/run/xce/home', false, 16_384],
      [`${BOX}/scratch/tmp`, '/tmp', false, 16_384],
      [`${BOX}/scratch/var-tmp`, '/var/tmp', false, 16_384],
      [`${BOX}/shm`, '/dev/shm', false, 16_384],
    ],
  ],
  ['ReadWritePaths:as', ['/scratch/xce/main/42.0']],
  ['DeviceAllow:a(ss)', []],
  ['DevicePolicy:s', 'closed'],
  ['LimitNPROC:t', 4096],
  ['LimitMEMLOCK:t', 2 ** 64],
  ['LimitSTACK:t', 2 ** 64],
  ['LimitSTACKSoft:t', 8 << 20],
  ['LimitCORE:t', 0],
  ['UMask:u', 0o077],
  ['IgnoreSIGPIPE:b', false],
  ['TimeoutStopUSec:t', 5_000_000],
  ['SendSIGKILL:b', true],
  ['KillMode:s', 'control-group'],
  ['OOMPolicy:s', 'kill'],
  ['CollectMode:s', 'inactive-or-failed'],
  ['Environment:as', ['LC_ALL=C']],
];

describe('the properties of a step', () => {
  const step = stepUnit(facts, 'a1', 'a1.0123');

  test('are all of this list', () => {
    expect(step.name).toBe('xce-main-7.42.0.step.a1.service');
    expect(listed(step)).toEqual([
      ['Description:s', 'xce-main-7.42.0: step a1'],
      ['Slice:s', 'xce-main-7.42.0.slice'],
      ['Type:s', 'exec'],
      ['Requisite:as', [ANCHOR]],
      ['BindsTo:as', [ANCHOR]],
      ['After:as', [ANCHOR]],
      ['JoinsNamespaceOf:as', [ANCHOR]],
      ['TimeoutStartUSec:t', 60_000_000],
      ['StandardInputFileDescriptor:h', 0],
      ['StandardOutputFileDescriptor:h', 1],
      ['StandardErrorFileDescriptor:h', 2],
      ...CONFINEMENT,
      ['ExecStart:a(sasb)', [['/bin/bash', argvOf(step), false]]],
    ]);
  });

  test('carry no word that a job chose, and run nothing as root', () => {
    expect(argvOf(step).slice(3)).toEqual(['bash', '70001', '/run/xce/input/a1.0123']);
    expect(asExpanded(argvOf(step)[2] ?? '')).toContain('exec /usr/bin/env "${a[@]:1}"');
    const odd = { ...facts, workspace: '/scratch/$HOME/${x}$$' };
    expect(argvOf(anchorUnit(odd)).map(asExpanded).slice(-4, -2)).toEqual(['/scratch/$HOME/${x}$$', 'open']);
    expect(listed(step).filter(([name]) => name.startsWith('Exec'))).toHaveLength(1);
  });

  test('name groups, devices, resolver files and writable paths as they are', () => {
    const odd = '/scratch/a b:"c"\\$x%n';
    const more = stepUnit(
      {
        ...facts,
        workspace: null,
        writablePaths: [odd],
        devices: ['/dev/infiniband/uverbs0'],
        resolverFiles: ['/run/systemd/resolve/stub-resolv.conf'],
        settings: { ...facts.settings, groups: ['rdma', 'video'], memlock: '67108864' },
      },
      'a',
      'a.1',
    );
    expect(valueIn(more, 'SupplementaryGroups:as')).toEqual(['rdma', 'video']);
    expect(valueIn(more, 'DeviceAllow:a(ss)')).toEqual([['/dev/infiniband/uverbs0', 'rw']]);
    expect(valueIn(more, 'BindPaths:a(ssbt)')).toContainEqual([
      '/dev/infiniband/uverbs0',
      '/dev/infiniband/uverbs0',
      false,
      16_384,
    ]);
    expect(valueIn(more, 'BindReadOnlyPaths:a(ssbt)')).toContainEqual([
      '/run/systemd/resolve/stub-resolv.conf',
      '/run/systemd/resolve/stub-resolv.conf',
      false,
      16_384,
    ]);
    expect(valueIn(more, 'ReadWritePaths:as')).toEqual([odd]);
    expect(valueIn(more, 'LimitMEMLOCK:t')).toBe(67_108_864);
  });
});

describe('the anchor', () => {
  test('is confined as a step is, so that prepare proves what steps need', () => {
    const anchor = anchorUnit(facts);
    expect(listed(anchor)).toEqual([
      ['Description:s', 'xce-main-7.42.0: the sandbox'],
      ['Slice:s', 'xce-main-7.42.0.slice'],
      ['Type:s', 'oneshot'],
      ['RemainAfterExit:b', true],
      ['TimeoutStartUSec:t', 30_000_000],
      ...CONFINEMENT,
      ['ExecStart:a(sasb)', [['/bin/bash', argvOf(anchor), false]]],
    ]);
    const limits = ['unlimited unlimited', '8388608 unlimited'];
    expect(argvOf(anchor).slice(3)).toEqual(['bash', '70001', '/scratch/xce/main/42.0', 'open', ...limits]);
  });

  test('tells limits that systemd has not set as it was told, and goes on', () => {
    const limits = readFileSync('/proc/self/limits', 'latin1');
    const own = (name: string): string =>
      new RegExp(`^${name} +(\\S+) +(\\S+) `, 'm').exec(limits)?.slice(1).join(' ') ?? '';
    const [script = ''] = argvOf(anchorUnit(facts)).map(asExpanded).slice(2);
    const run = (memlock: string, stack: string): string =>
      spawnSync('/bin/bash', ['-c', script, 'bash', '70001', '', 'open', memlock, stack]).stderr.toString();
    const [memlock, stack] = [own('Max locked memory'), own('Max stack size')];
    // Nothing has dropped the privileges of this process.
    const last = /^xce-sandbox: the drop of privileges is not complete .*\n$/;
    expect(run(memlock, stack)).toMatch(last);
    const [first, second, rest] = run('77 77', '88 99').split('\n');
    expect(second).toContain(
      `[sandbox] memlock is not kept: a job gets ${memlock}, not 77 77 (soft and hard, in bytes);`,
    );
    expect(first).toContain(
      `[sandbox] stack is not kept: a job gets ${stack}, not 88 99 (soft and hard, in bytes);`,
    );
    expect(`${rest}\n`).toMatch(last);
  });
});

describe('the deadline', () => {
  test('stops the anchor by the monotonic clock and goes with it', () => {
    const [timer, service] = deadlineUnits(names, 0, 1500.2);
    expect(timer.name).toBe('xce-main-7.42.0.deadline.timer');
    expect(listed(timer)).toEqual([
      ['Description:s', 'xce-main-7.42.0: the deadline'],
      ['TimersMonotonic:a(st)', [['OnActiveSec', 1_500_200]]],
      ['AccuracyUSec:t', 100_000],
      ['RemainAfterElapse:b', false],
      ['BindsTo:as', [ANCHOR]],
      ['After:as', [ANCHOR]],
      ['CollectMode:s', 'inactive-or-failed'],
    ]);
    expect(service.name).toBe('xce-main-7.42.0.deadline.service');
    expect(argvOf(service)).toEqual(['/usr/bin/systemctl', 'stop', '--no-block', ANCHOR]);
  });

  test('is never a span of nothing, which would be none', () => {
    for (const ms of [0, -5, 0.0001]) {
      expect(valueIn(deadlineUnits(names, 1, ms)[0], 'TimersMonotonic:a(st)')).toEqual([['OnActiveSec', 1]]);
    }
  });
});

const limited: UnitFacts = {
  ...facts,
  allowance: { ...facts.allowance, cpuPercent: 250, cpus: [0, 3, 9], memoryBytes: 1 << 30, tasks: 64 },
  network: [
    { address: '10.77.0.12', prefix: 32 },
    { address: 'fd00::1:2', prefix: 64 },
  ],
};

describe('the limits of a job', () => {
  test('stand on its slice, so that all its steps share them', () => {
    const slice = sliceUnit(names, 'job', limited.allowance);
    expect(listed(slice).slice(2)).toEqual([
      ['TasksMax:t', 64],
      ['CPUQuotaPerSecUSec:t', 2_500_000],
      ['AllowedCPUs:ay', [0b1001, 0b10]],
      ['MemoryMax:t', 1 << 30],
      ['MemorySwapMax:t', 0],
    ]);
    expect(listed(sliceUnit(names, 'job', facts.allowance)).slice(2)).toEqual([['TasksMax:t', 4096]]);
    expect(valueIn(stepUnit(limited, 'b', 'b.1'), 'LimitNPROC:t')).toBe(64);
  });

  test('of its network are the list, half of the loopback addresses, and nothing else', () => {
    for (const unit of [anchorUnit(limited), stepUnit(limited, 'b', 'b.1')]) {
      expect(valueIn(unit, 'IPAddressDeny:a(iayu)')).toEqual([
        [2, [0, 0, 0, 0], 0],
        [10, Array(16).fill(0), 0],
      ]);
      expect(valueIn(unit, 'IPAddressAllow:a(iayu)')).toEqual([
        [2, [127, 0, 0, 0], 9],
        [10, [...Array(15).fill(0), 1], 128],
        [2, [10, 77, 0, 12], 32],
        [10, [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2], 64],
      ]);
    }
    expect(argvOf(anchorUnit(limited)).at(-3)).toBe('limited');
  });
});

test('every property can be sent', () => {
  const drafts = [stepUnit(facts, 'a', 'a.1'), anchorUnit(facts), ...deadlineUnits(names, 0, 1)];
  for (const draft of [
    ...drafts,
    sliceUnit(names, 'a "b"', limited.allowance),
    stepUnit(limited, 'b', 'b.1'),
  ]) {
    const bytes = encodeCall(
      {
        destination: 'x',
        path: '/',
        interface: 'x',
        member: 'x',
        signature: 'a(sv)',
        body: [draft.properties],
      },
      1,
      0,
    );
    expect(bytes.length).toBeGreaterThan(100);
  }
});
