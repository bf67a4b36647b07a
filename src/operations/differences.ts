/** What the lease log, the nodes and the storage do not agree about. Pure: reconcile.ts asks them and mends. */
import type { JobId, LeaseNumber, NodeName } from '../base/ids.ts';
import type { EndedAttempt } from '../lease/ended.ts';
import { commandFor } from '../lease/reference.ts';
import type { LeaseView } from '../lease/view.ts';
import type { ResponseOf } from '../rpc/message.ts';

export const DIFFERENCE_KINDS = [
  /** The time of an active lease is over: its job has no right to run, and its uid waits. */
  'lease-overdue',
  /** The same as far as its time goes, and no clock that can be trusted says so. */
  'lease-unsure',
  /** A release has begun and has not come to its end; whether one is at work on it nobody can tell. */
  'lease-unfinished',
  'lease-quarantined',
  /** A lease that may run has nothing on any of its nodes, all of which have answered. That is no fault. */
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

/** Whose sandbox is drained: that of a lease that has ended, which nothing starts any more. */
export type DrainTarget = Pick<EndedAttempt, 'lease' | 'uid' | 'job' | 'attempt'>;

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
  /** Nodes of a quarantined lease that have something of it again: what they certified no longer holds. */
  readonly rejoin: readonly NodeName[];
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
      readonly strays: readonly number[] | { readonly unknown: string };
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
  readonly silent: readonly { readonly storage: string; readonly message: string; readonly next: string }[];
  /** Where each lease with a workspace has its gate. */
  readonly gateOf: (lease: LeaseView) => string | null;
  readonly ended: ReadonlyMap<LeaseNumber, EndedAttempt>;
  /** When this host began to look, by its wall clock. */
  readonly sinceWallMs: number;
  /** Active leases of which this host has measured that it cannot tell whether their time is over. */
  readonly unsure: ReadonlySet<LeaseNumber>;
};

const ON_NODE = 'on the node: journalctl -u xce-sandbox-worker';

type Facts = Partial<Omit<Difference, 'kind' | 'text' | 'next'>>;

const difference = (
  kind: DifferenceKind,
  text: string,
  next: string,
  { lease = null, job = null, nodes = [], mend = null, drain = null, rejoin = [] }: Facts = {},
): Difference => ({ kind, lease, job, nodes, text, mend, drain, rejoin, next });

type OfNodes = {
  /** Something of the lease is on a node, or a node has not said. */
  readonly mayRun: boolean;
  readonly isUnsure: boolean;
  readonly rejoin: readonly NodeName[];
};

const ofLease = (lease: LeaseView, { mayRun, isUnsure, rejoin }: OfNodes): readonly Difference[] => {
  const own = { lease: lease.lease, job: lease.job, nodes: lease.nodes.map(({ node }) => node) };
  const release = { ...own, mend: 'release', rejoin } as const;
  const byHand = commandFor('lease release', lease);
  switch (lease.status) {
    case 'draining':
    case 'normalising':
      return [
        difference('lease-unfinished', `it is ${lease.status}`, `${byHand}, if no release is at work`, own),
      ];
    case 'quarantined':
      return [
        difference('lease-quarantined', lease.quarantine?.text ?? 'no reason is kept', byHand, release),
      ];
    case 'active':
      if (lease.expiry === 'expired')
        return [difference('lease-overdue', 'its time is over', byHand, release)];
      if (isUnsure || (lease.expiry === 'unsure' && lease.remainingMs === 0)) {
        const text = isUnsure
          ? 'no clock that can be trusted says whether its time is over'
          : 'its time is over by a clock that only --apply compares with the storage';
        return [difference('lease-unsure', text, 'xce-sandbox lease verify (the clocks)', own)];
      }
      return mayRun
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

const STRAY = 'something by its name, of which the worker has no record';

/** What a node says of its sandbox, where that is not what the log says; undefined where it is. */
const contradiction = (
  lease: LeaseView | undefined,
  node: NodeName,
  { uid, job, attempt, state }: Extract<NodeLook, { ok: true }>['sandboxes'][number],
): string | undefined => {
  if (lease === undefined) return `a sandbox, ${state}; the log has no such lease`;
  if (lease.nodes.every((one) => one.node !== node)) return `a sandbox, ${state}; it is no node of the lease`;
  if (lease.uid !== uid) return `a sandbox of uid ${uid}, not ${lease.uid}`;
  return lease.job === job && lease.attempt === attempt
    ? undefined
    : `a sandbox of job ${job}, attempt ${attempt}, not of job ${lease.job}, attempt ${lease.attempt}`;
};

/** Ordered by kind, then by lease. */
export const findDifferences = (looks: Looks): readonly Difference[] => {
  const { before, now, nodes, gates, silent, gateOf, ended, sinceWallMs, unsure } = looks;
  const held = new Map([...before, ...now].map((lease) => [lease.lease, lease]));
  const answering = nodes.flatMap((look) => (look.ok ? [look] : []));
  const strayed = answering.flatMap(({ node, strays }) => ('unknown' in strays ? [] : [{ node, strays }]));
  const whole = new Set(strayed.map(({ node }) => node));
  const onNodes = new Set([
    ...strayed.flatMap(({ strays }) => strays),
    ...answering.flatMap(({ sandboxes }) => sandboxes.map(({ lease }) => lease)),
  ]);
  // What certifies after it was looked at had something then.
  const certified = new Set(
    before.flatMap(({ lease, nodes: own }) =>
      own.flatMap((one) => (one.certified ? [`${lease} ${one.node}`] : [])),
    ),
  );

  const foreign: Seen[] = [];
  const again: Seen[] = [];
  const dirty: Seen[] = [];
  for (const { node, strays } of strayed) {
    for (const number of strays) {
      const lease = number as LeaseNumber;
      const view = held.get(lease);
      if (view === undefined || view.nodes.every((one) => one.node !== node)) {
        foreign.push({ node, lease, text: STRAY });
      } else if (certified.has(`${lease} ${node}`)) again.push({ node, lease, text: STRAY });
      // The release of a lease that has ended ends this as well.
      else if (view.status === 'active') dirty.push({ node, lease, text: STRAY });
    }
  }
  for (const { node, sandboxes } of answering) {
    for (const sandbox of sandboxes) {
      const lease = sandbox.lease as LeaseNumber;
      const view = held.get(lease);
      const { state } = sandbox;
      const text = contradiction(view, node, sandbox);
      if (text !== undefined) foreign.push({ node, lease, text });
      else if (certified.has(`${lease} ${node}`)) {
        again.push({ node, lease, text: `a sandbox, ${state}, although it has certified` });
      } else if (state === 'dirty' && view?.status === 'active') {
        dirty.push({ node, lease, text: 'its sandbox could not be ended cleanly' });
      }
    }
  }
  const rejoinOf = (lease: LeaseNumber): readonly NodeName[] => [
    ...new Set(again.flatMap((one) => (one.lease === lease ? [one.node] : []))),
  ];
  const byNobody = `xce-sandbox lease verify; ${ON_NODE}`;
  const ofForeign = (lease: LeaseNumber): Facts & { readonly next: string } => {
    const known = ended.get(lease);
    if (held.has(lease) || known === undefined) return { job: held.get(lease)?.job ?? null, next: byNobody };
    const { uid, job, attempt } = known;
    return { job, mend: 'drain', drain: { lease, uid, job, attempt }, next: ON_NODE };
  };
  const ofAgain = (lease: LeaseNumber): Facts & { readonly next: string } => {
    const view = held.get(lease);
    const mend = view?.status === 'quarantined' ? 'release' : null;
    return { job: view?.job ?? null, mend, rejoin: rejoinOf(lease), next: byNobody };
  };
  // A lease that was made and freed while the nodes were asked is in neither look at the log.
  const hasEndedSince = ({ lease }: Seen): boolean => (ended.get(lease)?.endedWallMs ?? 0) > sinceWallMs;
  const covered = new Set([...held.values()].flatMap((lease) => gateOf(lease) ?? []));

  const found: readonly Difference[] = [
    ...now.flatMap((lease) =>
      ofLease(lease, {
        mayRun: onNodes.has(lease.lease) || lease.nodes.some(({ node }) => !whole.has(node)),
        isUnsure: unsure.has(lease.lease),
        rejoin: rejoinOf(lease.lease),
      }),
    ),
    ...fold(
      'sandbox-without-lease',
      foreign.filter((one) => !hasEndedSince(one)),
      ofForeign,
    ),
    ...fold('sandbox-without-lease', again, ofAgain),
    ...fold('node-dirty', dirty, (lease) => {
      const view = held.get(lease);
      const release = view === undefined ? 'lease release' : commandFor('lease release', view);
      return { job: view?.job ?? null, next: `${ON_NODE}; once the job has ended: ${release}` };
    }),
    ...nodes.flatMap((look) => {
      if (!look.ok) return [difference('node-silent', look.message, ON_NODE, { nodes: [look.node] })];
      const { node, strays } = look;
      return 'unknown' in strays
        ? [
            difference('node-silent', `what it has no record of: ${strays.unknown}`, ON_NODE, {
              nodes: [node],
            }),
          ]
        : [];
    }),
    ...gates.flatMap(({ path, gid }) =>
      covered.has(path) || gid === 0
        ? []
        : [
            difference(
              'workspace-without-lease',
              `${path} is shut, with group ${gid}, and belongs to no lease`,
              `look who owns what is in it; nothing hands it over: ls -lan ${path}`,
            ),
          ],
    ),
    ...silent.map(({ storage, message, next }) =>
      difference('storage-silent', `[storage ${storage}]: ${message}`, next),
    ),
  ];
  const rank = new Map(DIFFERENCE_KINDS.map((kind, index) => [kind, index]));
  const order = (one: Difference): number => rank.get(one.kind) ?? 0;
  return found.toSorted((one, other) => order(one) - order(other) || (one.lease ?? 0) - (other.lease ?? 0));
};

/** Worth a line, and nothing is wrong: nothing was launched yet, or a release is at work, as far as one can tell. */
export const isWrong = ({ kind }: Difference): boolean =>
  kind !== 'lease-without-sandbox' && kind !== 'lease-unfinished';
