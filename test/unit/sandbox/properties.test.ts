import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { Attempt, InstanceName, JobId, LeaseNumber, Uid } from '../../../src/base/ids.ts';
import { boxPaths } from '../../../src/sandbox/box.ts';
import { sandboxNames } from '../../../src/sandbox/names.ts';
import {
  anchorArguments,
  deadlineArguments,
  quoteWord,
  sliceArguments,
  stepArguments,
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
  devices: [],
  resolverFiles: [],
  settings: {
    tasksMax: 4096,
    tmpBytes: 1,
    tmpInodes: 1,
    shmBytes: 1,
    memlock: 'infinity',
    stopTimeoutMs: 5000,
    devices: [],
    groups: [],
    passEnvironment: [],
  },
};
const properties = (argv: readonly string[]): string[] =>
  argv.filter((one) => one.startsWith('--property=')).map((one) => one.slice('--property='.length));
const commandOf = (argv: readonly string[]): string[] => argv.slice(argv.indexOf('--') + 1);
/** What systemd makes of an argument: `$$` is `$`, `$NAME` and `${NAME}` vanish here. */
const asExpanded = (text: string): string => {
  let result = '';
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] !== '$') result += text[at];
    else if (text[at + 1] === '$') {
      result += '$';
      at += 1;
    } else throw new Error(`systemd would expand ${text.slice(at, at + 10)}`);
  }
  return result;
};

describe('the properties of a step', () => {
  const argv = stepArguments(facts, 'a1', 'begin', 'a1.0123');

  test('are all of this list', () => {
    expect(properties(argv)).toEqual([
      'Type=exec',
      'Requisite=xce-main-7.42.0.anchor.service',
      'BindsTo=xce-main-7.42.0.anchor.service',
      'After=xce-main-7.42.0.anchor.service',
      'JoinsNamespaceOf=xce-main-7.42.0.anchor.service',
      'TimeoutStartSec=60s',
      'Environment=LC_ALL=C',
      'User=70001',
      'Group=70001',
      'NoNewPrivileges=yes',
      'CapabilityBoundingSet=',
      'AmbientCapabilities=',
      'RestrictSUIDSGID=yes',
      'KeyringMode=private',
      'LockPersonality=yes',
      'RestrictNamespaces=yes',
      'RestrictRealtime=yes',
      'RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK',
      'SystemCallArchitectures=native',
      'SystemCallErrorNumber=EPERM',
      'SystemCallFilter=@system-service',
      'SystemCallFilter=~@keyring io_uring_setup io_uring_enter io_uring_register',
      'ProtectSystem=strict',
      'ProtectHome=yes',
      'ProtectProc=invisible',
      'ProtectKernelTunables=yes',
      'ProtectKernelModules=yes',
      'ProtectKernelLogs=yes',
      'ProtectControlGroups=yes',
      'ProtectClock=yes',
      'ProtectHostname=yes',
      'PrivateDevices=yes',
      'PrivateIPC=yes',
      'RemoveIPC=yes',
      'TemporaryFileSystem=/run:ro,mode=0755',
      'BindReadOnlyPaths=/run/userdb',
      'BindReadOnlyPaths="/run/xce-sandbox/main/box/7":/run/xce:norbind',
      'BindPaths="/run/xce-sandbox/main/box/7/result":/run/xce/result',
      'BindPaths="/run/xce-sandbox/main/box/7/scratch/home":/run/xce/home',
      'BindPaths="/run/xce-sandbox/main/box/7/scratch/tmp":/tmp',
      'BindPaths="/run/xce-sandbox/main/box/7/scratch/var-tmp":/var/tmp',
      'BindPaths="/run/xce-sandbox/main/box/7/shm":/dev/shm',
      'ReadWritePaths="/scratch/xce/main/42.0"',
      'LimitNPROC=4096',
      'LimitMEMLOCK=infinity',
      'LimitCORE=0',
      'UMask=0077',
      'IgnoreSIGPIPE=no',
      'TimeoutStopSec=5000ms',
      'SendSIGKILL=yes',
      'KillMode=control-group',
      'CollectMode=inactive-or-failed',
      expect.stringMatching(/^ExecStop=\+:\/bin\/sh -c '.*' sh \/run\/xce\/result\/a1\.0123\.stopped$/),
      expect.stringMatching(/^ExecStopPost=\+:\/bin\/sh -c '.*' sh \/run\/xce\/result\/a1\.0123$/),
    ]);
  });

  test('set no variable but the locale, because the hooks of the unit run as root with the same ones', () => {
    expect(
      properties(argv).filter((one) => /^(Environment|PassEnvironment|EnvironmentFile)/.test(one)),
    ).toEqual(['Environment=LC_ALL=C']);
  });

  test('carry no word that a job chose', () => {
    expect(commandOf(argv).slice(3)).toEqual(['bash', '70001', 'begin', '/run/xce/input/a1.0123']);
  });

  test('leave nothing in the command that systemd would expand', () => {
    for (const word of commandOf(argv)) asExpanded(word);
    expect(asExpanded(commandOf(argv)[2] ?? '')).toContain('exec /usr/bin/env "${a[@]}"');
    const odd = { ...facts, workspace: '/scratch/$HOME/${x}$$' };
    expect(commandOf(anchorArguments(odd)).map(asExpanded).at(-1)).toBe('/scratch/$HOME/${x}$$');
  });

  test('name groups, devices, resolver files and writable paths as they are configured', () => {
    const more = properties(
      stepArguments(
        {
          ...facts,
          workspace: null,
          writablePaths: ['/scratch/a b:"c"\\'],
          devices: ['/dev/infiniband/uverbs0'],
          resolverFiles: ['/run/systemd/resolve/stub-resolv.conf'],
          settings: { ...facts.settings, groups: ['rdma', 'video'] },
        },
        'a',
        'x',
        'a.1',
      ),
    );
    expect(more).toContain('SupplementaryGroups=rdma video');
    expect(more).toContain('DeviceAllow="/dev/infiniband/uverbs0" rw');
    expect(more).toContain('BindPaths="/dev/infiniband/uverbs0"');
    expect(more).toContain('BindReadOnlyPaths="/run/systemd/resolve/stub-resolv.conf"');
    expect(more.filter((one) => one.startsWith('ReadWritePaths='))).toEqual([
      'ReadWritePaths="/scratch/a b:\\"c\\"\\\\"',
    ]);
  });
});

describe('the anchor', () => {
  test('is built from the same properties as a step, so that prepare proves what steps need', () => {
    const step = properties(stepArguments(facts, 'a', 'x', 'a.1'));
    const anchor = properties(anchorArguments(facts));
    const own = [
      'Type=',
      'RemainAfterExit=',
      'TimeoutStartSec=',
      'Exec',
      'Requisite=',
      'BindsTo=',
      'After=',
      'Joins',
    ];
    const common = (list: readonly string[]): string[] =>
      list.filter((one) => !own.some((prefix) => one.startsWith(prefix)));
    expect(common(anchor)).toEqual(common(step));
    expect(anchor).toContain('Type=oneshot');
    expect(anchor).toContain('RemainAfterExit=yes');
  });
});

describe('the deadline', () => {
  test('stops the anchor by the monotonic clock and goes with it', () => {
    const argv = deadlineArguments(names, 0, 1500.2);
    expect(argv).toContain('--on-active=1501ms');
    expect(argv).toContain('--timer-property=BindsTo=xce-main-7.42.0.anchor.service');
    expect(commandOf(argv)).toEqual([
      '/usr/bin/systemctl',
      'stop',
      '--no-block',
      'xce-main-7.42.0.anchor.service',
    ]);
    expect(deadlineArguments(names, 1, 0)).toContain('--on-active=1ms');
  });
});

describe('the slice', () => {
  test('is made with as many properties as it announces', () => {
    const argv = sliceArguments(names, 'a "b"', facts.settings);
    const from = argv.indexOf('fail') + 1;
    expect(argv[from]).toBe('3');
    expect(argv.slice(from + 1)).toEqual([
      'Description',
      's',
      'a "b"',
      'CollectMode',
      's',
      'inactive-or-failed',
      'TasksMax',
      't',
      '4096',
      '0',
    ]);
  });
});

test('a quoted word is one word whatever it contains', () => {
  fc.assert(
    fc.property(fc.string(), (text) => {
      const quoted = quoteWord(text);
      const inner = quoted.slice(1, -1);
      expect(inner.replaceAll(/\\([\\"])/g, '$1')).toBe(text);
      expect(inner.replaceAll(/\\[\\"]/g, '')).not.toMatch(/["\\]/);
    }),
  );
});
