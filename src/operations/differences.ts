/** What the lease log, the nodes and the storage do not agree about. Pure: reconcile.ts asks them and mends. */
import { type IdRange, isInRange } from '../base/id-range.ts';
import type { Attempt, JobId, LeaseNumber, NodeName, Uid } from '../base/ids.ts';
import type { EndedAttempt } from '../lease/ended.ts';
import { commandFor } from '../lease/reference.ts';
import type { LeaseView } from '../lease/view.ts';
import { foldNodes } from '../nodes/hostlist.ts';
import type { ResponseOf } from '../rpc/message.ts';

export const DIFFERENCE_KINDS = [
  /** The time of an active lease is over: its job has no right to run, and its uid waits. */
  'lease-overdue',
  /** The same as far as its time goes, and no clock that can be trusted says so. */
  'lease-unsure',
  /** A release has begun and has not come to its end; it may be under way. */
  'lease-unfinished',
  'lease-quarantined',
  /** A lease that may run has a sandbox on none of its nodes. That is no fault: nothing was launched yet. */
  'lease-without-sandbox',
  /** A node has something by the name of a lease that the log does not have there. */
  'sandbox-without-lease',
  /** What a node has of a lease that may run could not be ended cleanly, or is nothing that its worker knows of. */
  'node-dirty',
  'node-silent',
  /** The directory of a job attempt was never opened to its submitter, and no lease covers it. */
  'workspace-without-lease',
  'storage-silent',
] as const;
export type DifferenceKind = (typeof DIFFERENCE_KINDS)[number];

/** Whose sandbox is drained where the log no longer has the lease, or has it as certified there. */
export type DrainTarget = {
  readonly lease: LeaseNumber;
  readonly uid: Uid;
  readonly job: JobId;
  readonly attempt: Attempt;
};

export type Difference = {
  readonly kind: DifferenceKind;
  readonly lease: LeaseNumber | null;
  readonly job: JobId | null;
  /** The nodes that it shows on. */
  readonly nodes: readonly NodeName[];
  readonly text: string;
  /** What `--apply` does about it; null where only an operator can know. */
  readonly mend: 'release' | 'drain' | null;
  readonly drain: DrainTarget | null;
  /** What to do by hand where it is not mended. */
  readonly next: string;
};

export type NodeLook =
  | {
      readonly node: NodeName;
      readonly ok: true;
      readonly sandboxes: readonly Pick<
        ResponseOf<'status'>['sandboxes'][number],
        'lease' | 'job' | 'attempt' | 'uid' | 'state'
      >[];
      readonly strays: readonly number[];
    }
  | { readonly node: NodeName; readonly ok: false; readonly message: string };

export type Looks = {
  /** As the log was before anything else was looked at, and after. What was made or freed meanwhile is no difference. */
  readonly before: readonly LeaseView[];
  readonly now: readonly LeaseView[];
  readonly nodes: readonly NodeLook[];
  /** Directories of job attempts that are shut, and the group that may enter them. */
  readonly gates: readonly { readonly path: string; readonly gid: number }[];
  /** Storage that could not be looked at. */
  readonly silent: readonly { readonly storage: string; readonly message: string }[];
  /** Where each lease with a workspace has its gate. */
  readonly gateOf: (lease: LeaseView) => string | null;
  readonly ended: ReadonlyMap<LeaseNumber, EndedAttempt>;
  readonly pool: IdRange;
};

const ON_NODE = 'on the node: journalctl -u xce-sandbox-worker';

type Facts = Partial<Omit<Difference, 'kind' | 'text' | 'next'>>;

const difference = (
  kind: DifferenceKind,
  text: string,
  next: string,
  { lease = null, job = null, nodes = [], mend = null, drain = null }: Facts = {},
): Difference => ({ kind, lease, job, nodes, text, mend, drain, next });

const ofLease = (lease: LeaseView, hasSandbox: boolean): readonly Difference[] => {
  const own = { lease: lease.lease, job: lease.job, nodes: lease.nodes.map(({ node }) => node) };
  const release = { ...own, mend: 'release' } as const;
  const byHand = commandFor('lease release', lease);
  switch (lease.status) {
    case 'draining':
    case 'normalising':
      return [difference('lease-unfinished', `it is ${lease.status}`, byHand, release)];
    case 'quarantined':
      return [
        difference('lease-quarantined', lease.quarantine?.text ?? 'no reason is kept', byHand, release),
      ];
    case 'active':
      if (lease.expiry === 'expired')
        return [difference('lease-overdue', 'its time is over', byHand, release)];
      if (lease.expiry === 'unsure' && lease.remainingMs === 0) {
        const text = 'its time is over by a clock that cannot be trusted';
        return [difference('lease-unsure', text, 'xce-sandbox lease verify (the clocks)', own)];
      }
      return hasSandbox
        ? []
        : [
            difference(
              'lease-without-sandbox',
              'nothing of it is on any node',
              `${byHand}, if the job will not start`,
              own,
            ),
          ];
  }
};

type Seen = { readonly node: NodeName; readonly lease: LeaseNumber; readonly text: string };

/** Nodes that have the same of one lease are one difference. */
const fold = (
  kind: DifferenceKind,
  seen: readonly Seen[],
  factsOf: (lease: LeaseNumber) => Facts & { readonly next: string },
): readonly Difference[] => {
  const groups = new Map<
    string,
    { readonly lease: LeaseNumber; readonly text: string; readonly nodes: NodeName[] }
  >();
  for (const { node, lease, text } of seen) {
    const key = `${lease} ${text}`;
    const group = groups.get(key) ?? { lease, text, nodes: [] };
    groups.set(key, group);
    group.nodes.push(node);
  }
  return [...groups.values()].map(({ lease, text, nodes }) => {
    const { next, ...facts } = factsOf(lease);
    return difference(kind, text, next, { ...facts, lease, nodes });
  });
};

/** Ordered by kind, then by lease. */
export const findDifferences = (looks: Looks): readonly Difference[] => {
  const { before, now, nodes, gates, silent, gateOf, ended, pool } = looks;
  const held = new Map([...before, ...now].map((lease) => [lease.lease, lease]));
  const answering = nodes.flatMap((look) => (look.ok ? [look] : []));
  const onNodes = new Set(
    answering.flatMap(({ sandboxes, strays }) => [...strays, ...sandboxes.map(({ lease }) => lease)]),
  );
  // What certifies after it was looked at had something then.
  const certified = new Set(
    before.flatMap(({ lease, nodes: own }) =>
      own.flatMap((one) => (one.certified ? [`${lease} ${one.node}`] : [])),
    ),
  );

  const foreign: Seen[] = [];
  const dirty: Seen[] = [];
  for (const { node, sandboxes, strays } of answering) {
    for (const stray of strays) {
      const lease = stray as LeaseNumber;
      const view = held.get(lease);
      const text = 'something by its name, of which the worker has no record';
      const isOwn = view?.nodes.some((one) => one.node === node) ?? false;
      if (!isOwn || certified.has(`${lease} ${node}`)) foreign.push({ node, lease, text });
      // The release of a lease that has ended ends this as well.
      else if (view?.status === 'active') dirty.push({ node, lease, text });
    }
    for (const { lease: number, uid, state } of sandboxes) {
      const lease = number as LeaseNumber;
      const view = held.get(lease);
      const own = view?.nodes.find((one) => one.node === node);
      if (view === undefined)
        foreign.push({ node, lease, text: `a sandbox, ${state}; the log has no such lease` });
      else if (own === undefined)
        foreign.push({ node, lease, text: `a sandbox, ${state}; it is no node of the lease` });
      else if (view.uid !== uid)
        foreign.push({ node, lease, text: `a sandbox of uid ${uid}, not ${view.uid}` });
      else if (certified.has(`${lease} ${node}`))
        foreign.push({ node, lease, text: `a sandbox, ${state}, although it has certified` });
      else if (state === 'dirty' && view.status === 'active') {
        dirty.push({ node, lease, text: 'its sandbox could not be ended cleanly' });
      }
    }
  }
  const targetOf = (lease: LeaseNumber): DrainTarget | null => {
    const known = held.get(lease) ?? ended.get(lease);
    return known === undefined ? null : { lease, uid: known.uid, job: known.job, attempt: known.attempt };
  };
  const ofForeign = (lease: LeaseNumber): Facts & { readonly next: string } => {
    const drain = targetOf(lease);
    return drain === null
      ? { next: `the log remembers no lease ${lease}; xce-sandbox lease verify; ${ON_NODE}` }
      : { job: drain.job, mend: 'drain', drain, next: ON_NODE };
  };
  const covered = new Set([...held.values()].flatMap((lease) => gateOf(lease) ?? []));

  const found: readonly Difference[] = [
    ...now.flatMap((lease) => ofLease(lease, onNodes.has(lease.lease))),
    ...fold('sandbox-without-lease', foreign, ofForeign),
    ...fold('node-dirty', dirty, (lease) => {
      const view = held.get(lease);
      const release = view === undefined ? 'lease release' : commandFor('lease release', view);
      return { job: view?.job ?? null, next: `${ON_NODE}; once the job has ended: ${release}` };
    }),
    ...nodes.flatMap((look) =>
      look.ok ? [] : [difference('node-silent', look.message, ON_NODE, { nodes: [look.node] })],
    ),
    ...gates.flatMap(({ path, gid }) =>
      covered.has(path) || !isInRange(gid, pool)
        ? []
        : [
            difference(
              'workspace-without-lease',
              `${path} is shut, with group ${gid}, and belongs to no lease`,
              `look who owns what is in it; nothing hands it over: ls -lan ${path}`,
            ),
          ],
    ),
    ...silent.map(({ storage, message }) =>
      difference('storage-silent', `[storage ${storage}]: ${message}`, 'mount it on this host, then repeat'),
    ),
  ];
  const rank = new Map(DIFFERENCE_KINDS.map((kind, index) => [kind, index]));
  const order = (one: Difference): number => rank.get(one.kind) ?? 0;
  return found.toSorted((one, other) => order(one) - order(other) || (one.lease ?? 0) - (other.lease ?? 0));
};

/** A lease that nothing was launched for yet is worth a line, and nothing is wrong with it. */
export const isWrong = ({ kind }: Difference): boolean => kind !== 'lease-without-sandbox';

/** Where a difference shows, for people. */
export const placeOf = ({ nodes }: Difference): string => (nodes.length === 0 ? '-' : foldNodes(nodes));
