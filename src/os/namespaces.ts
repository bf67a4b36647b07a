/** The namespaces that processes of this host live in (namespaces(7)), seen through /proc by root. */
import { readlinkSync, statSync } from 'node:fs';
import { errnoOf, XceError } from '../base/errors.ts';
import { listProcessIds } from './processes.ts';

/** One namespace, or one root directory in a mount namespace, and a process that lives there. */
export type Inhabited = { readonly id: string; readonly pid: number };

/** What `read` makes of each process; undefined for one that has gone, and for kernel threads, which have no root. */
const group = (read: (pid: number) => string): readonly Inhabited[] => {
  const found = new Map<string, number>();
  for (const pid of listProcessIds()) {
    try {
      const id = read(pid);
      if (!found.has(id)) found.set(id, pid);
    } catch (error) {
      const errno = errnoOf(error);
      if (errno === 'ENOENT' || errno === 'ESRCH') continue;
      throw new XceError('os', `cannot look at process ${pid}: ${errno ?? String(error)}`, { cause: error });
    }
  }
  return [...found].map(([id, pid]) => ({ id, pid }));
};

/** Every IPC namespace with a process. The id is the kernel's own, as in /proc/PID/ns/ipc. Throws XceError 'os'. */
export const listIpcNamespaces = (): readonly Inhabited[] =>
  group((pid) => readlinkSync(`/proc/${pid}/ns/ipc`));

/** What tells the root directory of a process in its mount namespace from every other. Throws the system's error. */
export const identityOfRoot = (pid: number): string => {
  const { dev, ino } = statSync(`/proc/${pid}/root`);
  return `${readlinkSync(`/proc/${pid}/ns/mnt`)} ${dev}:${ino}`;
};

/** Every root directory of a process, by mount namespace; two of one namespace differ by chroot(2). */
export const listProcessRoots = (): readonly Inhabited[] => group(identityOfRoot);
