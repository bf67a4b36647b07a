/**
 * Who gets a uid. One attempt of a job gets one lease in its life: a repeat while it is active returns the same one,
 * an attempt that has ended gets none, and a new attempt gets a new uid while the old one waits in quarantine.
 */

import { type IdRange, isInRange } from '../base/id-range.ts';
import type { LeaseNumber, NodeName, Uid } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import { isNormalPath } from '../base/paths.ts';
import { isEncodable } from './codec.ts';
import {
  checkEpoch,
  checkNotWithheld,
  checkTtl,
  decide,
  type LeaseDecision,
  type RuleFacts,
} from './decision.ts';
import { type AttemptKey, isEarlierRun, isSameRun } from './ended.ts';
import type { EventOf, LeaseEvent, LeaseRoot, LeaseWorkspace, Submitter } from './event.ts';
import { type Lease, newLease } from './lease.ts';
import { isFree, listCandidates } from './pool.ts';
import { commandFor, nameLease } from './reference.ts';
import { accept, type Refusal, refuse, type Verdict } from './refusal.ts';
import type { LeaseState } from './state.ts';
import { beginTerm, remainingMs } from './term.ts';
import { ticketBytesOf } from './ticket.ts';
import { type LeaseView, viewLease } from './view.ts';

export type AllocateRequest = AttemptKey & {
  readonly submitter: Submitter;
  /** Nodes of the job, the head first. */
  readonly nodes: readonly NodeName[];
  readonly roots: readonly LeaseRoot[];
  readonly workspace: LeaseWorkspace | null;
  readonly ttlMs: number;
};

/** What the caller found out about uids before. */
export type ProvenUids = {
  /** Unknown to the name service, in the order of preference. */
  readonly absent: readonly Uid[];
  /** Known to the name service: not to be offered again. */
  readonly present: ReadonlySet<Uid>;
  /** Looked up for others just now: offered only where there is nothing else. */
  readonly offered?: ReadonlySet<Uid>;
  /** How many candidates to name when none of `absent` will do. */
  readonly wanted: number;
};

export type Allocation =
  | { readonly kind: 'granted' | 'repeated'; readonly lease: LeaseView }
  /** Nothing was decided: look these up and ask again. */
  | { readonly kind: 'look-up'; readonly candidates: readonly Uid[] };

/** Debian and systemd give people ids from here on. */
const SUBMITTER_UID_MIN = 1000;
/** Ids from here on that belong to no person: systemd's dynamic users, nobody, and (uid_t) -1 in 16 bits. */
const NOT_PEOPLE: readonly IdRange[] = [
  { first: 61184, last: 65519 },
  { first: 65534, last: 65535 },
];
const UID_INVALID = 0xffff_ffff;

const checkSubmitter = ({ uid, gid }: Submitter, pool: IdRange): Verdict<undefined> => {
  const problem = (): string | undefined => {
    for (const id of [uid, gid])
      if (!Number.isSafeInteger(id) || id < 1 || id >= UID_INVALID) return 'is root or not an id';
    if (uid < SUBMITTER_UID_MIN || NOT_PEOPLE.some((range) => isInRange(uid, range)))
      return 'is a system account';
    if (isInRange(uid, pool) || isInRange(gid, pool)) return 'lies in the pool';
    return undefined;
  };
  const found = problem();
  return found === undefined
    ? accept(undefined)
    : refuse('submitter', `the submitter ${uid}:${gid} ${found}`, {
        next: 'give the person whose job it is',
      });
};

const isPlainPath = (path: string): boolean =>
  isNormalPath(path) && !path.includes('\0') && isEncodable(path, LIMITS.pathBytesMax);

const isStorageName = (name: string): boolean => name !== '' && isEncodable(name, LIMITS.storageNameBytesMax);

const checkTerms = (request: AllocateRequest): Verdict<undefined> => {
  const { nodes, roots, workspace, ttlMs } = request;
  if (nodes.length === 0 || nodes.length > LIMITS.leaseNodesMax)
    return refuse('too-large', `a lease has 1 to ${LIMITS.leaseNodesMax} nodes, not ${nodes.length}`);
  if (new Set(nodes).size !== nodes.length) return refuse('node-list', 'a node is named twice');
  if (roots.length > LIMITS.leaseRootsMax)
    return refuse('too-large', `a lease has at most ${LIMITS.leaseRootsMax} writable paths`);
  const places = [...roots, ...(workspace === null ? [] : [workspace])];
  for (const { path, storage } of places) {
    if (!isPlainPath(path)) return refuse('usage', `${path} is not an absolute path in its shortest form`);
    if (!isStorageName(storage)) return refuse('usage', `${path} has no storage`);
  }
  if (new Set(places.map(({ path }) => path)).size !== places.length)
    return refuse('usage', 'a writable path is named twice');
  const bytes = ticketBytesOf(request);
  if (bytes > LIMITS.leaseTicketBytesMax)
    return refuse(
      'too-large',
      `nodes and writable paths take ${bytes} bytes in a ticket, over ${LIMITS.leaseTicketBytesMax}: their names are too long together`,
      { next: 'lease fewer nodes, or nodes with shorter names' },
    );
  return checkTtl(ttlMs);
};

const isSameSet = (one: readonly string[], other: readonly string[]): boolean => {
  const members = new Set(one);
  return one.length === other.length && other.every((member) => members.has(member));
};

const placeNames = (places: readonly (LeaseRoot | LeaseWorkspace)[]): readonly string[] =>
  places.map(({ path, storage }) => `${storage}\0${path}`);

/** The first term in which a repeated request differs from the lease. */
const findDifference = (lease: Lease, request: AllocateRequest): string | undefined => {
  const { submitter } = request;
  const jobNodes = [...lease.nodes].filter(([, node]) => node.role === 'job').map(([name]) => name);
  if (lease.submitter.uid !== submitter.uid || lease.submitter.gid !== submitter.gid) return 'submitter';
  if (!isSameSet(jobNodes, request.nodes)) return 'nodes';
  if (!isSameSet(placeNames(lease.roots), placeNames(request.roots))) return 'writable paths';
  const workspaces = [lease.workspace, request.workspace].map(
    (one) => placeNames(one === null ? [] : [one])[0],
  );
  return workspaces[0] === workspaces[1] ? undefined : 'workspace';
};

const repeat = (lease: Lease, request: AllocateRequest, facts: RuleFacts): LeaseDecision<Allocation> => {
  const next = commandFor('lease release', lease);
  const name = nameLease(lease);
  if (!isSameRun(lease, request))
    return refuse('lease-conflict', `${name} belongs to an earlier run of the same job id`, { next });
  if (lease.status !== 'active')
    return refuse('lease-ended', `${name} is ${lease.status}: the attempt has ended`, { next });
  const difference = findDifference(lease, request);
  if (difference !== undefined)
    return refuse('lease-conflict', `${name} has another value for: ${difference}`, {
      next: commandFor('lease show', lease),
      detail: { lease: lease.number, differs: difference },
    });
  if (remainingMs(lease.term, facts.now) === 0)
    return refuse('lease-expired', `the time of ${name} is over`, { next });
  return decide([], { kind: 'repeated', lease: viewLease(lease, facts.now) });
};

/** Why an attempt without a living lease may not get one. */
const checkNotEnded = (state: LeaseState, request: AllocateRequest): Verdict<undefined> => {
  const ended = state.ended.ofJob(request.job);
  if (ended.some((one) => isSameRun(one, request)))
    return refuse('lease-ended', `attempt ${request.attempt} of job ${request.job} has ended`, {
      next: 'requeue the job, so that it gets a new attempt',
    });
  const living: readonly AttemptKey[] = state.leases.ofJob(request.job);
  const later = [...living, ...ended].find((one) => isEarlierRun(request, one));
  return later === undefined
    ? accept(undefined)
    : refuse(
        'lease-ended',
        `attempt ${request.attempt} of job ${request.job} is over: attempt ${later.attempt} came after it`,
        { next: 'give the attempt that the scheduler runs now' },
      );
};

const exhausted = (state: LeaseState, pool: IdRange, present: number): Refusal => {
  const size = pool.last - pool.first + 1;
  const quarantined = [...state.leases.values()].filter(
    (lease) => lease.status === 'quarantined' && isInRange(lease.uid, pool),
  ).length;
  return refuse('pool-exhausted', `no uid of ${pool.first}-${pool.last} is free`, {
    next: 'xce-sandbox lease list',
    detail: { size, quarantined, taken: present },
  });
};

/**
 * Grants, repeats, or names uids to look up. A granted uid is in the pool, free, and one of `proven.absent`. A
 * refused request writes nothing, not even for the attempt it would have followed.
 */
export const decideAllocate = (
  state: LeaseState,
  facts: RuleFacts,
  request: AllocateRequest,
  proven: ProvenUids,
): LeaseDecision<Allocation> => {
  for (const check of [
    checkEpoch(state, facts),
    checkSubmitter(request.submitter, facts.pool),
    checkTerms(request),
  ])
    if (!check.ok) return check;
  const living = state.leases.ofJob(request.job);
  const own = living.find((lease) => lease.attempt === request.attempt);
  if (own !== undefined) {
    const repeated = repeat(own, request, facts);
    const usable = checkNotWithheld(state, own.nodes.names);
    return repeated.ok && !usable.ok ? usable : repeated;
  }
  for (const check of [checkNotEnded(state, request), checkNotWithheld(state, request.nodes)])
    if (!check.ok) return check;

  const uid = proven.absent.find((candidate) => isFree(state, facts.pool, candidate));
  if (uid === undefined) {
    const { wanted, present, offered } = proven;
    const others = { has: (one: Uid) => present.has(one) || offered?.has(one) === true };
    const unoffered = listCandidates(state, facts.pool, wanted, others);
    const candidates = unoffered.length > 0 ? unoffered : listCandidates(state, facts.pool, wanted, present);
    if (candidates.length === 0) return exhausted(state, facts.pool, proven.present.size);
    return decide([], { kind: 'look-up', candidates });
  }
  const superseded: readonly LeaseEvent[] = living
    .filter((lease) => lease.status === 'active')
    .map((lease) => ({
      kind: 'quarantine',
      lease: lease.number,
      quarantine: {
        code: 'superseded',
        text: `attempt ${request.attempt} began before this one was released`,
        node: null,
        wallMs: facts.now.wallMs,
      },
    }));
  const allocate: EventOf<'allocate'> = {
    kind: 'allocate',
    lease: state.nextLease as LeaseNumber,
    uid,
    job: request.job,
    attempt: request.attempt,
    schedulerStartS: request.schedulerStartS,
    submitter: { uid: request.submitter.uid, gid: request.submitter.gid },
    nodes: [...request.nodes],
    roots: request.roots.map(({ path, storage }) => ({ path, storage })),
    workspace:
      request.workspace === null
        ? null
        : { path: request.workspace.path, storage: request.workspace.storage },
    term: beginTerm(request.ttlMs, facts.now),
    epoch: facts.epoch,
  };
  return decide([...superseded, allocate], {
    kind: 'granted',
    lease: viewLease(newLease(allocate), facts.now),
  });
};
