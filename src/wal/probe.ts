/** Whether storage keeps the promises that the lease log rests on. Whatever cannot be shown counts as not kept. */
import { join } from 'node:path';
import { errnoOf, XceError } from '../base/errors.ts';
import type { LogFile, LogFiles } from '../os/log-files.ts';
import { appendAll, lockFailure, onStorage, reasonOf, unlinkIfThere } from './failure.ts';
import type { StorageFacts, StoragePort } from './storage.ts';

/** The mount that a directory lies in; os/mounts.ts has more of it. */
export type MountView = {
  readonly path: string;
  readonly source: string;
  readonly type: string;
  readonly options: readonly string[];
  readonly superOptions: readonly string[];
};

type Rule = {
  readonly kind: 'shared' | 'local';
  /** Mount options under which the promises are not kept. */
  readonly refuse: readonly string[];
  /** What neither type nor options show, and a port must: see StoragePorts. */
  readonly needs?: 'client-quorum';
};

const LOCAL: Rule = { kind: 'local', refuse: [] };
const SHARED: Rule = { kind: 'shared', refuse: [] };
/** With these a client keeps locks to itself, or shows an old directory although it is opened anew (nfs(5)). */
const NFS: Rule = { kind: 'shared', refuse: ['nolock', 'local_lock=all', 'local_lock=posix', 'nocto'] };

/** A type that is not here is refused: nothing is known of its locks. */
const RULES: ReadonlyMap<string, Rule> = new Map(
  Object.entries<Rule>({
    nfs: NFS,
    nfs4: NFS,
    ceph: SHARED,
    gpfs: SHARED,
    gfs2: SHARED,
    ocfs2: SHARED,
    lustre: { kind: 'shared', refuse: ['noflock', 'localflock'] },
    'fuse.glusterfs': { kind: 'shared', refuse: [], needs: 'client-quorum' },
    ext2: LOCAL,
    ext3: LOCAL,
    ext4: LOCAL,
    xfs: LOCAL,
    btrfs: LOCAL,
    zfs: LOCAL,
    f2fs: LOCAL,
    bcachefs: LOCAL,
    overlay: LOCAL,
    tmpfs: LOCAL,
  }),
);

/** Why type and options of a mount forbid a log of this kind; undefined when they do not. */
export const findMountProblem = (mount: MountView, storage: 'shared' | 'local'): string | undefined => {
  const rule = RULES.get(mount.type);
  if (rule === undefined) return `nothing is known of the locks of ${mount.type}`;
  if (rule.kind !== storage) {
    return rule.kind === 'local'
      ? `${mount.type} is storage of this host alone`
      : `${mount.type} is shared storage, and the configuration says it is local`;
  }
  const options = [...mount.options, ...mount.superOptions];
  if (options.includes('ro')) return 'it is mounted read-only';
  const refused = rule.refuse.find((option) => options.includes(option));
  return refused === undefined ? undefined : `it is mounted with ${refused}`;
};

/** Whether a client that has lost the majority of the replicas stops writing; `text` says what was found out. */
export type ClientQuorum = { readonly known: boolean; readonly text: string };

export type StoragePorts = {
  readonly files: LogFiles;
  /** Throws XceError 'os' for a directory that is not there. */
  mountOf(directory: string): MountView;
  /** For replicated storage. `known` is false wherever it could not be shown; what it throws refuses the storage. */
  clientQuorum(mount: MountView): Promise<ClientQuorum>;
  randomBytes(count: number): Uint8Array;
};

const expectErrno = async (errno: string, call: Promise<unknown>): Promise<boolean> => {
  try {
    await call;
    return false;
  } catch (error) {
    if (errnoOf(error) === errno) return true;
    throw error;
  }
};

const closeAll = async (files: readonly LogFile[]): Promise<void> => {
  for (const file of files) await file.close();
};

/** Two descriptors of one file stand for two processes: an OFD lock belongs to the open file, not the process. */
const locksExclude = async (files: LogFiles, path: string): Promise<boolean> => {
  const open: LogFile[] = [];
  try {
    const first = await files.open(path, 'append');
    open.push(first);
    const second = await files.open(path, 'append');
    open.push(second);
    try {
      const excludes = first.tryLock() && !second.tryLock();
      first.unlock();
      const frees = second.tryLock();
      second.unlock();
      return excludes && frees;
    } catch (error) {
      throw lockFailure(path, error);
    }
  } finally {
    await closeAll(open);
  }
};

const keepsBytes = async (files: LogFiles, path: string): Promise<boolean> => {
  const text = Buffer.from('what was fsynced is read back');
  const file = await files.open(path, 'append');
  try {
    await appendAll(file, text);
    await file.sync();
    const back = Buffer.alloc(text.length + 1);
    const count = await file.read(back, 0);
    return text.equals(back.subarray(0, count));
  } finally {
    await file.close();
  }
};

/** The promises, in the order in which they are tried on `path` and `other`, two names that are free. */
const PROMISES: readonly {
  readonly name: string;
  readonly isKept: (files: LogFiles, directory: string, path: string, other: string) => Promise<boolean>;
}[] = [
  {
    name: 'exclusive create',
    isKept: async (files, _directory, path) => {
      await (await files.open(path, 'create')).close();
      return await expectErrno('EEXIST', files.open(path, 'create'));
    },
  },
  { name: 'fsync', isKept: (files, _directory, path) => keepsBytes(files, path) },
  {
    name: 'exclusive link',
    isKept: async (files, _directory, path, other) => {
      await files.link(path, other);
      const isSame = (await files.identify(path)) === (await files.identify(other));
      return isSame && (await expectErrno('EEXIST', files.link(path, other)));
    },
  },
  {
    name: 'fsync of the directory',
    isKept: async (files, directory) => {
      await files.syncDirectory(directory);
      return true;
    },
  },
  { name: 'locks that exclude', isKept: (files, _directory, path) => locksExclude(files, path) },
];

export const createStorage = (ports: StoragePorts, storage: 'shared' | 'local'): StoragePort => {
  const unfit = (directory: string, problem: string, cause?: unknown): XceError =>
    new XceError('storage-unfit', `${directory} cannot hold the lease log: ${problem}`, {
      at: directory,
      unchanged: 'nothing was written to the lease log',
      next:
        storage === 'shared'
          ? 'give [lease] directory on storage that all controllers share; storage = local is for one controller'
          : 'correct [lease] storage or directory',
      ...(cause === undefined ? {} : { cause }),
    });

  /** Why what the type needs beside its options is missing; undefined when it is there. */
  const findMissing = async (mount: MountView): Promise<string | undefined> => {
    if (RULES.get(mount.type)?.needs === undefined) return undefined;
    const { known, text } = await ports.clientQuorum(mount);
    return known ? undefined : `no proven client quorum: ${text}`;
  };

  const look = async (directory: string): Promise<StorageFacts> => {
    let mount: MountView;
    try {
      mount = ports.mountOf(directory);
    } catch (error) {
      const errno = errnoOf(error instanceof XceError ? error.facts.cause : error);
      if (errno !== 'ENOENT' && errno !== 'ENOTDIR') {
        throw new XceError('log-io', `cannot look at ${directory}: ${reasonOf(error)}`, {
          at: directory,
          cause: error,
        });
      }
      throw new XceError('log-missing', `${directory} is not there: ${reasonOf(error)}`, {
        at: directory,
        next: 'mount the storage of the lease log, or correct [lease] directory',
        cause: error,
      });
    }
    const problem = findMountProblem(mount, storage) ?? (await findMissing(mount));
    if (problem !== undefined) throw unfit(directory, `${problem} (mounted at ${mount.path})`);
    const { type, source, path } = mount;
    return { type, source, path };
  };

  const probe = async (directory: string): Promise<StorageFacts> => {
    const facts = await look(directory);
    const { files } = ports;
    const name = join(directory, `.xce-probe-${Buffer.from(ports.randomBytes(8)).toString('hex')}`);
    const kept: string[] = [];
    try {
      for (const promise of PROMISES) {
        let isKept: boolean;
        try {
          isKept = await promise.isKept(files, directory, name, `${name}.link`);
        } catch (error) {
          if (error instanceof XceError) throw error;
          throw unfit(directory, `${promise.name}: ${reasonOf(error)}`, error);
        }
        if (!isKept) throw unfit(directory, `no ${promise.name}`);
        kept.push(promise.name);
      }
    } finally {
      for (const path of [name, `${name}.link`])
        await onStorage('remove', path, () => unlinkIfThere(files, path));
    }
    return { ...facts, probe: { kept, staleness: null } };
  };

  return { look, probe };
};
