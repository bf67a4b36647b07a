import type { Attempt, Epoch, JobId, LeaseNumber, NodeName, Uid } from '../base/ids.ts';
import type { LeaseRoot, LeaseWorkspace, MountFacts, Quarantine, Reclaim, Submitter } from './event.ts';
import type { FinishedScope, Lease, LeaseStatus } from './lease.ts';
import type { LeaseNode } from './nodes.ts';
import { type Expiry, judgeExpiry, type Now, remainingMs } from './term.ts';

export type LeaseNodeView = {
  readonly node: NodeName;
  readonly role: LeaseNode['role'];
  readonly workerKey: string | null;
  readonly bootId: string | null;
  readonly certified: boolean;
  /** Who attested that it is fenced off, when and why; until it certifies. */
  readonly reclaim: Reclaim | null;
};

/** One lease as callers see it: plain data that can go into JSON as it is. */
export type LeaseView = {
  readonly lease: LeaseNumber;
  readonly uid: Uid;
  readonly job: JobId;
  readonly attempt: Attempt;
  readonly schedulerStartS: number | null;
  readonly submitter: Submitter;
  readonly status: LeaseStatus;
  /** Epoch of the controller that granted or last renewed it. */
  readonly epoch: Epoch;
  readonly ttlMs: number;
  readonly issuedWallMs: number;
  /** How long it still gives the right to run; 0 in any status but active. */
  readonly remainingMs: number;
  readonly expiry: Expiry;
  readonly nodes: readonly LeaseNodeView[];
  readonly roots: readonly LeaseRoot[];
  readonly workspace: LeaseWorkspace | null;
  readonly mounts: readonly MountFacts[];
  /** Scopes whose verify pass found no inode of the uid. */
  readonly finished: readonly FinishedScope[];
  /** The last reason for quarantine; history unless the status is 'quarantined'. */
  readonly quarantine: Quarantine | null;
};

export const viewLease = (lease: Lease, now: Now): LeaseView => ({
  lease: lease.number,
  uid: lease.uid,
  job: lease.job,
  attempt: lease.attempt,
  schedulerStartS: lease.schedulerStartS,
  submitter: lease.submitter,
  status: lease.status,
  epoch: lease.epoch,
  ttlMs: lease.term.ttlMs,
  issuedWallMs: lease.term.issued.wallMs,
  remainingMs: lease.status === 'active' ? remainingMs(lease.term, now) : 0,
  expiry: judgeExpiry(lease.term, now),
  nodes: [...lease.nodes].map(([node, facts]) => ({
    node,
    role: facts.role,
    workerKey: facts.binding?.workerKey ?? null,
    bootId: facts.binding?.bootId ?? null,
    certified: facts.certificate !== null,
    reclaim: facts.reclaim,
  })),
  roots: lease.roots,
  workspace: lease.workspace,
  mounts: lease.mounts.map(({ mount }) => mount),
  finished: lease.finished,
  quarantine: lease.quarantine,
});
