/**
 * What the worker's rules need of the world. main.ts gives the real ones; tests give their own.
 */

import type { InstanceName, LeaseNumber, NodeName, Uid } from '../base/ids.ts';
import type { CertificateClaims } from '../lease/certificate.ts';
import type { Verdict } from '../lease/refusal.ts';
import type { TicketClaims } from '../lease/ticket.ts';
import type { Clock } from '../os/clock.ts';
import type { StateFiles } from '../os/state-files.ts';
import type { RpcSession } from '../rpc/session.ts';
import type { SandboxBackend } from '../sandbox/backend.ts';

export type AgentSocket = {
  /** Stops listening, ends its connections and removes the name. */
  close(): Promise<void>;
};

/** One line for the log of the host. Text of others in it is escaped where the line is written. */
export type Report = {
  /** 'fault': something of ours or of the host failed. */
  readonly level: 'notice' | 'fault';
  readonly message: string;
};

/** Told of steps, to count them. */
export type StepMeter = {
  stepStarted(kind: 'task' | 'head' | 'daemon'): void;
  /** `result` as systemd has it. */
  stepEnded(result: string): void;
};

export type SupervisorPorts = {
  readonly cluster: string;
  readonly instance: InstanceName;
  readonly node: NodeName;
  readonly clock: Clock;
  readonly bootId: string;
  readonly backend: SandboxBackend;
  /** Form and signature of a ticket. */
  readonly openTicket: (ticket: string) => Verdict<TicketClaims>;
  /** Throws 'uid-taken' or 'name-service' unless name services prove that uid and gid are nobody's. */
  readonly requireUnused: (uid: Uid) => Promise<void>;
  /** Throws unless every path that the job may write lies in a configured storage that is mounted. */
  readonly requireStorage: (claims: TicketClaims) => void;
  /** Throws unless the uid lies in the configured pool. */
  readonly requirePool: (uid: Uid) => void;
  readonly signCertificate: (claims: CertificateClaims) => string;
  /** One file per sandbox, durable. */
  readonly records: StateFiles;
  /** One file per sandbox with running steps, gone at reboot: a worker that finds one has lost their streams. */
  readonly busy: StateFiles;
  readonly openAgentSocket: (lease: LeaseNumber, uid: Uid) => Promise<AgentSocket>;
  readonly report: (report: Report) => void;
  readonly meter: StepMeter;
  /** A daemon that has not started within this time is given up. */
  readonly startTimeoutMs: number;
  readonly drainTimeoutMs: number;
};

/** Opens a connection to the worker of another node of the job, as the worker of this one. */
export type ConnectWorker = (node: NodeName, signal: AbortSignal) => Promise<RpcSession>;
