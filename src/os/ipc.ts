/** System V IPC and POSIX message queues of this process's IPC namespace (ipc_namespaces(7)). */
import { existsSync, lstatSync, readdirSync } from 'node:fs';
import { errnoOf, XceError } from '../base/errors.ts';
import { readBounded } from './files.ts';

const TABLE_BYTES_MAX = 64 << 20;
const QUEUES_MAX = 1 << 20;

/** The table of one kind; undefined when the kernel has none. Throws XceError. */
export const readSysvTable = (kind: 'shm' | 'sem' | 'msg'): string | undefined => {
  const path = `/proc/sysvipc/${kind}`;
  return existsSync(path) ? readBounded(path, TABLE_BYTES_MAX).toString('latin1') : undefined;
};

export type MessageQueue = { readonly name: string; readonly uid: number; readonly gid: number };

/** Whether the kernel has POSIX message queues at all. */
export const hasMessageQueues = (): boolean => existsSync('/proc/sys/fs/mqueue');

/** All POSIX message queues; /dev/mqueue must be the kernel's file system of them. Throws XceError 'os'. */
export const listMessageQueues = (): readonly MessageQueue[] => {
  try {
    const names = readdirSync('/dev/mqueue');
    if (names.length > QUEUES_MAX) throw new XceError('too-large', `${names.length} message queues`);
    return names.flatMap((name) => {
      try {
        const { uid, gid } = lstatSync(`/dev/mqueue/${name}`);
        return [{ name, uid, gid }];
      } catch (error) {
        if (errnoOf(error) === 'ENOENT') return [];
        throw error;
      }
    });
  } catch (error) {
    if (error instanceof XceError) throw error;
    throw new XceError('os', `cannot list /dev/mqueue: ${errnoOf(error) ?? String(error)}`, { cause: error });
  }
};
