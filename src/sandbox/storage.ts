/**
 * Whether a [storage] is mounted on this host. One that is not is an empty directory of the host's own disk: a job
 * would run there happily and its files would be on no other node, and a walk there would find nothing and prove it.
 */
import { messageOf, XceError } from '../base/errors.ts';
import type { StorageSettings } from '../config/settings.ts';
import type { MountFacts } from '../os/mounts.ts';

/** The mount that the storage lies in. `look` throws when the path is not there. Throws 'mount-changed'. */
export const requireMounted = (
  { name, path, local }: Pick<StorageSettings, 'name' | 'path' | 'local'>,
  look: (path: string) => MountFacts,
): MountFacts => {
  const at = { at: path, next: `mount ${path}` };
  let mount: MountFacts;
  try {
    mount = look(path);
  } catch (cause) {
    const why = `[storage ${name}] ${path} cannot be looked at: ${messageOf(cause)}`;
    throw new XceError('mount-changed', why, { ...at, cause });
  }
  if (mount.path === '/' && !local) {
    throw new XceError('mount-changed', `[storage ${name}] ${path} is not mounted on this host`, at);
  }
  return mount;
};
