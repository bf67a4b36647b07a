/**
 * Whether what a ticket lets a job write lies where this node's configuration says storage is, and that storage
 * is mounted. An unmounted storage is an empty directory of the node's own disk: a job would run there happily
 * and its files would be on no other node.
 */
import { XceError } from '../base/errors.ts';
import { isNormalPath, isWithin } from '../base/paths.ts';
import type { Settings, StorageSettings } from '../config/settings.ts';
import type { TicketClaims } from '../lease/ticket.ts';
import type { MountFacts } from '../os/mounts.ts';

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
  (settings: Pick<Settings, 'storage' | 'lease'>, look: (path: string) => MountFacts) =>
  (claims: Pick<TicketClaims, 'roots' | 'workspace'>): void => {
    const used = new Set(claims.roots.map((root) => storageOf(root.path, settings.storage)));
    if (claims.workspace !== null) used.add(workspaceStorage(claims.workspace, settings.storage));
    for (const { name, path } of used) {
      const at = { at: path, next: `mount ${path}` };
      let mount: MountFacts;
      try {
        mount = look(path);
      } catch (cause) {
        throw new XceError('mount-changed', `[storage ${name}] ${path} cannot be looked at`, {
          ...at,
          cause,
        });
      }
      // `storage = local` says that this site's storage is the host's own disk.
      if (mount.path === '/' && settings.lease.storage !== 'local') {
        throw new XceError('mount-changed', `[storage ${name}] ${path} is not mounted on this node`, at);
      }
    }
  };
