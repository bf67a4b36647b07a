/**
 * What the worker needs of a way to make sandboxes. One backend per host, configured, never guessed.
 */
import type { Readable, Writable } from 'node:stream';
import type { Attempt, Epoch, InstanceName, JobId, LeaseNumber, NodeName, Uid } from '../base/ids.ts';
import type { Mount, Resources, StepResult } from '../rpc/message.ts';

/** Everything that decides what a sandbox is; all of it comes from a verified ticket and the configuration. */
export type SandboxSpec = {
  readonly instance: InstanceName;
  readonly job: JobId;
  readonly attempt: Attempt;
  readonly lease: LeaseNumber;
  readonly epoch: Epoch;
  readonly uid: Uid;
  readonly node: NodeName;
  readonly nodes: readonly NodeName[];
  /** Paths on shared storage that steps may write besides the workspace; already checked against [storage]. */
  readonly writablePaths: readonly string[];
  /** Absolute path of the workspace root of one [storage], or null for a job without workspace. */
  readonly workspaceRoot: string | null;
};

export type StepSpec = {
  /** Lower-case letters and digits, unique within the sandbox. */
  readonly step: string;
  /** argv as exact bytes; argv[0] is a path or a name looked up in the fixed PATH. */
  readonly argv: readonly Buffer[];
  /** NAME=value as exact bytes, beyond the fixed environment; a name given twice or fixed is refused. */
  readonly environment: readonly Buffer[];
  /** Working directory as exact bytes; null is the workspace, or HOME where there is none. */
  readonly directory: Buffer | null;
};

export type RunningStep = {
  readonly unit: string;
  readonly stdin: Writable;
  readonly stdout: Readable;
  readonly stderr: Readable;
  /** Settles once, after systemd has ended the unit; never rejects for an outcome of the step. */
  readonly ended: Promise<StepResult>;
  /** Sends a signal to the main process of the step; without effect once it has ended. */
  signal(signal: number): Promise<void>;
  /** Ends every process of the step: TERM, the configured grace, KILL. Idempotent. Throws while one outlives that. */
  stop(): Promise<void>;
};

export type CreatedSandbox = {
  /** The anchor unit. */
  readonly unit: string;
  readonly invocationId: string;
  /** False when an equal sandbox of this lease was there already. */
  readonly created: boolean;
  readonly workspace: string | null;
  /** Mount facts of the workspace root and of each writable path, as this node sees them. */
  readonly mounts: readonly Mount[];
};

/** One thing that is left of a uid. `kind` is stable; `detail` is one printable line. */
export type Finding = {
  readonly kind:
    | 'process'
    | 'unit'
    | 'cgroup'
    | 'sysv-shm'
    | 'sysv-sem'
    | 'sysv-msg'
    | 'posix-mqueue'
    | 'keyring'
    | 'cron'
    | 'file'
    | 'mount'
    | 'user-record'
    | 'unknown';
  readonly detail: string;
};

export type SandboxBackend = {
  /** Once, when the worker starts: whether this host can hold sandboxes. Throws 'sandbox-refused'. */
  checkHost(): Promise<void>;
  /** Creates the sandbox or finds the equal one. Leaves nothing behind when it throws. */
  create(spec: SandboxSpec, resources: Resources, remainingMs: number): Promise<CreatedSandbox>;
  /** Arms the deadline timer anew: the anchor is stopped that many milliseconds from now, whoever lives. */
  armDeadline(spec: SandboxSpec, remainingMs: number): Promise<void>;
  /** Throws 'sandbox-lost' when the anchor is not the one that `create` saw. */
  startStep(spec: SandboxSpec, invocationId: string, step: StepSpec): Promise<RunningStep>;
  /** Ends every step and keeps the sandbox: after a restart of the worker nobody reads their output any more. */
  stopSteps(spec: Pick<SandboxSpec, 'instance' | 'job' | 'attempt' | 'lease'>): Promise<void>;
  /** Ends all steps and the anchor, removes deadline, record, mounts and run directories. Idempotent. Throws while
   * a process outlives that; what else it could not remove is for `scan` to name. */
  destroy(spec: Pick<SandboxSpec, 'instance' | 'job' | 'attempt' | 'lease' | 'uid'>): Promise<void>;
  /** Everything on this host that still belongs to the uid. A look that fails is a finding of kind 'unknown'. */
  scan(
    spec: Pick<SandboxSpec, 'instance' | 'job' | 'attempt' | 'lease' | 'uid'>,
  ): Promise<readonly Finding[]>;
  /** Leases of this instance by whose names there is anything on this host: a unit, a user record, a directory. */
  listLeases(): Promise<ReadonlySet<LeaseNumber>>;
  /** Resolves when the anchor of that invocation is no longer active. */
  watchEnd(spec: SandboxSpec, invocationId: string, signal: AbortSignal): Promise<void>;
  /** Whether the anchor of that invocation is active now (after a restart of the worker). */
  isAlive(spec: SandboxSpec, invocationId: string): Promise<boolean>;
};
