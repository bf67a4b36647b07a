/**
 * The whole of what systemd is told about a sandbox, as typed properties of transient units. Pure. No byte that a
 * job chose is in them: names are escaped, arguments and environment travel in the step's input (step-input.ts).
 * Types and names are those of org.freedesktop.systemd1(5) from version 252 on.
 */
import type { Uid } from '../base/ids.ts';
import type { Settings } from '../config/settings.ts';
import type { Network } from '../config/values.ts';
import { addressBytes } from '../os/addresses.ts';
import { type DbusValue, type Variant, variant } from '../os/dbus-wire.ts';
import type { BoxPaths } from './box.ts';
import type { SandboxNames } from './names.ts';
import type { Allowance } from './resources.ts';
import { HOME_DIRECTORY } from './user-record.ts';

export type UnitProperty = readonly [name: string, value: Variant];
/** A unit to be made: its name and properties. */
export type UnitDraft = { readonly name: string; readonly properties: readonly UnitProperty[] };

/** Where the box is inside. */
const BOX_INSIDE = '/run/xce';

/** What the properties need to know of one sandbox; every path absolute, with root-owned parents. */
export type UnitFacts = {
  readonly uid: Uid;
  readonly names: SandboxNames;
  readonly box: BoxPaths;
  readonly workspace: string | null;
  readonly writablePaths: readonly string[];
  readonly allowance: Allowance;
  /** Device nodes that exist on this host and that the allowance names. */
  readonly devices: readonly string[];
  /** What the job may reach; null: everything that the host does. */
  readonly network: readonly Network[] | null;
  /** Files below /run that host name look-ups need (a resolv.conf that is a link into /run). */
  readonly resolverFiles: readonly string[];
  readonly settings: Settings['sandbox'];
};

const text = (name: string, value: string): UnitProperty => [name, variant('s', value)];
const yes = (name: string): UnitProperty => [name, variant('b', true)];
const no = (name: string): UnitProperty => [name, variant('b', false)];
const words = (name: string, ...values: readonly string[]): UnitProperty => [name, variant('as', values)];
const large = (name: string, value: bigint): UnitProperty => [name, variant('t', value)];
const INFINITY = 0xffff_ffff_ffff_ffffn;

/** Rounded up: a span is never shorter than asked for, and never the 0 that would mean none. */
const micros = (milliseconds: number): bigint => BigInt(Math.max(1, Math.ceil(milliseconds * 1000)));

/** A list that allows nothing else (`true`), or one that takes away (`false`). */
const allow = (name: string, ...values: readonly string[]): UnitProperty => [
  name,
  variant('(bas)', [true, values]),
];
const deny = (name: string, ...values: readonly string[]): UnitProperty => [
  name,
  variant('(bas)', [false, values]),
];

const AF_INET = 2;
const AF_INET6 = 10;
const networks = (name: string, list: readonly Network[]): UnitProperty => [
  name,
  variant(
    'a(iayu)',
    list.map(({ address, prefix }): DbusValue => {
      const bytes = addressBytes(address);
      return [bytes.length === 4 ? AF_INET : AF_INET6, [...bytes], prefix];
    }),
  ),
];
const EVERYWHERE: readonly Network[] = [
  { address: '0.0.0.0', prefix: 0 },
  { address: '::', prefix: 0 },
];
/** Half of the loopback addresses: the anchor tries the rest to prove that the kernel keeps to the list. */
const LOOPBACK: readonly Network[] = [
  { address: '127.0.0.0', prefix: 9 },
  { address: '::1', prefix: 128 },
];
const LOOPBACK_OPEN = '127.0.0.1';
const LOOPBACK_SHUT = '127.255.255.254';

/** Bits of processors, as AllowedCPUs= of the bus has them. */
const cpuMask = (cpus: readonly number[]): DbusValue => {
  const bytes = new Uint8Array(Math.floor(Math.max(...cpus) / 8) + 1);
  for (const cpu of cpus) bytes[cpu >> 3] = (bytes[cpu >> 3] ?? 0) | (1 << (cpu & 7));
  return [...bytes];
};

const MS_REC = 16_384n;
type Bind = { readonly from: string; readonly to: string; readonly recursive?: boolean };
const binds = (name: string, ...list: readonly Bind[]): UnitProperty => [
  name,
  variant(
    'a(ssbt)',
    list.map(({ from, to, recursive = true }): DbusValue => [from, to, false, recursive ? MS_REC : 0n]),
  ),
];

/**
 * A command. systemd expands `$` in its words; doubled it is one `$`. (ExecStartEx= has a flag against expansion,
 * but 252 writes that name into the unit's file and does not know it when it reads the file again: after any
 * `systemctl daemon-reload` the unit has no command and nothing that depends on it starts. Measured.)
 */
const command = (...argv: readonly string[]): UnitProperty => [
  'ExecStart',
  variant('a(sasb)', [[argv[0] ?? '', argv.map((word) => word.replaceAll('$', '$$$$')), false]]),
];

/**
 * The same for the anchor and every step, so that the anchor proves on each node, before anything is started
 * anywhere, that systemd can build what the steps need. See systemd.exec(5).
 */
const confinement = (facts: UnitFacts): readonly UnitProperty[] => [
  text('User', String(facts.uid)),
  text('Group', String(facts.uid)),
  ...(facts.settings.groups.length > 0 ? [words('SupplementaryGroups', ...facts.settings.groups)] : []),
  // Identity never grows.
  yes('NoNewPrivileges'),
  large('CapabilityBoundingSet', 0n),
  large('AmbientCapabilities', 0n),
  yes('RestrictSUIDSGID'),
  text('KeyringMode', 'private'),
  yes('LockPersonality'),
  large('RestrictNamespaces', 0n),
  yes('RestrictRealtime'),
  // AF_NETLINK: without it PRRTE does not start (measured).
  allow('RestrictAddressFamilies', 'AF_UNIX', 'AF_INET', 'AF_INET6', 'AF_NETLINK'),
  words('SystemCallArchitectures', 'native'),
  // EPERM, not SIGSYS: programs that try and fall back (V8, MPI) must get to do so. @resources stays: binding
  // ranks to cores and memory to NUMA nodes is what HPC programs do.
  ['SystemCallErrorNumber', variant('i', 1)],
  allow('SystemCallFilter', '@system-service'),
  deny('SystemCallFilter', '@keyring', 'io_uring_setup', 'io_uring_enter', 'io_uring_register'),
  // The host.
  text('ProtectSystem', 'strict'),
  text('ProtectHome', 'yes'),
  text('ProtectProc', 'invisible'),
  yes('ProtectKernelTunables'),
  yes('ProtectKernelModules'),
  yes('ProtectKernelLogs'),
  yes('ProtectControlGroups'),
  yes('ProtectClock'),
  yes('ProtectHostname'),
  yes('PrivateDevices'),
  yes('PrivateIPC'),
  yes('RemoveIPC'),
  // No system bus, no sockets of daemons or of other jobs; only what is bound below.
  ['TemporaryFileSystem', variant('a(ss)', [['/run', 'ro,mode=0755']])],
  binds(
    'BindReadOnlyPaths',
    { from: '/run/userdb', to: '/run/userdb' },
    ...facts.resolverFiles.map((file) => ({ from: file, to: file })),
    // Without the mounts in it, which have places of their own inside.
    { from: facts.box.box, to: BOX_INSIDE, recursive: false },
  ),
  binds(
    'BindPaths',
    { from: facts.box.home, to: HOME_DIRECTORY },
    { from: facts.box.tmp, to: '/tmp' },
    { from: facts.box.varTmp, to: '/var/tmp' },
    { from: facts.box.shm, to: '/dev/shm' },
    ...facts.devices.map((device) => ({ from: device, to: device })),
  ),
  words('ReadWritePaths', ...(facts.workspace === null ? [] : [facts.workspace]), ...facts.writablePaths),
  [
    'DeviceAllow',
    variant(
      'a(ss)',
      facts.devices.map((device) => [device, 'rw']),
    ),
  ],
  text('DevicePolicy', 'closed'),
  // The network that the job may reach. systemd leaves these out without a word where it cannot have them enforced.
  ...(facts.network === null
    ? []
    : [networks('IPAddressDeny', EVERYWHERE), networks('IPAddressAllow', [...LOOPBACK, ...facts.network])]),
  // Limits. LimitNPROC counts the processes of the uid on this host, all sandboxes and steps together, also
  // where the pids controller is absent.
  large('LimitNPROC', BigInt(facts.allowance.tasks)),
  large('LimitMEMLOCK', facts.settings.memlock === 'infinity' ? INFINITY : BigInt(facts.settings.memlock)),
  // Programs with large arrays raise it themselves, up to what is hard.
  large('LimitSTACK', INFINITY),
  large('LimitSTACKSoft', facts.settings.stackBytes === null ? INFINITY : BigInt(facts.settings.stackBytes)),
  large('LimitCORE', 0n),
  ['UMask', variant('u', 0o077)],
  // A batch job expects `yes | head` to end.
  no('IgnoreSIGPIPE'),
  large('TimeoutStopUSec', micros(facts.settings.stopTimeoutMs)),
  yes('SendSIGKILL'),
  text('KillMode', 'control-group'),
  // A program that has lost one process to the kernel would go on without it, or hang; and its end says why.
  text('OOMPolicy', 'kill'),
  text('CollectMode', 'inactive-or-failed'),
  // Of the wrapper; the step's own program gets none of it.
  words('Environment', 'LC_ALL=C'),
];

/** Exit statuses of the scripts below. */
export const EXIT_DROP = 125;
export const EXIT_WORKSPACE = 124;
export const EXIT_NETWORK = 123;
/** Of a step whose working directory is none; of the statuses that the suite keeps for itself. */
const EXIT_DIRECTORY = 125;

/**
 * bash: proves that the drop of privileges is what it should be, from the kernel's word on this very process.
 * $1 is the uid. A User= that systemd did not take once meant root (systemd issue 6237).
 */
const PROVE_DROP = [
  'n=0',
  'while IFS= read -r l; do case $l in',
  '"Uid:\t$1\t$1\t$1\t$1"|"Gid:\t$1\t$1\t$1\t$1"|Cap???:[[:blank:]]0000000000000000|NoNewPrivs:[[:blank:]]1|Seccomp:[[:blank:]]2)',
  'n=$((n+1));;',
  'Groups:*[[:blank:]]0[[:blank:]]*) n=-9;; esac; done </proc/self/status',
  `if [ $n -ne 9 ]; then echo "xce-sandbox: the drop of privileges is not complete ($n of 9)" >&2; exit ${EXIT_DROP}; fi`,
].join('\n');

/**
 * $4 and $5 are the soft and the hard limit of locked memory and of the stack. systemd takes less without a word where
 * it may not raise them, as in a container without CAP_SYS_RESOURCE, and so it is with every step. A job can run all
 * the same: the journal of the anchor tells it, and no launch is refused for it.
 */
const TELL_LIMITS = [
  'why="systemd may not raise limits here: give the container CAP_SYS_RESOURCE, or set the key to this"',
  't() { echo "xce-sandbox: [sandbox] $1 is not kept: a job gets $2, not $3 (soft and hard, in bytes); $why" >&2; }',
  'while read -r a b c s h _; do case "$a $b $c" in',
  '"Max locked memory") [ "$s $h" = "$4" ] || t memlock "$s $h" "$4";;',
  '"Max stack size") [ "$s $h" = "$5" ] || t stack "$s $h" "$5";;',
  'esac; done </proc/self/limits',
].join('\n');

/**
 * $2 is the workspace, or empty; $3 is `limited` where the network is. A datagram to ourselves that must pass, and one
 * that must not: a host without BPF passes both, a bash that cannot send neither.
 */
const ANCHOR_SCRIPT = `${TELL_LIMITS}
${PROVE_DROP}
if [ "$3" = limited ]; then
(echo >/dev/udp/${LOOPBACK_OPEN}/9) 2>/dev/null || exit ${EXIT_NETWORK}
if (echo >/dev/udp/${LOOPBACK_SHUT}/9) 2>/dev/null; then exit ${EXIT_NETWORK}; fi
fi
if [ -n "$2" ]; then { cd -- "$2" && [ -w . ]; } 2>/dev/null || exit ${EXIT_WORKSPACE}; fi
exit 0`;

/** $2 is the file with the working directory and the arguments of env. */
const STEP_SCRIPT = `${PROVE_DROP}
mapfile -d '' -t a <"$2" || exit ${EXIT_DROP}
cd -P -- "\${a[0]}" || { echo 'xce-sandbox: the step has no such working directory' >&2; exit ${EXIT_DIRECTORY}; }
exec /usr/bin/env "\${a[@]:1}"`;

/** As /proc/PID/limits has them: soft, then hard. */
const limitWords = ({ memlock, stackBytes }: UnitFacts['settings']): readonly string[] => {
  const locked = memlock === 'infinity' ? 'unlimited' : memlock;
  return [`${locked} ${locked}`, `${stackBytes ?? 'unlimited'} unlimited`];
};

/** The unit that the sandbox is. It has no process left once it is active. */
export const anchorUnit = (facts: UnitFacts): UnitDraft => ({
  name: facts.names.anchor,
  properties: [
    text('Description', `${facts.names.base}: the sandbox`),
    text('Slice', facts.names.slice),
    text('Type', 'oneshot'),
    yes('RemainAfterExit'),
    large('TimeoutStartUSec', micros(30_000)),
    ...confinement(facts),
    command(
      ...['/bin/bash', '-c', ANCHOR_SCRIPT, 'bash', String(facts.uid), facts.workspace ?? ''],
      facts.network === null ? 'open' : 'limited',
      ...limitWords(facts.settings),
    ),
  ],
});

/** One step. Descriptors 0, 1 and 2 of the message become its standard streams; `run` names its input. */
export const stepUnit = (facts: UnitFacts, step: string, run: string): UnitDraft => ({
  name: facts.names.step(step),
  properties: [
    text('Description', `${facts.names.base}: step ${step}`),
    text('Slice', facts.names.slice),
    text('Type', 'exec'),
    // Requisite: a step never starts an anchor again that has ended. BindsTo: it ends when the anchor does.
    words('Requisite', facts.names.anchor),
    words('BindsTo', facts.names.anchor),
    words('After', facts.names.anchor),
    words('JoinsNamespaceOf', facts.names.anchor),
    large('TimeoutStartUSec', micros(60_000)),
    ['StandardInputFileDescriptor', variant('h', 0)],
    ['StandardOutputFileDescriptor', variant('h', 1)],
    ['StandardErrorFileDescriptor', variant('h', 2)],
    ...confinement(facts),
    command('/bin/bash', '-c', STEP_SCRIPT, 'bash', String(facts.uid), `${BOX_INSIDE}/input/${run}`),
  ],
});

/**
 * A deadline: a timer that stops the anchor, whether or not a worker, a network or a controller lives. It goes
 * with the anchor. OnActiveSec runs on the monotonic clock, which a wrong wall clock cannot move.
 */
export const deadlineUnits = (
  names: SandboxNames,
  slot: 0 | 1,
  remainingMs: number,
): readonly [timer: UnitDraft, service: UnitDraft] => {
  const { timer, service } = names.deadlines[slot];
  return [
    {
      name: timer,
      properties: [
        text('Description', `${names.base}: the deadline`),
        ['TimersMonotonic', variant('a(st)', [['OnActiveSec', micros(remainingMs)]])],
        large('AccuracyUSec', 100_000n),
        no('RemainAfterElapse'),
        words('BindsTo', names.anchor),
        words('After', names.anchor),
        text('CollectMode', 'inactive-or-failed'),
      ],
    },
    {
      name: service,
      properties: [
        text('Description', `${names.base}: the end of the deadline`),
        text('Type', 'oneshot'),
        text('CollectMode', 'inactive-or-failed'),
        command('/usr/bin/systemctl', 'stop', '--no-block', names.anchor),
      ],
    },
  ];
};

/** The slice, which holds what the job may use in sum. */
export const sliceUnit = (names: SandboxNames, description: string, allowance: Allowance): UnitDraft => ({
  name: names.slice,
  properties: [
    text('Description', description),
    text('CollectMode', 'inactive-or-failed'),
    large('TasksMax', BigInt(allowance.tasks)),
    ...(allowance.cpuPercent === null
      ? []
      : [large('CPUQuotaPerSecUSec', micros(allowance.cpuPercent * 10))]),
    ...(allowance.cpus === null ? [] : [['AllowedCPUs', variant('ay', cpuMask(allowance.cpus))] as const]),
    // Swap would only put off the end of a job that needs more than it has.
    ...(allowance.memoryBytes === null
      ? []
      : [large('MemoryMax', BigInt(allowance.memoryBytes)), large('MemorySwapMax', 0n)]),
  ],
});
