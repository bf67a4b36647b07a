/**
 * What a sandbox has on the file system of its node beside its units: box directory, two tmpfs, user record,
 * workspace. The box is made first and removed last: no box, nothing of ours.
 */

import { dirname, join } from 'node:path';
import { XceError } from '../../base/errors.ts';
import { escapeBytes } from '../../base/escape.ts';
import type { InstanceName, LeaseNumber, Uid } from '../../base/ids.ts';
import { isWithin } from '../../base/paths.ts';
import type { Settings } from '../../config/settings.ts';
import { readMountTable } from '../../os/mount-table.ts';
import {
  createFile,
  createLink,
  kindOf,
  listNames,
  makeDirectory,
  readFileIfThere,
  readLink,
  removeDirectory,
  removeFile,
} from '../../os/root-files.ts';
import { closeDirectory, ensureDirectory, openRooted } from '../../os/rooted.ts';
import { runChild } from '../../os/spawn.ts';
import type { SandboxSpec } from '../backend.ts';
import { type BoxPaths, boxesDirectory } from '../box.ts';
import { namePrefix } from '../names.ts';
import { encodeUserRecord, HOME_DIRECTORY } from '../user-record.ts';
import { makeWorkspaceIn } from '../workspace.ts';
import { RECORD_BYTES_MAX, USERDB_DIRECTORY } from './own-record.ts';

const MOUNT_TIMEOUT_MS = 30_000;
const ROOT = { uid: 0, gid: 0 } as const;

type Lease = { readonly instance: InstanceName; readonly lease: LeaseNumber; readonly uid: Uid };

const privateTo = (uid: Uid) => ({ uid, gid: uid, mode: 0o700 }) as const;

/** The directories of the box, before anything is mounted there. */
export const makeBox = (runDirectory: string, box: BoxPaths): void => {
  const parent = dirname(runDirectory);
  if (kindOf(parent) === 'none') makeDirectory(parent, { ...ROOT, mode: 0o755 });
  makeDirectory(runDirectory, { ...ROOT, mode: 0o711 });
  makeDirectory(boxesDirectory(runDirectory), { ...ROOT, mode: 0o711 });
  makeDirectory(box.box, { ...ROOT, mode: 0o711 });
  makeDirectory(box.inputs, { ...ROOT, mode: 0o711 });
  makeDirectory(box.homeMount, { ...ROOT, mode: 0o700 });
  makeDirectory(box.scratch, { ...ROOT, mode: 0o700 });
  makeDirectory(box.shm, { ...ROOT, mode: 0o700 });
};

const mountTmpfs = async (at: string, source: string, options: readonly string[]): Promise<void> => {
  const result = await runChild(
    '/usr/bin/mount',
    ['-t', 'tmpfs', '-o', ['nosuid', 'nodev', ...options].join(','), '--', source, at],
    { timeoutMs: MOUNT_TIMEOUT_MS },
  );
  if (result.exitCode !== 0) {
    throw new XceError('sandbox-refused', `cannot mount ${at}: ${escapeBytes(result.stderr).slice(0, 300)}`);
  }
};

/** Mounts the private /tmp, /var/tmp, home and /dev/shm. They are limited in size, so a job cannot fill /run. */
export const mountBox = async (box: BoxPaths, lease: Lease, settings: Settings['sandbox']): Promise<void> => {
  const source = `${namePrefix(lease.instance)}${lease.lease}`;
  const inodes = `nr_inodes=${settings.tmpInodes}`;
  await Promise.all([
    mountTmpfs(box.scratch, source, [`size=${settings.tmpBytes}`, inodes, 'mode=0711']),
    mountTmpfs(box.shm, source, [
      `size=${settings.shmBytes}`,
      inodes,
      'mode=0700',
      `uid=${lease.uid}`,
      `gid=${lease.uid}`,
    ]),
  ]);
  for (const path of [box.tmp, box.varTmp, box.home]) makeDirectory(path, privateTo(lease.uid));
};

/** Mount points at or below a directory, deepest first. */
export const mountsBelow = (directory: string): readonly string[] =>
  readMountTable()
    .map((entry) => entry.path)
    .filter((path) => isWithin(path, directory))
    .toReversed();

/** Unmounts what is mounted in the box and removes it, unless something of it stays mounted. */
export const removeBox = async (box: BoxPaths): Promise<void> => {
  for (const path of mountsBelow(box.box)) {
    await runChild('/usr/bin/umount', ['--', path], { timeoutMs: MOUNT_TIMEOUT_MS });
  }
  // Below a mount that stayed lie files of the job: nothing there is touched, and scan names the mount.
  if (mountsBelow(box.box).length > 0) return;
  for (const name of listNames(box.inputs)) removeFile(join(box.inputs, name));
  for (const directory of [box.inputs, box.homeMount, box.scratch, box.shm]) removeDirectory(directory);
  for (const name of listNames(box.box)) removeFile(join(box.box, name));
  removeDirectory(box.box);
};

/** Refuses a second record of the uid or the name; one with the same text is our own of an attempt that failed. */
export const writeUserRecord = (lease: Lease): void => {
  const record = encodeUserRecord(lease);
  makeDirectory(USERDB_DIRECTORY, { ...ROOT, mode: 0o755 });
  const taken = (path: string): XceError =>
    new XceError('sandbox-exists', `${path} is a user record of somebody else`, { at: path });
  for (const { name, text } of record.files) {
    const path = join(USERDB_DIRECTORY, name);
    if (createFile(path, Buffer.from(text), { ...ROOT, mode: 0o644 })) continue;
    if (readFileIfThere(path, RECORD_BYTES_MAX)?.toString('utf8') !== text) throw taken(path);
  }
  for (const { name, target } of record.links) {
    const path = join(USERDB_DIRECTORY, name);
    if (!createLink(path, target) && readLink(path) !== target) throw taken(path);
  }
};

export const removeUserRecord = (lease: Lease): void => {
  const record = encodeUserRecord(lease);
  for (const { name, target } of record.links) {
    const path = join(USERDB_DIRECTORY, name);
    if (readLink(path) === target) removeFile(path);
  }
  for (const { name } of record.files) removeFile(join(USERDB_DIRECTORY, name));
};

/** Names in the record directory that say something about the lease's uid or name. */
export const listUserRecords = (lease: Lease): readonly string[] => {
  const stems = [encodeUserRecord(lease).name, String(lease.uid)];
  return listNames(USERDB_DIRECTORY).filter((file) =>
    stems.some(
      (stem) =>
        file.startsWith(`${stem}.`) || file.startsWith(`${stem}:`) || file.endsWith(`:${stem}.membership`),
    ),
  );
};

/** The path that user records name as home: outside of sandboxes an empty directory of root. */
export const makeRecordHome = (): void => {
  makeDirectory('/run/xce', { ...ROOT, mode: 0o755 });
  makeDirectory(HOME_DIRECTORY, { ...ROOT, mode: 0o555 });
};

/** Makes the workspace of the job attempt where it has one. Throws XceError 'sandbox-refused' or 'sandbox-exists'. */
export const makeWorkspace = (spec: SandboxSpec): string | null => {
  if (spec.workspaceRoot === null) return null;
  const root = openWorkspaceRoot(spec.workspaceRoot);
  try {
    return makeWorkspaceIn(root, spec, spec.uid);
  } finally {
    closeDirectory(root);
  }
};

/** The workspace root itself may be missing on storage that has just been set up; its parent may not. */
const openWorkspaceRoot = (path: string): ReturnType<typeof openRooted> => {
  const slash = path.lastIndexOf('/');
  const parent = openRooted(slash === 0 ? '/' : path.slice(0, slash), 'roots');
  try {
    return ensureDirectory(parent, path.slice(slash + 1), { ...ROOT, mode: 0o711 });
  } finally {
    closeDirectory(parent);
  }
};

/** Paths that a sandbox replaces by its own, or hides: storage below them would be out of reach inside. */
const HIDDEN = ['/run', '/var/run', '/tmp', '/var/tmp', '/home', '/root', '/dev', '/proc', '/sys'] as const;

/** Refuses storage at a place that sandboxes hide or replace by their own. */
export const checkVisible = (path: string): void => {
  const hidden = HIDDEN.find((directory) => isWithin(path, directory));
  if (path === '/' || hidden !== undefined) {
    throw new XceError(
      'sandbox-refused',
      `${path} cannot be storage of jobs: sandboxes hide ${hidden ?? path}`,
    );
  }
};

/** Refuses a writable path that steps could not see, or whose parents others than root may change. */
export const checkWritablePath = (path: string): void => {
  checkVisible(path);
  closeDirectory(openRooted(path, 'anyones'));
};

export const boxExists = (box: BoxPaths): boolean => kindOf(box.box) !== 'none';
