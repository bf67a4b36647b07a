/**
 * Whether what a ticket lets a job write lies where this node's configuration says storage is, and that storage
 * is mounted.
 */
import { XceError } from '../base/errors.ts';
import { isNormalPath, isWithin } from '../base/paths.ts';
import type { Settings, StorageSettings } from '../config/settings.ts';
import type { TicketClaims } from '../lease/ticket.ts';
import type { MountFacts } from '../os/mounts.ts';
import { requireMounted } from '../sandbox/storage.ts';

const refuse = (path: string, why: string): XceError =>
  new XceError('sandbox-refused', `${path} ${why}`, { at: path });

const storageOf = (path: string, storages: readonly StorageSettings[]): StorageSettings => {
  if (!isNormalPath(path)) throw refuse(path, 'is not an absolute path in its normal form');
  const storage = storages.find((candidate) => isWithin(path, candidate.path));
  if (storage === undefined) throw refuse(path, 'lies in no [storage] of this node');
  return storage;
};

const workspaceStorage = (
  workspace: NonNullable<TicketClaims['workspace']>,
  storages: readonly StorageSettings[],
): StorageSettings => {
  const storage = storages.find((candidate) => candidate.name === workspace.storage);
  if (storage?.workspace === undefined || storage.workspace !== workspace.path) {
    throw refuse(workspace.path, `is not the workspace of [storage ${workspace.storage}] on this node`);
  }
  return storage;
};

/** `look` finds the mount that a path lies in; it throws when the path is not there. */
export const storageCheck =
  (settings: Pick<Settings, 'storage'>, look: (path: string) => MountFacts) =>
  (claims: Pick<TicketClaims, 'roots' | 'workspace'>): void => {
    const used = new Set(claims.roots.map((root) => storageOf(root.path, settings.storage)));
    if (claims.workspace !== null) used.add(workspaceStorage(claims.workspace, settings.storage));
    for (const storage of used) requireMounted(storage, look);
  };
