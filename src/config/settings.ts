import type { IdRange } from '../base/id-range.ts';
import type { InstanceName, NodeName, Uid } from '../base/ids.ts';
import type { OwnVariables, SchedulerName } from '../scheduler/schedulers.ts';

/** One `[storage NAME]` section: a shared file system that jobs write to. */
export type StorageSettings = {
  readonly name: string;
  /** Absolute path of the mount point, the same on every node. */
  readonly path: string;
  /** Directory below `path` in which each job gets its own workspace directory; absent: no workspace here. */
  readonly workspace: string | undefined;
  /** A directory of the host's own disk, on purpose; else a path that nothing is mounted at is refused. */
  readonly local: boolean;
};

/** One `[environment NAME]` section: variables that a job gets which asks for them by that name. */
export type EnvironmentSettings = {
  readonly name: string;
  readonly variables: readonly { readonly name: string; readonly value: string }[];
};

/**
 * The whole effective configuration. Controllers and workers read the same file. Durations are milliseconds,
 * sizes bytes. Keys of the file are the same words in snake_case.
 */
export type Settings = {
  readonly cluster: {
    readonly name: string;
    readonly instance: InstanceName;
    /** Directory with certificates and keys. */
    readonly pki: string;
  };
  /** No default: a missing pool is a configuration error. */
  readonly pool: IdRange & { readonly first: Uid; readonly last: Uid };
  readonly directory: {
    /** A uid that must resolve: a name service that cannot find it cannot prove absence. */
    readonly controlUid: number;
    /** Further ranges that the site declares as taken. */
    readonly ranges: readonly IdRange[];
    readonly timeoutMs: number;
  };
  readonly lease: {
    readonly directory: string;
    readonly storage: 'shared' | 'local';
    /** Where a controller listens while another one probes the storage with it. */
    readonly probeListen: { readonly address: string; readonly port: number };
    readonly lockTimeoutMs: number;
    /** For each call on the storage of the log; it has then failed, whatever becomes of it. */
    readonly storageTimeoutMs: number;
    readonly skewMs: number;
    readonly ttlMs: number;
    readonly rememberDays: number;
  };
  readonly nodes: {
    readonly hosts: readonly NodeName[];
    readonly port: number;
    readonly connectTimeoutMs: number;
    readonly requestTimeoutMs: number;
  };
  readonly worker: {
    /** Own node name; the host name unless given. */
    readonly node: NodeName;
    /** Address and port of the TLS listener. */
    readonly listen: { readonly address: string; readonly port: number };
    /** Of this instance alone: `<[worker] state_directory>/<instance>`. */
    readonly stateDirectory: string;
    /** Of this instance alone, gone after a reboot: `<[worker] run_directory>/<instance>`. */
    readonly runDirectory: string;
    /** Within which a drain has to end or to say what is left; longer than sandbox.stopTimeoutMs. */
    readonly drainTimeoutMs: number;
  };
  readonly sandbox: {
    readonly tasksMax: number;
    /** Share of processors of one job on one node, 100 for each; null: no limit. */
    readonly cpuPercent: number | null;
    /** Processors that jobs may run on; null: all. */
    readonly cpus: readonly number[] | null;
    /** Memory of one job on one node, /tmp and /dev/shm included; null: no limit. */
    readonly memoryBytes: number | null;
    readonly tmpBytes: number;
    readonly tmpInodes: number;
    readonly shmBytes: number;
    /** Value of LimitMEMLOCK=: `infinity`, or bytes in digits. */
    readonly memlock: string;
    /** The soft limit of the stack; null: none. */
    readonly stackBytes: number | null;
    readonly stopTimeoutMs: number;
    /** Whether a job reaches the nodes of the job alone. */
    readonly network: 'job-nodes' | 'open';
    /** Names that a job's node has on the network, `%n` for its own. */
    readonly networkNames: readonly string[];
    /** What every job may reach beside its nodes. */
    readonly networkAllow: readonly { readonly address: string; readonly prefix: number }[];
    /** PATH of a step that sets none. */
    readonly path: string;
    /** Device paths, with `*` in the last component, that a step may open beside the pseudo devices. */
    readonly devices: readonly string[];
    /** Names of supplementary groups; none by default. */
    readonly groups: readonly string[];
    /** Names of variables of the caller that launch passes on. */
    readonly passEnvironment: readonly string[];
  };
  readonly hooks: {
    /** Whose hooks run here; null: the one whose job id is in the environment. */
    readonly scheduler: SchedulerName | null;
    /** Within which a hook has to end. */
    readonly deadlineMs: number;
    /** What a lease lives longer than its job may run. */
    readonly graceMs: number;
    /** The program that drains nodes of the batch system; undefined: nodes are named and not drained. */
    readonly drain: string | undefined;
    /** Variables in which a batch system of the site's own says what the hooks need. */
    readonly own: OwnVariables;
  };
  readonly storage: readonly StorageSettings[];
  readonly environments: readonly EnvironmentSettings[];
  readonly mpi: {
    /** CIDR or interface names for PRRTE and the TCP BTL; empty: let them choose. */
    readonly interfaces: readonly string[];
    readonly agentTimeoutMs: number;
  };
};
