/**
 * Looks for everything that still belongs to a uid on this host. Each look is on its own: one that fails is a
 * finding of kind 'unknown', because what was not looked at is not clean. Looks change nothing.
 */
import { messageOf } from '../../base/errors.ts';
import { escapeBytes, escapeText } from '../../base/escape.ts';
import type { Uid } from '../../base/ids.ts';
import { isCgroupPopulated } from '../../os/cgroup.ts';
import { hasMessageQueues, listMessageQueues, readSysvTable } from '../../os/ipc.ts';
import { readMountTable } from '../../os/mount-table.ts';
import { listProcessIds, readProcessCommand, readProcessStatus } from '../../os/processes.ts';
import { runChild } from '../../os/spawn.ts';
import type { Finding } from '../backend.ts';
import { describeStatus, findSysvObjects, processHasId } from '../traces.ts';
import { type Context, placeOf } from './context.ts';
import { boxExists, listUserRecords, mountsBelow } from './place.ts';
import { listTransientFiles, type SandboxIdentity } from './sandbox.ts';

/** Enough to see what is wrong; a certificate needs none. */
const FINDINGS_PER_KIND_MAX = 20;
/** A process that forks all the time can be ahead of one pass over the list. */
const PROCESS_PASSES = 3;
const FIND_TIMEOUT_MS = 120_000;
const COMMAND_CHARS_MAX = 200;
/** Where a process of the uid could have made files outside of its sandbox. */
const LOCAL_ROOTS = ['/tmp', '/var/tmp', '/dev/shm'] as const;

const findProcesses = (uid: Uid): readonly Finding[] => {
  const found = new Map<number, Finding>();
  for (let pass = 0; pass < PROCESS_PASSES; pass += 1) {
    for (const pid of listProcessIds()) {
      const status = readProcessStatus(pid);
      if (status === undefined || found.has(pid)) continue;
      const has = processHasId(status, uid);
      if (has === undefined) {
        found.set(pid, { kind: 'unknown', detail: `process ${pid} does not show its uids` });
      } else if (has) {
        const { name, state } = describeStatus(status);
        const command = escapeBytes(readProcessCommand(pid)).replaceAll('\\x00', ' ').trim();
        const shown = command === '' ? `[${escapeText(name)}]` : command.slice(0, COMMAND_CHARS_MAX);
        found.set(pid, {
          kind: 'process',
          detail: `pid ${pid}${state === 'Z' ? ' (zombie)' : ''}: ${shown}`,
        });
      }
    }
  }
  return [...found.values()];
};

const findSysv = (kind: 'shm' | 'sem' | 'msg', uid: Uid): readonly Finding[] => {
  const table = readSysvTable(kind);
  if (table === undefined) return [];
  const objects = findSysvObjects(table, uid);
  if (objects === undefined) return [{ kind: 'unknown', detail: `/proc/sysvipc/${kind} cannot be read` }];
  return objects.map(({ key, id }) => ({ kind: `sysv-${kind}`, detail: `id ${id}, key ${key}` }));
};

const findQueues = (uid: Uid): readonly Finding[] => {
  if (!hasMessageQueues()) return [];
  if (!readMountTable().some((entry) => entry.path === '/dev/mqueue' && entry.type === 'mqueue')) {
    return [{ kind: 'unknown', detail: 'no mqueue file system is mounted at /dev/mqueue' }];
  }
  return listMessageQueues()
    .filter((queue) => queue.uid === uid || queue.gid === uid)
    .map((queue) => ({ kind: 'posix-mqueue', detail: `/dev/mqueue/${escapeText(queue.name)}` }));
};

/** find(1) descends by descriptors and follows no link, so nobody can lead it elsewhere. */
const findFiles = async (uid: Uid): Promise<readonly Finding[]> => {
  const owned = ['(', '-uid', String(uid), '-o', '-gid', String(uid), ')'];
  const result = await runChild(
    '/usr/bin/find',
    ['-P', ...LOCAL_ROOTS, '-ignore_readdir_race', '-xdev', ...owned, '-print0'],
    { timeoutMs: FIND_TIMEOUT_MS },
  );
  const paths = splitAtNul(result.stdout);
  const found: Finding[] = paths.map((path) => ({ kind: 'file', detail: escapeBytes(path) }));
  if (result.exitCode !== 0 && !(result.truncated && found.length > 0)) {
    const why = result.timedOut ? 'it took too long' : escapeBytes(result.stderr.subarray(0, 200));
    found.push({ kind: 'unknown', detail: `${LOCAL_ROOTS.join(', ')} could not be searched: ${why}` });
  }
  return found;
};

const splitAtNul = (bytes: Buffer): readonly Buffer[] => {
  const parts: Buffer[] = [];
  for (let from = 0; from < bytes.length && parts.length <= FINDINGS_PER_KIND_MAX; ) {
    const nul = bytes.indexOf(0, from);
    const to = nul === -1 ? bytes.length : nul;
    parts.push(bytes.subarray(from, to));
    from = to + 1;
  }
  return parts;
};

const capped = (findings: readonly Finding[]): readonly Finding[] => {
  const [first] = findings;
  if (first === undefined || findings.length <= FINDINGS_PER_KIND_MAX) return findings;
  const rest = findings.length - FINDINGS_PER_KIND_MAX;
  return [
    ...findings.slice(0, FINDINGS_PER_KIND_MAX),
    { kind: first.kind, detail: `and ${rest} or more others` },
  ];
};

export const scanHost = async (context: Context, spec: SandboxIdentity): Promise<readonly Finding[]> => {
  const { names, box } = placeOf(context, spec);
  const looks: readonly (readonly [string, () => readonly Finding[] | Promise<readonly Finding[]>])[] = [
    ['processes', () => findProcesses(spec.uid)],
    [
      'cgroup',
      () =>
        isCgroupPopulated(names.cgroup) ? [{ kind: 'cgroup', detail: `${names.cgroup} has processes` }] : [],
    ],
    [
      'units',
      async () =>
        (await context.systemd.listUnits(names.unitPattern)).map((unit) => ({
          kind: 'unit',
          detail: `${escapeText(unit.name)} is ${unit.active}`,
        })),
    ],
    [
      'unit files',
      () =>
        listTransientFiles(names.unitPrefix).map((name) => ({
          kind: 'unit',
          detail: `unit file ${escapeText(name)}`,
        })),
    ],
    ['System V shared memory', () => findSysv('shm', spec.uid)],
    ['System V semaphores', () => findSysv('sem', spec.uid)],
    ['System V queues', () => findSysv('msg', spec.uid)],
    ['POSIX queues', () => findQueues(spec.uid)],
    ['mounts', () => mountsBelow(box.box).map((path) => ({ kind: 'mount', detail: escapeText(path) }))],
    ['box', () => (boxExists(box) ? [{ kind: 'file', detail: box.box }] : [])],
    [
      'user records',
      () => listUserRecords(spec).map((name) => ({ kind: 'user-record', detail: escapeText(name) })),
    ],
    ['local files', () => findFiles(spec.uid)],
  ];
  const findings = await Promise.all(
    looks.map(async ([name, look]): Promise<readonly Finding[]> => {
      try {
        return capped(await look());
      } catch (error) {
        return [{ kind: 'unknown', detail: `${name}: ${messageOf(error)}` }];
      }
    }),
  );
  return findings.flat();
};
