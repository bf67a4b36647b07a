/**
 * The whole of what systemd is told about a sandbox, as argument lists. Pure. No byte that a job chose is in
 * them: names are escaped, arguments and environment travel in the step's input (see step-input.ts).
 */

import type { Uid } from '../base/ids.ts';
import type { Settings } from '../config/settings.ts';
import type { BoxPaths } from './box.ts';
import type { SandboxNames } from './names.ts';
import { HOME_DIRECTORY } from './user-record.ts';

/** Where the box and its results are inside. */
const BOX_INSIDE = '/run/xce';
const RESULTS_INSIDE = `${BOX_INSIDE}/result`;

/** What the properties need to know of one sandbox; every path absolute, with root-owned parents. */
export type UnitFacts = {
  readonly uid: Uid;
  readonly names: SandboxNames;
  readonly box: BoxPaths;
  readonly workspace: string | null;
  readonly writablePaths: readonly string[];
  /** Device nodes that exist on this host and that [sandbox] devices names. */
  readonly devices: readonly string[];
  /** Files below /run that host name look-ups need (a resolv.conf that is a link into /run). */
  readonly resolverFiles: readonly string[];
  readonly settings: Settings['sandbox'];
};

/** One word of a property's value: systemd takes quotes and backslashes apart, blanks and colons separate. */
export const quoteWord = (text: string): string => `"${text.replaceAll(/[\\"]/g, '\\$&')}"`;

/** systemd expands `$` in the arguments of a transient unit on 252 and, by default, on 257; doubled it is
 * one `$` on both. */
const protectDollars = (script: string): string => script.replaceAll('$', '$$$$');

const seconds = (milliseconds: number): string => `${Math.max(1, Math.ceil(milliseconds))}ms`;

/**
 * The same for the anchor and every step, so that the anchor proves on each node, before anything is started
 * anywhere, that systemd can build what the steps need. docs: systemd.exec(5).
 */
const hardening = (facts: UnitFacts): readonly string[] => [
  `User=${facts.uid}`,
  `Group=${facts.uid}`,
  ...(facts.settings.groups.length > 0 ? [`SupplementaryGroups=${facts.settings.groups.join(' ')}`] : []),
  // Identity never grows.
  'NoNewPrivileges=yes',
  'CapabilityBoundingSet=',
  'AmbientCapabilities=',
  'RestrictSUIDSGID=yes',
  'KeyringMode=private',
  'LockPersonality=yes',
  'RestrictNamespaces=yes',
  'RestrictRealtime=yes',
  // AF_NETLINK: without it PRRTE does not start (measured).
  'RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK',
  'SystemCallArchitectures=native',
  // EPERM, not SIGSYS: programs that try and fall back (V8, MPI) must get to do so. @resources stays: binding
  // ranks to cores and memory to NUMA nodes is what HPC programs do.
  'SystemCallErrorNumber=EPERM',
  'SystemCallFilter=@system-service',
  'SystemCallFilter=~@keyring io_uring_setup io_uring_enter io_uring_register',
  // The host.
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
  // No system bus, no sockets of daemons or of other jobs; only what is bound below.
  'TemporaryFileSystem=/run:ro,mode=0755',
  'BindReadOnlyPaths=/run/userdb',
  ...facts.resolverFiles.map((file) => `BindReadOnlyPaths=${quoteWord(file)}`),
  `BindReadOnlyPaths=${quoteWord(facts.box.box)}:${BOX_INSIDE}:norbind`,
  // For the hooks below, which run as root but with these mounts; mode 0700 keeps the job out.
  `BindPaths=${quoteWord(facts.box.results)}:${RESULTS_INSIDE}`,
  `BindPaths=${quoteWord(facts.box.home)}:${HOME_DIRECTORY}`,
  `BindPaths=${quoteWord(facts.box.tmp)}:/tmp`,
  `BindPaths=${quoteWord(facts.box.varTmp)}:/var/tmp`,
  `BindPaths=${quoteWord(facts.box.shm)}:/dev/shm`,
  ...[...(facts.workspace === null ? [] : [facts.workspace]), ...facts.writablePaths].map(
    (path) => `ReadWritePaths=${quoteWord(path)}`,
  ),
  ...facts.devices.flatMap((device) => [
    `DeviceAllow=${quoteWord(device)} rw`,
    `BindPaths=${quoteWord(device)}`,
  ]),
  // Limits. LimitNPROC counts the processes of the uid on this host, all sandboxes and steps together, also
  // where the pids controller is absent.
  `LimitNPROC=${facts.settings.tasksMax}`,
  `LimitMEMLOCK=${facts.settings.memlock}`,
  'LimitCORE=0',
  'UMask=0077',
  // A batch job expects `yes | head` to end.
  'IgnoreSIGPIPE=no',
  `TimeoutStopSec=${seconds(facts.settings.stopTimeoutMs)}`,
  'SendSIGKILL=yes',
  'KillMode=control-group',
  'CollectMode=inactive-or-failed',
];

const flags = (properties: readonly string[]): string[] => properties.map((text) => `--property=${text}`);

/** Exit statuses of the scripts below. */
export const EXIT_DROP = 125;
export const EXIT_WORKSPACE = 124;

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
  `if [ $n -ne 9 ]; then echo "the drop of privileges is not complete ($n of 9)" >&2; exit ${EXIT_DROP}; fi`,
].join('\n');

/** $2 is the workspace, or empty. */
const ANCHOR_SCRIPT = `${PROVE_DROP}
if [ -n "$2" ]; then { cd -- "$2" && [ -w . ]; } || exit ${EXIT_WORKSPACE}; fi
exit 0`;

/**
 * $2 begins the start line, $3 the file with the arguments of env. The start line tells the worker on stderr that
 * everything after it is the step's own; what stands before it is a complaint of systemd-run or of this script.
 */
const STEP_SCRIPT = `${PROVE_DROP}
mapfile -d '' -t a <"$3" || exit ${EXIT_DROP}
printf '%s %s\\n' "$2" "$INVOCATION_ID" >&2
exec /usr/bin/env "\${a[@]}"`;

/**
 * A unit's last hook: as root (`+`), with no variable expanded by systemd (`:`), only shell builtins, and nothing
 * of the job in its environment (which is why no unit here sets Environment= from a caller). Unlike the Protect
 * and Private settings, the binds above hold for it too (measured), and its stderr is the step's.
 */
const recorder = (name: string): string =>
  `ExecStopPost=+:/bin/sh -c '{ echo "$INVOCATION_ID $SERVICE_RESULT $EXIT_CODE $EXIT_STATUS" >"$1"; } 2>/dev/null' sh ${RESULTS_INSIDE}/${name}`;

/** Runs before the processes of a unit are killed. $MAINPID is set only while the main process lives: the unit
 * was stopped and did not end by itself. */
const stopRecorder = (name: string): string =>
  `ExecStop=+:/bin/sh -c '[ -z "$MAINPID" ] || { : >"$1"; } 2>/dev/null' sh ${RESULTS_INSIDE}/${name}`;

export const resultFile = (box: BoxPaths, name: string): string => `${box.results}/${name}`;
const stoppedName = (run: string): string => `${run}.stopped`;
export const stoppedFile = (box: BoxPaths, run: string): string => `${box.results}/${stoppedName(run)}`;
/** Name of the anchor's own record; no step id has a dot. */
export const ANCHOR_RECORD = 'anchor.end';

const COMMON = ['--quiet', '--no-ask-password'] as const;

/** systemd-run for the anchor. It has no process left once it is active. */
export const anchorArguments = (facts: UnitFacts): string[] => [
  ...COMMON,
  `--unit=${facts.names.anchor}`,
  `--slice=${facts.names.slice}`,
  ...flags([
    'Type=oneshot',
    'RemainAfterExit=yes',
    'TimeoutStartSec=30s',
    'Environment=LC_ALL=C',
    ...hardening(facts),
    recorder(ANCHOR_RECORD),
  ]),
  '--',
  '/bin/bash',
  '-c',
  protectDollars(ANCHOR_SCRIPT),
  'bash',
  String(facts.uid),
  (facts.workspace ?? '').replaceAll('$', '$$$$'),
];

/**
 * systemd-run for one step. Its standard streams become the step's; it lives as long as the step. `run` names its
 * files: `<step>.<nonce>`.
 */
export const stepArguments = (facts: UnitFacts, step: string, startLine: string, run: string): string[] => [
  ...COMMON,
  '--pipe',
  '--wait',
  `--unit=${facts.names.step(step)}`,
  `--slice=${facts.names.slice}`,
  ...flags([
    'Type=exec',
    // Requisite: a step never starts an anchor again that has ended. BindsTo: it ends when the anchor does.
    `Requisite=${facts.names.anchor}`,
    `BindsTo=${facts.names.anchor}`,
    `After=${facts.names.anchor}`,
    `JoinsNamespaceOf=${facts.names.anchor}`,
    'TimeoutStartSec=60s',
    'Environment=LC_ALL=C',
    ...hardening(facts),
    stopRecorder(stoppedName(run)),
    recorder(run),
  ]),
  '--',
  '/bin/bash',
  '-c',
  protectDollars(STEP_SCRIPT),
  'bash',
  String(facts.uid),
  startLine,
  `${BOX_INSIDE}/input/${run}`,
];

/**
 * systemd-run for a deadline: a timer that stops the anchor, whether or not a worker, a network or a controller
 * lives. It goes with the anchor. OnActiveSec= runs on the monotonic clock, which a wrong wall clock cannot move.
 */
export const deadlineArguments = (names: SandboxNames, slot: 0 | 1, remainingMs: number): string[] => [
  ...COMMON,
  `--unit=${names.deadlines[slot].service}`,
  `--on-active=${seconds(remainingMs)}`,
  '--timer-property=AccuracySec=100ms',
  `--timer-property=BindsTo=${names.anchor}`,
  `--timer-property=After=${names.anchor}`,
  '--timer-property=CollectMode=inactive-or-failed',
  ...flags(['Type=oneshot', 'CollectMode=inactive-or-failed']),
  '--',
  '/usr/bin/systemctl',
  'stop',
  '--no-block',
  names.anchor,
];

/** busctl for the slice, which holds what the job may use in sum. */
export const sliceArguments = (
  names: SandboxNames,
  description: string,
  settings: Settings['sandbox'],
): string[] => [
  'call',
  '--quiet',
  'org.freedesktop.systemd1',
  '/org/freedesktop/systemd1',
  'org.freedesktop.systemd1.Manager',
  'StartTransientUnit',
  'ssa(sv)a(sa(sv))',
  names.slice,
  'fail',
  '3',
  'Description',
  's',
  description,
  'CollectMode',
  's',
  'inactive-or-failed',
  'TasksMax',
  't',
  String(settings.tasksMax),
  '0',
];
