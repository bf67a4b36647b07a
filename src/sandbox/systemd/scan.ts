/**
 * Looks for everything that still belongs to a uid on this host. Each look is on its own: one that fails is a
 * finding of kind 'unknown', because what was not looked at is not clean. Looks change nothing.
 */
import { countOf } from '../../base/count.ts';
import { messageOf } from '../../base/errors.ts';
import { escapeBytes, escapeText } from '../../base/escape.ts';
import type { Uid } from '../../base/ids.ts';
import { isCgroupPopulated } from '../../os/cgroup.ts';
import { readKeyUsers } from '../../os/key-users.ts';
import { listProcessIds, readProcessCommand, readProcessStatus } from '../../os/processes.ts';
import { pause } from '../../os/watch.ts';
import type { Finding } from '../backend.ts';
import { userName } from '../names.ts';
import { countKeys, describeStatus, processHasId } from '../traces.ts';
import { type Context, placeOf } from './context.ts';
import { boxExists, listUserRecords, mountsBelow } from './place.ts';
import { listTransientFiles, type SandboxIdentity } from './sandbox.ts';
import { findFiles, findIpc, findSpooled } from './scan-namespaces.ts';

/** Enough to see what is wrong; a certificate needs none. */
const FINDINGS_PER_KIND_MAX = 20;
/** A process that forks all the time can be ahead of one pass over the list. */
const PROCESS_PASSES = 3;
const COMMAND_CHARS_MAX = 200;
const KEY_LOOKS = 40;
const KEY_LOOK_MS = 50;

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

/**
 * Keys of the uid. The kernel frees those of a process that has ended in a work of its own, a moment later, and tells
 * nobody.
 */
const findKeys = async (uid: Uid): Promise<readonly Finding[]> => {
  for (let look = 1; ; look += 1) {
    const table = readKeyUsers();
    if (table === undefined) return [];
    const count = countKeys(table, uid);
    if (count === undefined) return [{ kind: 'unknown', detail: '/proc/key-users cannot be read' }];
    if (count === 0) return [];
    if (look === KEY_LOOKS) return [{ kind: 'keyring', detail: `${countOf(count, 'key')} of the kernel` }];
    await pause(KEY_LOOK_MS);
  }
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
    ['IPC objects', () => findIpc(spec.uid)],
    ['keys', () => findKeys(spec.uid)],
    ['mounts', () => mountsBelow(box.box).map((path) => ({ kind: 'mount', detail: escapeText(path) }))],
    ['box', () => (boxExists(box) ? [{ kind: 'file', detail: box.box }] : [])],
    [
      'user records',
      () => listUserRecords(spec).map((name) => ({ kind: 'user-record', detail: escapeText(name) })),
    ],
    ['local files', () => findFiles(spec.uid)],
    ['cron and at', () => findSpooled(spec.uid, userName(spec))],
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
