/** Whether storage keeps the promises that the lease log rests on. Whatever cannot be shown counts as not kept. */
import { errnoOf, XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import type { ClientVerdict } from '../os/gluster-client.ts';
import type { LogFiles } from '../os/log-files.ts';
import type { MountPlace } from '../os/mount-table.ts';
import { adviseOnStorage, damaged } from './damage.ts';
import { onStorage, reasonOf } from './failure.ts';
import { findChange, type HostRecord, marksOf } from './host-record.ts';
import type { SecondProcess } from './probe-action.ts';
import { LocalParty, ProbeHand, removeLeftProbes, removeProbe } from './probe-hand.ts';
import { LOOK_ROUNDS, probeOneHost } from './probe-script.ts';
import type { ProbeReport, StorageFacts, StoragePort } from './storage.ts';

/** The mount that a directory lies in. */
export type MountView = Omit<MountPlace, 'mountId'>;

type Rule = {
  readonly kind: 'shared' | 'local';
  /** Mount options under which the promises are not kept. */
  readonly refuse: readonly string[];
  /** What neither type nor options show, and a port must: see StoragePorts. */
  readonly needs?: 'client-verdict';
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
    'fuse.glusterfs': { kind: 'shared', refuse: [], needs: 'client-verdict' },
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

export type StoragePorts = {
  readonly files: LogFiles;
  /** Throws XceError 'os' for a directory that is not there. */
  mountOf(directory: string): MountView;
  /** For replicated storage. `fit` is false wherever it could not be shown; what it throws refuses the storage. */
  judgeClient(mount: MountView): Promise<ClientVerdict>;
  randomBytes(count: number): Uint8Array;
  wait(milliseconds: number): Promise<void>;
  wallMs(): number;
  /** A second process on this host that does what a probe asks for in that directory. */
  startSecond(directory: string, probe: string): Promise<SecondProcess>;
  /** What this host has written down of its last probe with another. */
  readonly record: {
    read(): Promise<HostRecord | undefined>;
    write(record: Omit<HostRecord, 'cluster' | 'instance'>): Promise<void>;
    remove(): Promise<void>;
  };
};

/** The storage of the log as a controller knows it. */
export type ControllerStorage = StoragePort & {
  readonly kind: 'shared' | 'local';
  /** The mount, where nothing that one host can tell speaks against it. */
  inspect(directory: string): Promise<MountView>;
  /**
   * Runs a probe with this host as a party; its files are removed whatever happens. Failures come out as refusals, and
   * one of the storage takes back what an earlier probe had shown: this host must write no more.
   */
  withParty<T>(
    probe: { readonly directory: string; readonly id: string; readonly node: string },
    work: (party: LocalParty) => Promise<T>,
  ): Promise<T>;
  /** Writes down what a probe between this host and `peer` has shown. */
  keep(
    mount: MountView,
    probe: { readonly peer: string; readonly kept: readonly string[] },
  ): Promise<ProbeReport>;
};

const NODE_OF_ONE_HOST = 'this host';

export const createStorage = (ports: StoragePorts, kind: 'shared' | 'local'): ControllerStorage => {
  const { files } = ports;

  const unfit = (
    directory: string,
    problem: string,
    facts: { next?: string; cause?: unknown } = {},
  ): XceError => {
    const { detail } = facts.cause instanceof XceError ? facts.cause.facts : {};
    return new XceError('storage-unfit', `${directory} cannot hold the lease log: ${problem}`, {
      at: directory,
      unchanged: 'nothing was written to the lease log',
      next:
        kind === 'shared'
          ? 'give [lease] directory on storage that all controllers share; storage = local is for one controller'
          : 'correct [lease] storage or directory',
      ...(detail === undefined ? {} : { detail }),
      ...facts,
    });
  };

  const missing = (directory: string, cause?: unknown): XceError =>
    damaged(
      kind === 'local' ? 'local-directory' : 'directory',
      `${directory} is not a directory`,
      { directory },
      { cause },
    );

  const mountOf = async (directory: string): Promise<MountView> => {
    let mount: MountView | undefined;
    try {
      // The look at the mount has no deadline of its own: it is for storage that has just given an answer.
      const found = await files.identify(directory);
      if (found !== undefined) mount = ports.mountOf(directory);
    } catch (error) {
      const errno = errnoOf(error instanceof XceError ? error.facts.cause : error);
      if (errno !== 'ENOENT' && errno !== 'ENOTDIR') {
        throw new XceError('log-io', `cannot look at ${directory}: ${reasonOf(error)}`, {
          at: directory,
          next: adviseOnStorage(errno, directory),
          cause: error,
        });
      }
      throw missing(directory, error);
    }
    if (mount === undefined) throw missing(directory);
    return mount;
  };

  const factsOf = ({ type, source, path }: MountView): StorageFacts => ({ type, source, path });

  const lookAt = async (directory: string): Promise<MountView> => {
    const mount = await mountOf(directory);
    const problem = findMountProblem(mount, kind);
    if (problem === undefined) return mount;
    throw unfit(directory, `${problem} (mounted at ${mount.path})`);
  };

  const inspect = async (directory: string): Promise<MountView> => {
    const mount = await lookAt(directory);
    if (RULES.get(mount.type)?.needs === undefined) return mount;
    const { fit, text } = await ports.judgeClient(mount);
    if (fit) return mount;
    throw unfit(directory, text);
  };

  const admit = async (directory: string): Promise<StorageFacts> => {
    const mount = await inspect(directory);
    if (kind === 'local') return factsOf(mount);
    const next =
      'xce-sandbox lease probe --peer HOST, with "lease probe --listen" on HOST, another controller';
    const record = await ports.record.read();
    if (record === undefined) {
      throw unfit(directory, 'this host has not probed it together with another controller', { next });
    }
    const change = findChange(record.mount, marksOf(mount));
    if (change !== undefined) {
      throw unfit(directory, `it is not mounted as it was when this host probed it: ${change}`, { next });
    }
    return { ...factsOf(mount), probe: record.probe };
  };

  /** What came of a probe that failed, said as a refusal of the storage; what is another's code stays. */
  const refusal = (directory: string, error: unknown): XceError => {
    if (!(error instanceof XceError)) return unfit(directory, reasonOf(error), { cause: error });
    const { code, message, facts } = error;
    if (code === 'storage-unfit') return unfit(directory, message, { cause: error });
    return new XceError(code, message, { ...facts, unchanged: 'nothing was written to the lease log' });
  };

  const withParty: ControllerStorage['withParty'] = async ({ directory, id, node }, work) => {
    try {
      await onStorage('tidy', directory, () => removeLeftProbes(files, directory, ports.wallMs()));
      const party = new LocalParty(node, new ProbeHand(ports, directory, id), () =>
        ports.startSecond(directory, id),
      );
      const [outcome] = await Promise.allSettled([work(party)]);
      const [tidied] = await Promise.allSettled([
        party.close().finally(() => onStorage('tidy', directory, () => removeProbe(files, directory, id))),
      ]);
      if (outcome.status === 'rejected') throw outcome.reason;
      if (tidied.status === 'rejected') throw tidied.reason;
      return outcome.value;
    } catch (error) {
      const refused = refusal(directory, error);
      if (kind === 'shared' && refused.code === 'storage-unfit') await ports.record.remove();
      throw refused;
    }
  };

  return {
    kind,
    inspect,
    admit,
    withParty,
    look: async (directory) => factsOf(await lookAt(directory)),
    probe: async (directory) => {
      if (kind === 'shared') return await admit(directory);
      const mount = await inspect(directory);
      const id = Buffer.from(ports.randomBytes(LIMITS.probeIdBytes)).toString('hex');
      const kept = await withParty({ directory, id, node: NODE_OF_ONE_HOST }, (party) =>
        probeOneHost(party, 'a'),
      );
      return { ...factsOf(mount), probe: { kept, peer: null } };
    },
    keep: async (mount, { peer, kept }) => {
      const probe = { kept, peer: { node: peer, rounds: LOOK_ROUNDS, stale: 0 } };
      await ports.record.write({ wallMs: ports.wallMs(), mount: marksOf(mount), probe });
      return probe;
    },
  };
};
