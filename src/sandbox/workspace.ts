/**
 * Where the workspace of a job attempt is on its storage, and who may come near it.
 *
 *   ROOT/INSTANCE                root, 0711
 *   ROOT/INSTANCE/JOB.ATTEMPT    the gate: root and the leased gid, 0710
 *   .../JOB.ATTEMPT/work         the job's own: leased uid and gid, 0700 or whatever the job makes of it
 *
 * Without the gate a job could make its directory 0777, and its submitter, a living account, could move files of
 * the leased uid to where normalise does not look. It is opened once nothing of the uid is left behind it.
 */
import { posix } from 'node:path';
import type { InstanceName } from '../base/ids.ts';
import { listNames, ownerOfDirectory } from '../os/root-files.ts';
import { closeDirectory, type DirectoryHandle, ensureDirectory, openRooted, setOwner } from '../os/rooted.ts';
import { type SandboxKey, workspaceName } from './names.ts';

const INNER = 'work';

export type WorkspacePaths = { readonly gate: string; readonly directory: string };

/** The paths of one job attempt below the workspace root of a [storage]. */
export const workspacePaths = (
  root: string,
  key: Pick<SandboxKey, 'instance' | 'job' | 'attempt'>,
): WorkspacePaths => {
  const gate = posix.join(root, key.instance, workspaceName(key));
  return { gate, directory: posix.join(gate, INNER) };
};

/**
 * Makes the workspace below an open directory of root's, or takes the one that another node of the job has just
 * made, and returns its path. Throws XceError 'sandbox-refused' or 'sandbox-exists'.
 */
export const makeWorkspaceIn = (
  root: DirectoryHandle,
  key: Pick<SandboxKey, 'instance' | 'job' | 'attempt'>,
  uid: number,
): string => {
  const open: DirectoryHandle[] = [];
  const step = (name: string, owner: Parameters<typeof ensureDirectory>[2]): DirectoryHandle => {
    const directory = ensureDirectory(open.at(-1) ?? root, name, owner);
    open.push(directory);
    return directory;
  };
  try {
    step(key.instance satisfies InstanceName, { uid: 0, gid: 0, mode: 0o711 });
    const gate = { uid: 0, gid: uid, mode: 0o710 };
    setOwner(step(workspaceName(key), gate), gate);
    return step(INNER, { uid, gid: uid, mode: 0o700 }).path;
  } finally {
    for (const directory of open) closeDirectory(directory);
  }
};

/** The gates below a workspace root, open or shut. Throws XceError 'os'. */
export const gatesIn = (root: string, instance: InstanceName): readonly string[] => {
  const directory = posix.join(root, instance);
  return listNames(directory).map((name) => posix.join(directory, name));
};

/** The group that may enter a gate that is shut; undefined for one that is open, or gone. Throws XceError 'os'. */
export const groupOfShutGate = (path: string): number | undefined => {
  const facts = ownerOfDirectory(path);
  return facts === undefined || facts.uid !== 0 || (facts.mode & 0o7) !== 0 ? undefined : facts.gid;
};

/**
 * Lets everybody reach what now belongs to the submitter, and takes the leased gid off the gate. Only after a verify
 * pass has found nothing of the uid behind it. Throws XceError 'sandbox-refused'.
 */
export const openGate = (path: string): void => {
  const gate = openRooted(path, 'roots');
  try {
    setOwner(gate, { uid: 0, gid: 0, mode: 0o711 });
  } finally {
    closeDirectory(gate);
  }
};
