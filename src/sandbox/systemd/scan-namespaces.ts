/**
 * The looks that a namespace can hide something from: IPC objects belong to an IPC namespace, and files are found
 * below a root directory. Every namespace that a process lives in is looked at. A process that ends meanwhile takes
 * its namespaces along, or leaves them to another one, which the next pass finds.
 */
import { messageOf } from '../../base/errors.ts';
import { escapeBytes } from '../../base/escape.ts';
import type { Uid } from '../../base/ids.ts';
import { readIpcObjects } from '../../os/ipc.ts';
import { type Inhabited, identityOfRoot, listIpcNamespaces, listProcessRoots } from '../../os/namespaces.ts';
import { identityOfDirectory, resolvePath } from '../../os/root-files.ts';
import { runChild } from '../../os/spawn.ts';
import type { Finding } from '../backend.ts';
import { findSysvObjects } from '../traces.ts';

/** A node with more is none that this look can vouch for. */
const NAMESPACES_MAX = 4096;
/** Looks of other leases at the same time have namespaces of their own for a moment. */
const PASSES_MAX = 16;
const TRIES_MAX = 3;
const FIND_TIMEOUT_MS = 120_000;
/** Paths that one find(1) may report before the rest no longer matters. */
const PATHS_MAX = 20;
/** Where a process of the uid could have made files outside of its sandbox. */
const LOCAL_ROOTS = ['/tmp', '/var/tmp', '/dev/shm'] as const;
/** Where cron(8), at(1) and logind(8) keep what runs later. */
const SPOOLS = ['/var/spool/cron', '/var/spool/at', '/var/lib/systemd/linger'] as const;

/**
 * Looks at everything that `list` names, and again at what it names afterwards and was not looked at, until nothing
 * new comes. What could not be looked at, though a process lives there to the end, is 'unknown', and so is what goes
 * on appearing.
 */
const lookAtAll = async (
  list: () => readonly Inhabited[],
  look: (one: Inhabited) => Promise<readonly Finding[]>,
): Promise<readonly Finding[]> => {
  const seen = new Set<string>();
  const failed = new Map<string, { readonly tries: number; readonly why: string }>();
  const found: Finding[] = [];
  for (let pass = 0; ; pass += 1) {
    const left = list().filter(({ id }) => !seen.has(id));
    const due = left.filter(({ id }) => pass < PASSES_MAX && (failed.get(id)?.tries ?? 0) < TRIES_MAX);
    if (due.length === 0) {
      const why = (id: string): string => failed.get(id)?.why ?? `namespaces go on appearing, as ${id}`;
      return [...found, ...left.map(({ id }): Finding => ({ kind: 'unknown', detail: why(id) }))];
    }
    if (seen.size + due.length > NAMESPACES_MAX) {
      return [{ kind: 'unknown', detail: `there are more than ${NAMESPACES_MAX} namespaces` }];
    }
    for (const one of due) {
      try {
        found.push(...(await look(one)));
        seen.add(one.id);
      } catch (error) {
        failed.set(one.id, { tries: (failed.get(one.id)?.tries ?? 0) + 1, why: messageOf(error) });
      }
    }
  }
};

const ipcOf = async ({ id, pid }: Inhabited, own: string, uid: Uid): Promise<readonly Finding[]> => {
  const objects = await readIpcObjects(pid);
  if (objects.namespace !== id) throw new Error(`process ${pid} has left the IPC namespace ${id}`);
  const where = id === own ? '' : `, in ${id} of pid ${pid}`;
  const sysv = (['shm', 'sem', 'msg'] as const).flatMap((kind): readonly Finding[] => {
    if (objects[kind] === '') return [];
    const list = findSysvObjects(objects[kind], uid);
    if (list === undefined)
      return [{ kind: 'unknown', detail: `/proc/sysvipc/${kind} cannot be read${where}` }];
    return list.map((object) => ({
      kind: `sysv-${kind}`,
      detail: `id ${object.id}, key ${object.key}${where}`,
    }));
  });
  const queues = objects.queues
    .filter((queue) => queue.uid === uid || queue.gid === uid)
    .map((queue): Finding => {
      const name = escapeBytes(Buffer.from(queue.name, 'latin1'));
      return { kind: 'posix-mqueue', detail: `/dev/mqueue/${name}${where}` };
    });
  return [...sysv, ...queues];
};

/** System V objects and POSIX queues, whatever IPC namespace they are in. */
export const findIpc = async (uid: Uid): Promise<readonly Finding[]> => {
  const own = listIpcNamespaces().find(({ pid }) => pid === 1)?.id ?? '';
  return await lookAtAll(listIpcNamespaces, (one) => ipcOf(one, own, uid));
};

/** find(1) descends by descriptors and follows no link, so nobody can lead it elsewhere. */
const find = async (
  roots: readonly string[],
  test: readonly string[],
): Promise<{ readonly paths: readonly Buffer[]; readonly why: string | undefined }> => {
  const result = await runChild(
    '/usr/bin/find',
    ['-P', ...roots, '-ignore_readdir_race', '-xdev', '(', ...test, ')', '-print0'],
    { timeoutMs: FIND_TIMEOUT_MS },
  );
  const paths = splitAtNul(result.stdout);
  if (result.exitCode === 0 || (result.truncated && paths.length > 0)) return { paths, why: undefined };
  return { paths, why: result.timedOut ? 'it took too long' : escapeBytes(result.stderr.subarray(0, 200)) };
};

const splitAtNul = (bytes: Buffer): readonly Buffer[] => {
  const parts: Buffer[] = [];
  for (let from = 0; from < bytes.length && parts.length <= PATHS_MAX; ) {
    const nul = bytes.indexOf(0, from);
    const to = nul === -1 ? bytes.length : nul;
    parts.push(bytes.subarray(from, to));
    from = to + 1;
  }
  return parts;
};

const ownedBy = (uid: Uid): readonly string[] => ['-uid', String(uid), '-o', '-gid', String(uid)];

/** Throws where a process has another root than it was listed with, or has ended. */
const requireRoot = (pid: number, root: string): void => {
  if (identityOfRoot(pid) !== root) throw new Error(`process ${pid} has left its root directory`);
};

/** Files in the local roots as every process of the host sees them; a directory that many see is walked once. */
export const findFiles = async (uid: Uid): Promise<readonly Finding[]> => {
  const walked = new Set<string>();
  return await lookAtAll(
    // The host's own first: its paths need no explanation.
    () => listProcessRoots().toSorted((left, right) => left.pid - right.pid),
    async ({ id: root, pid }) => {
      const fresh = LOCAL_ROOTS.flatMap((name) => {
        // A link of the host leads where it says; one of a container would lead out of it.
        const path = pid === 1 ? (resolvePath(name) ?? name) : `/proc/${pid}/root${name}`;
        const id = identityOfDirectory(path);
        return id === undefined || walked.has(id) ? [] : [{ path, id }];
      });
      // A process that has ended shows nothing of a root where others may live on; the next pass takes one of them.
      requireRoot(pid, root);
      if (fresh.length === 0) return [];
      const { paths, why } = await find(
        fresh.map(({ path }) => path),
        ownedBy(uid),
      );
      requireRoot(pid, root);
      if (why !== undefined && paths.length === 0) {
        throw new Error(`${fresh.map(({ path }) => path).join(', ')} could not be searched: ${why}`);
      }
      for (const { id } of fresh) walked.add(id);
      return paths.map((path) => ({ kind: 'file', detail: escapeBytes(path) }));
    },
  );
};

/** Entries that would start something later: by their owner, and by name, because root may own what it runs for others. */
export const findSpooled = async (uid: Uid, userName: string): Promise<readonly Finding[]> => {
  const roots = SPOOLS.flatMap((path) => resolvePath(path) ?? []);
  if (roots.length === 0) return [];
  const { paths, why } = await find(roots, [
    ...ownedBy(uid),
    ...['-o', '-name', String(uid), '-o', '-name', userName],
  ]);
  const found = paths.map((path): Finding => ({ kind: 'cron', detail: escapeBytes(path) }));
  return why === undefined
    ? found
    : [...found, { kind: 'unknown', detail: `${roots.join(', ')} could not be searched: ${why}` }];
};
