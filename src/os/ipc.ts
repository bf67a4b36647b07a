/** System V IPC and POSIX message queues of one IPC namespace (ipc_namespaces(7)). */
import { XceError } from '../base/errors.ts';
import { escapeBytes } from '../base/escape.ts';
import { LIMITS } from '../base/limits.ts';
import { runChild } from './spawn.ts';

const LOOK_TIMEOUT_MS = 30_000;

export type MessageQueue = { readonly name: string; readonly uid: number; readonly gid: number };

export type IpcObjects = {
  /** The id of the namespace that was looked at. */
  readonly namespace: string;
  /** /proc/sysvipc/{shm,sem,msg}; empty where the kernel has none. */
  readonly shm: string;
  readonly sem: string;
  readonly msg: string;
  readonly queues: readonly MessageQueue[];
};

/**
 * bash, inside the namespace: its id, three tables and the queues, with NUL between and behind. The queues are seen
 * on a mount of our own, because a namespace need not have one, and a mount that is there may be of another. Where it is
 * of this one, mount(8) of util-linux 2.38 refuses to mount it on itself, but not on what covers it.
 */
const LOOK = [
  'set -e',
  'readlink -n /proc/self/ns/ipc; printf "\\0"',
  'for k in shm sem msg; do if [ -e /proc/sysvipc/$k ]; then cat /proc/sysvipc/$k; fi; printf "\\0"; done',
  'if [ -e /proc/sys/fs/mqueue ]; then',
  'mount -t tmpfs tmpfs /dev/mqueue',
  'mount -t mqueue mqueue /dev/mqueue',
  'find /dev/mqueue -mindepth 1 -ignore_readdir_race -printf "%U %G %f\\0"',
  'fi',
].join('\n');

const parseQueue = (text: string): MessageQueue => {
  const [, uid = '', gid = '', name = ''] = /^([0-9]+) ([0-9]+) (.*)$/s.exec(text) ?? [];
  if (name === '') throw new XceError('os', 'a message queue is listed without owner');
  return { name, uid: Number(uid), gid: Number(gid) };
};

/** What there is in the IPC namespace of a process. Throws XceError 'os'. */
export const readIpcObjects = async (pid: number): Promise<IpcObjects> => {
  // Nothing is done with a process that ended after it was listed: nsenter(1) then has no file to open.
  const enter = [`--ipc=/proc/${pid}/ns/ipc`, '--', '/usr/bin/unshare', '--mount'];
  const look = await runChild('/usr/bin/nsenter', [...enter, '--', '/bin/bash', '-c', LOOK], {
    timeoutMs: LOOK_TIMEOUT_MS,
    outputBytesMax: LIMITS.ipcTablesBytesMax,
  });
  if (look.exitCode !== 0 || look.truncated) {
    const said = look.truncated ? 'there is too much in it' : escapeBytes(look.stderr.subarray(0, 200));
    const why = look.timedOut ? 'it took too long' : said;
    throw new XceError('os', `the IPC namespace of process ${pid} cannot be read: ${why}`);
  }
  const [namespace = '', shm = '', sem = '', msg = '', ...queues] = look.stdout
    .toString('latin1')
    .split('\0');
  return { namespace, shm, sem, msg, queues: queues.filter((text) => text !== '').map(parseQueue) };
};
