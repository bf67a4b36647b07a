/** One lease as a value: what rules look at. The state keeps leases as rows of a table (lease-table.ts). */
import { createHash } from 'node:crypto';
import type { Attempt, Epoch, JobId, LeaseNumber, NodeName, Uid } from '../base/ids.ts';
import type { EventOf, LeaseRoot, LeaseWorkspace, MountFacts, Quarantine, Submitter } from './event.ts';
import { type LeaseNode, LeaseNodes } from './nodes.ts';
import type { Term } from './term.ts';

/** The order is the order of their bytes in a checkpoint: append only. */
export const LEASE_STATUSES = ['active', 'draining', 'normalising', 'quarantined'] as const;
export type LeaseStatus = (typeof LEASE_STATUSES)[number];

/** A mount, with the first node that reported it. */
export type RecordedMount = { readonly node: NodeName; readonly mount: MountFacts };
export type FinishedScope = { readonly path: string; readonly walked: number; readonly changed: number };

export type Lease = {
  readonly number: LeaseNumber;
  readonly uid: Uid;
  readonly job: JobId;
  readonly attempt: Attempt;
  readonly schedulerStartS: number | null;
  readonly submitter: Submitter;
  readonly roots: readonly LeaseRoot[];
  readonly workspace: LeaseWorkspace | null;
  readonly status: LeaseStatus;
  readonly epoch: Epoch;
  readonly term: Term;
  readonly nodes: LeaseNodes;
  /** At most one for each scope. */
  readonly mounts: readonly RecordedMount[];
  /** Scopes whose verify pass found nothing. */
  readonly finished: readonly FinishedScope[];
  /** The last reason for quarantine; kept through a retry, replaced by the next. */
  readonly quarantine: Quarantine | null;
  /** A LeaseRow changes behind the back of who has it: it passes for this nowhere, only for some of these members. */
  readonly isLive?: never;
};

export const NO_MOUNTS: readonly RecordedMount[] = [];
export const NONE_FINISHED: readonly FinishedScope[] = [];

/** A lease without its nodes. */
export type LeaseFacts = Omit<Lease, 'nodes' | 'isLive'>;

/** The lease as it is right after it was granted, but for its nodes. */
export const grantedFacts = (event: EventOf<'allocate'>): LeaseFacts => ({
  number: event.lease,
  uid: event.uid,
  job: event.job,
  attempt: event.attempt,
  schedulerStartS: event.schedulerStartS,
  submitter: event.submitter,
  roots: event.roots,
  workspace: event.workspace,
  status: 'active',
  epoch: event.epoch,
  term: event.term,
  mounts: NO_MOUNTS,
  finished: NONE_FINISHED,
  quarantine: null,
});

const NO_SCOPES: readonly string[] = [];

/** The same with its nodes, of which nothing is known yet. */
export const newLease = (event: EventOf<'allocate'>): Lease => ({
  ...grantedFacts(event),
  nodes: LeaseNodes.untouched(event.nodes),
});

/** Paths that a verify pass must cover before the uid may be free. */
export const scopesOf = ({ roots, workspace }: Pick<Lease, 'roots' | 'workspace'>): readonly string[] => {
  if (roots.length === 0 && workspace === null) return NO_SCOPES;
  const paths = roots.map((root) => root.path);
  return workspace === null ? paths : [workspace.path, ...paths];
};

const isUncertified = (node: LeaseNode): boolean => node.certificate === null;
const isUnaccounted = (node: LeaseNode): boolean => node.certificate === null && node.reclaim === null;

/** Nodes without a certificate, in the order of the lease. */
export const uncertifiedNodes = (lease: Pick<Lease, 'nodes'>): readonly NodeName[] =>
  [...lease.nodes].filter(([, node]) => isUncertified(node)).map(([name]) => name);

/** Nodes that have neither certified nor been reclaimed: with one of them no file changes its owner. */
export const unaccountedNodes = (lease: Pick<Lease, 'nodes'>): readonly NodeName[] =>
  [...lease.nodes].filter(([, node]) => isUnaccounted(node)).map(([name]) => name);

/**
 * Names the certificates that a lease has at one moment. It changes whenever a node certifies, or joins and has to
 * certify again; equal texts mean that nothing of the lease can have run in between.
 */
export const proofOf = ({ nodes }: Pick<Lease, 'nodes'>): string => {
  const proof = createHash('sha256');
  for (const [name, { certificate }] of nodes) proof.update(`${name} ${certificate ?? '-'}\n`);
  return proof.digest('hex');
};

export const isFinished = ({ finished }: Pick<Lease, 'finished'>, path: string): boolean =>
  finished.some((scope) => scope.path === path);

/** Scopes without a finished verify pass. */
export const unfinishedScopes = (lease: Pick<Lease, 'roots' | 'workspace' | 'finished'>): readonly string[] =>
  scopesOf(lease).filter((path) => !isFinished(lease, path));
