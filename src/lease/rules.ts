/**
 * Decisions about leases that exist, as pure functions of the state: events and a result, or a refusal for which
 * nothing is written. They run under the lock of the log and may run again; none keeps or changes the state.
 * Each is idempotent: what is already so gives no event.
 */

import { createHmac } from 'node:crypto';
import { formatDuration } from '../base/duration.ts';
import { assert } from '../base/errors.ts';
import type { Attempt, InstanceName, JobId, LeaseNumber, NodeName, Uid } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import { fitCertificate, type OpenedCertificate } from './certificate.ts';
import { isEncodable } from './codec.ts';
import {
  checkEpoch,
  checkNotWithheld,
  checkTtl,
  decide,
  type LeaseDecision,
  type RuleFacts,
} from './decision.ts';
import type { Binding, DrainNonce, LeaseEvent, MountFacts, Quarantine, QuarantineCode } from './event.ts';
import {
  isFinished,
  type Lease,
  type LeaseStatus,
  proofOf,
  scopesOf,
  unaccountedNodes,
  uncertifiedNodes,
  unfinishedScopes,
} from './lease.ts';
import { commandFor, findLease, type LeaseRef, nameLease } from './reference.ts';
import { accept, type Refusal, refuse, type Verdict } from './refusal.ts';
import { type ExistingEvent, type JobState, type LeaseState, previewLease } from './state.ts';
import { beginTerm, type Expiry, isClockTrusted, judgeExpiry, type Now, remainingMs } from './term.ts';
import { type LeaseView, viewLease } from './view.ts';

/** A worker as it answered the challenge of its node. */
export type NodeBinding = Binding & { readonly node: NodeName };

/** How many names a message lists before it says "and N more". */
const NAMES_SHOWN = 8;

const listNames = (names: readonly string[]): string => {
  const shown = names.slice(0, NAMES_SHOWN).join(', ');
  return names.length > NAMES_SHOWN ? `${shown} and ${names.length - NAMES_SHOWN} more` : shown;
};

const viewAfter = (lease: Lease, events: readonly ExistingEvent[], facts: RuleFacts): LeaseView => {
  const after = previewLease(lease, events);
  assert(after !== undefined, 'the lease lives on after these events');
  return viewLease(after, facts.now);
};

/** These events, and the lease as it is after them. */
const change = (lease: Lease, events: readonly ExistingEvent[], facts: RuleFacts): LeaseDecision<LeaseView> =>
  decide(events, viewAfter(lease, events, facts));

const wrongState = (lease: Lease, wanted: string): Refusal =>
  refuse('lease-state', `${nameLease(lease)} is ${lease.status}, not ${wanted}`, {
    next: commandFor(lease.status === 'active' ? 'lease show' : 'lease release', lease),
    detail: { lease: lease.number, status: lease.status },
  });

/** Finds a lease in one of the statuses. */
const findIn = (state: JobState, ref: LeaseRef, statuses: readonly LeaseStatus[]): Verdict<Lease> => {
  const found = findLease(state, ref);
  if (!found.ok || statuses.includes(found.value.status)) return found;
  return wrongState(found.value, statuses.join(' or '));
};

const expired = (lease: Lease): Refusal =>
  refuse('lease-expired', `the time of ${nameLease(lease)} is over`, {
    next: commandFor('lease release', lease),
  });

/**
 * A new term from now on. Refused once the lease has certainly expired; where this host's clock cannot tell, the
 * holder has the benefit, since a longer right to run endangers no uid.
 */
export const decideRenew = (
  state: JobState,
  facts: RuleFacts,
  ref: LeaseRef,
  ttlMs: number,
): LeaseDecision<LeaseView> => {
  const current = checkEpoch(state, facts);
  if (!current.ok) return current;
  const found = findIn(state, ref, ['active']);
  if (!found.ok) return found;
  const lease = found.value;
  const lasts = checkTtl(ttlMs);
  if (!lasts.ok) return lasts;
  if (judgeExpiry(lease.term, facts.now) === 'expired') return expired(lease);
  const term = beginTerm(ttlMs, facts.now);
  return change(lease, [{ kind: 'renew', lease: lease.number, term, epoch: facts.epoch }], facts);
};

const checkBinding = (lease: Lease, binding: NodeBinding): Verdict<undefined> => {
  const { node: name, workerKey, bootId } = binding;
  const node = lease.nodes.get(name);
  if (node === undefined)
    return refuse('node-unknown', `${name} is not a node of ${nameLease(lease)}`, {
      next: commandFor('lease show', lease),
    });
  if (!/^[0-9a-f]{64}$/.test(workerKey) || bootId === '' || !isEncodable(bootId, LIMITS.bootIdBytesMax))
    return refuse('protocol', `${name} gave no worker key and boot id that can be recorded`, { at: name });
  if (node.binding !== null && node.binding.workerKey !== workerKey)
    return refuse(
      'worker-key',
      `${name} answers with another worker key than ${nameLease(lease)} is bound to`,
      {
        at: name,
        next: `if ${name} was installed anew it cannot certify for the lease; once it is known to be clean: ${commandFor('lease reclaim', lease)} --node ${name} --reason TEXT`,
      },
    );
  return accept(undefined);
};

const bindEvents = (lease: Lease, bindings: readonly NodeBinding[]): readonly ExistingEvent[] =>
  bindings
    .filter(({ node: name, bootId }) => {
      const node = lease.nodes.get(name);
      return node?.certificate === null && node.binding?.bootId !== bootId;
    })
    .map(({ node, workerKey, bootId }) => ({
      kind: 'bind',
      lease: lease.number,
      node,
      binding: { workerKey, bootId },
    }));

/** Finds a lease under which something may start now. */
export const findRunning = (state: JobState, now: Now, ref: LeaseRef): Verdict<Lease> => {
  const found = findIn(state, ref, ['active']);
  if (!found.ok) return found;
  return remainingMs(found.value.term, now) === 0 ? expired(found.value) : found;
};

/**
 * Records which worker of which boot each node is, before tickets are signed for them. Refused as a whole when one
 * node does not fit: a launch starts everywhere or nowhere. The result has the time left for the tickets.
 */
export const decideBind = (
  state: LeaseState,
  facts: RuleFacts,
  ref: LeaseRef,
  bindings: readonly NodeBinding[],
): LeaseDecision<LeaseView> => {
  const current = checkEpoch(state, facts);
  if (!current.ok) return current;
  const found = findRunning(state, facts.now, ref);
  if (!found.ok) return found;
  const lease = found.value;
  if (new Set(bindings.map(({ node }) => node)).size !== bindings.length)
    return refuse('node-list', 'a node is bound twice at once');
  for (const binding of bindings) {
    const fits = checkBinding(lease, binding);
    if (!fits.ok) return fits;
  }
  const usable = checkNotWithheld(
    state,
    bindings.map(({ node }) => node),
  );
  if (!usable.ok) return usable;
  return change(lease, bindEvents(lease, bindings), facts);
};

/**
 * A host joins the lease before something runs there under the lease's name. A host that has certified already must
 * certify again. A host that is to walk joins after `decideBeginNormalise`, which wants every certificate.
 */
export const decideJoin = (
  state: LeaseState,
  facts: RuleFacts,
  ref: LeaseRef,
  node: NodeName,
): LeaseDecision<LeaseView> => {
  const found = findIn(state, ref, ['active', 'draining', 'normalising']);
  if (!found.ok) return found;
  const lease = found.value;
  if (lease.status === 'active' && remainingMs(lease.term, facts.now) === 0) return expired(lease);
  const usable = checkNotWithheld(state, [node]);
  if (!usable.ok) return usable;
  const known = lease.nodes.get(node);
  const bytes = lease.nodes.names.reduce((sum, name) => sum + name.length, node.length);
  if (known === undefined && (lease.nodes.size >= LIMITS.leaseNodesMax || bytes > LIMITS.leaseNodesBytesMax))
    return refuse('too-large', `${nameLease(lease)} has no room for another node`);
  const events: readonly ExistingEvent[] =
    known?.certificate === null ? [] : [{ kind: 'join', lease: lease.number, node }];
  return change(lease, events, facts);
};

const isMountEncodable = (mount: MountFacts): boolean =>
  isEncodable(mount.source, LIMITS.pathBytesMax) &&
  isEncodable(mount.type, LIMITS.mountWordBytesMax) &&
  isEncodable(mount.fsid, LIMITS.mountWordBytesMax);

const isSameMount = (one: MountFacts, other: MountFacts): boolean =>
  one.source === other.source && one.type === other.type && one.fsid === other.fsid;

/** What one node saw in prepare. */
export type NodeMounts = { readonly node: NodeName; readonly mounts: readonly MountFacts[] };

/**
 * Records what lies mounted below the lease's paths, as its nodes saw it in prepare. Every node must see the same:
 * a node that writes elsewhere leaves files where normalise does not look. All at once, since a decision has a cost for
 * each node of the lease.
 */
export const decideRecordMounts = (
  state: LeaseState,
  facts: RuleFacts,
  ref: LeaseRef,
  seen: readonly NodeMounts[],
): LeaseDecision<LeaseView> => {
  const found = findIn(state, ref, ['active']);
  if (!found.ok) return found;
  const lease = found.value;
  const scopes = scopesOf(lease);
  const known = new Map(lease.mounts.map(({ node, mount }) => [mount.path, { node, mount }]));
  const events: ExistingEvent[] = [];
  for (const { node, mounts } of seen) {
    if (!lease.nodes.has(node)) return refuse('node-unknown', `${node} is not a node of ${nameLease(lease)}`);
    const added: MountFacts[] = [];
    for (const mount of mounts) {
      if (!scopes.includes(mount.path))
        return refuse('protocol', `${node} reports a mount for ${mount.path}, which is not of the lease`);
      if (!isMountEncodable(mount))
        return refuse('protocol', `${node} reports a mount for ${mount.path} that cannot be recorded`);
      const before = known.get(mount.path);
      if (before === undefined) {
        known.set(mount.path, { node, mount });
        added.push(mount);
      } else if (!isSameMount(mount, before.mount)) {
        return refuse(
          'mount-changed',
          `${mount.path} is ${mount.type} ${mount.source} (${mount.fsid}) on ${node}, ` +
            `but ${before.mount.type} ${before.mount.source} (${before.mount.fsid}) on ${before.node}`,
          { at: node },
        );
      }
    }
    if (added.length > 0) events.push({ kind: 'mounts', lease: lease.number, node, mounts: added });
  }
  return change(lease, events, facts);
};

export type DrainRequest = {
  /** Nodes that answered a challenge just now; a node that is missing here cannot certify unless it is bound. */
  readonly bindings: readonly NodeBinding[];
  /** Fresh random bytes; every node's nonce comes from them. */
  readonly seed: Uint8Array;
};

export type Drain = {
  readonly lease: LeaseView;
  /** One for each node that has not certified. */
  readonly nonces: readonly DrainNonce[];
  /** Nodes whose binding does not fit the lease: their certificates will not count. */
  readonly foreign: readonly ForeignNode[];
};

export type ForeignNode = {
  readonly node: NodeName;
  readonly problem: string;
  /** What can be done about it, where something can. */
  readonly cure: string | undefined;
};

const nonceOf = (seed: Uint8Array, node: NodeName): string =>
  createHmac('sha256', seed)
    .update(node)
    .digest('hex')
    .slice(0, LIMITS.nonceBytes * 2);

const drain = (lease: Lease, facts: RuleFacts, request: DrainRequest): LeaseDecision<Drain> => {
  const nonces = uncertifiedNodes(lease).map((node) => ({ node, nonce: nonceOf(request.seed, node) }));
  const begins = lease.status === 'active' || lease.status === 'quarantined';
  const first: readonly ExistingEvent[] = begins
    ? [{ kind: 'drain', lease: lease.number, nonces }]
    : nonces.length === 0
      ? []
      : [{ kind: 'ask', lease: lease.number, nonces }];
  const fitting: NodeBinding[] = [];
  const foreign: ForeignNode[] = [];
  for (const binding of request.bindings) {
    const fits = checkBinding(lease, binding);
    if (fits.ok) fitting.push(binding);
    else foreign.push({ node: binding.node, problem: fits.message, cure: fits.facts.next });
  }
  const events = [...first, ...bindEvents(lease, fitting)];
  return decide(events, { lease: viewAfter(lease, events, facts), nonces, foreign });
};

/**
 * Ends the right to run and asks every node that has not certified, with a fresh nonce each. Also after expiry, and
 * again while draining or normalising, when an earlier attempt to release broke off. A quarantined lease is for
 * `decideRetry`.
 */
export const decideDrain = (
  state: LeaseState,
  facts: RuleFacts,
  ref: LeaseRef,
  request: DrainRequest,
): LeaseDecision<Drain> => {
  const found = findIn(state, ref, ['active', 'draining', 'normalising']);
  return found.ok ? drain(found.value, facts, request) : found;
};

/** Begins the release of a quarantined lease anew. Certificates that it has stay; verify passes do not. */
export const decideRetry = (
  state: LeaseState,
  facts: RuleFacts,
  ref: LeaseRef,
  request: DrainRequest,
): LeaseDecision<Drain> => {
  const found = findIn(state, ref, ['quarantined']);
  return found.ok ? drain(found.value, facts, request) : found;
};

export type NodeCertificate = {
  readonly node: NodeName;
  readonly certificate: OpenedCertificate;
  /** The nonce with which the caller has asked the node, where it knows. */
  readonly asked?: string | undefined;
};

export type Certified = {
  readonly lease: LeaseView;
  readonly refused: readonly { readonly node: NodeName; readonly problem: string }[];
  /** Nodes that somebody else has asked since; they count neither as certified nor as refused. */
  readonly askedAnew: readonly NodeName[];
};

const fitNode = (
  lease: Lease,
  { node: name, certificate }: NodeCertificate,
  identity: { readonly cluster: string; readonly instance: InstanceName },
): Verdict<'new' | 'known'> => {
  const node = lease.nodes.get(name);
  if (node === undefined) return refuse('node-unknown', `${name} is not a node of the lease`);
  if (node.certificate === certificate.digest) return accept('known');
  if (node.certificate !== null) return refuse('certificate', `${name} has certified already`);
  if (node.binding === null) return refuse('certificate', `no worker of ${name} is bound to the lease`);
  if (node.nonce === null) return refuse('certificate', `${name} was not asked for a certificate`);
  const fits = fitCertificate(certificate, {
    ...identity,
    ...node.binding,
    lease: lease.number,
    uid: lease.uid,
    node: name,
    nonce: node.nonce,
  });
  return fits.ok ? accept('new') : fits;
};

/** Records the certificates that fit and names those that do not: one bad node must not cost the others' proof. */
export const decideCertify = (
  state: LeaseState,
  facts: RuleFacts,
  ref: LeaseRef,
  certificates: readonly NodeCertificate[],
  identity: { readonly cluster: string; readonly instance: InstanceName },
): LeaseDecision<Certified> => {
  const found = findIn(state, ref, ['draining', 'normalising']);
  if (!found.ok) return found;
  const lease = found.value;
  const events = new Map<NodeName, ExistingEvent>();
  const refused: { node: NodeName; problem: string }[] = [];
  const askedAnew: NodeName[] = [];
  for (const offered of certificates) {
    const { node, certificate, asked } = offered;
    const last = lease.nodes.get(node)?.nonce ?? null;
    if (asked !== undefined && last !== null && last !== asked) {
      askedAnew.push(node);
      continue;
    }
    const fits = fitNode(lease, offered, identity);
    if (!fits.ok) refused.push({ node, problem: fits.message });
    else if (fits.value === 'new')
      events.set(node, {
        kind: 'certify',
        lease: lease.number,
        node,
        digest: certificate.digest,
        certificate: certificate.text,
      });
  }
  const recorded = [...events.values()];
  return decide(recorded, { lease: viewAfter(lease, recorded, facts), refused, askedAnew });
};

const blocked = (lease: Lease, missing: readonly string[], what: string): Refusal =>
  refuse('release-blocked', `${nameLease(lease)}: ${what} is missing for ${listNames(missing)}`, {
    next: commandFor('lease release', lease),
    detail: { lease: lease.number, missing: missing.slice(0, LIMITS.leaseScopesMax) },
  });

export type NormaliseStart = {
  readonly lease: LeaseView;
  /** What the walks that begin now rest on; see ScopeResult. */
  readonly proof: string;
};

/**
 * Only after every node has certified or was reclaimed: a live process can hide files from a walk. What a reclaimed
 * node could still do is for its operator to answer for, and for the verify passes after its certificate to find.
 */
export const decideBeginNormalise = (
  state: LeaseState,
  facts: RuleFacts,
  ref: LeaseRef,
): LeaseDecision<NormaliseStart> => {
  const found = findIn(state, ref, ['draining', 'normalising']);
  if (!found.ok) return found;
  const lease = found.value;
  const missing = lease.status === 'normalising' ? [] : unaccountedNodes(lease);
  if (missing.length > 0) return blocked(lease, missing, 'a certificate');
  const events: readonly ExistingEvent[] =
    lease.status === 'normalising' ? [] : [{ kind: 'normalise', lease: lease.number }];
  return decide(events, { lease: viewAfter(lease, events, facts), proof: proofOf(lease) });
};

/** What a verify pass over one scope found. Counts of inodes; `left` is what still belongs to the uid. */
export type ScopeResult = {
  readonly path: string;
  /** Of the NormaliseStart before the walk: what a node did before it certified may lie behind the walk. */
  readonly proof: string;
  readonly walked: number;
  readonly changed: number;
  readonly left: number;
};

/** Records that a verify pass found nothing of the uid. */
export const decideFinishRoot = (
  state: LeaseState,
  facts: RuleFacts,
  ref: LeaseRef,
  result: ScopeResult,
): LeaseDecision<LeaseView> => {
  const found = findIn(state, ref, ['normalising']);
  if (!found.ok) return found;
  const lease = found.value;
  const { path, proof, walked, changed, left } = result;
  if (!scopesOf(lease).includes(path))
    return refuse('normalise-refused', `${path} is not a path of ${nameLease(lease)}`, { at: path });
  if (proof !== proofOf(lease))
    return refuse(
      'lease-state',
      `a node of ${nameLease(lease)} has certified since the walk of ${path} began`,
      {
        at: path,
        next: commandFor('lease release', lease),
      },
    );
  for (const count of [walked, changed, left])
    assert(Number.isSafeInteger(count) && count >= 0, 'a walk counts inodes');
  if (left > 0)
    return refuse('normalise-partial', `${left} inodes of uid ${lease.uid} are left below ${path}`, {
      at: path,
      next: commandFor('normalise', lease),
      detail: { lease: lease.number, path, left },
    });
  const events: readonly ExistingEvent[] = isFinished(lease, path)
    ? []
    : [{ kind: 'normalised', lease: lease.number, path, walked, changed }];
  return change(lease, events, facts);
};

/** How many old attempts one release forgets at most: more than it adds, so that the memory shrinks. */
const FORGET_AT_ONCE = 64;

/** What is old, as long as the clock can be believed; and what is over the bound, whatever its age. */
const forget = (state: LeaseState, facts: RuleFacts, added: number): readonly LeaseEvent[] => {
  const over = Math.max(0, state.ended.size + added - LIMITS.endedAttemptsMax);
  let old = 0;
  if (isClockTrusted(facts.now)) {
    for (const { endedWallMs } of state.ended) {
      if (old >= FORGET_AT_ONCE || facts.now.wallMs - endedWallMs <= facts.rememberMs) break;
      old += 1;
    }
  }
  const count = Math.max(over, old);
  return count === 0 ? [] : [{ kind: 'forget', count }];
};

/** Gives the uid back: only with a certificate of every node and a finished verify pass of every scope. */
export const decideFree = (
  state: LeaseState,
  facts: RuleFacts,
  ref: LeaseRef,
): LeaseDecision<{ readonly uid: Uid }> => {
  const found = findIn(state, ref, ['normalising']);
  if (!found.ok) return found;
  const lease = found.value;
  const uncertified = uncertifiedNodes(lease);
  if (uncertified.length > 0) return blocked(lease, uncertified, 'a certificate');
  const unfinished = unfinishedScopes(lease);
  if (unfinished.length > 0) return blocked(lease, unfinished, 'a complete normalise');
  const events: readonly LeaseEvent[] = [
    { kind: 'free', lease: lease.number, wallMs: facts.now.wallMs },
    ...forget(state, facts, 1),
  ];
  return decide(events, { uid: lease.uid });
};

/** Cuts a reason to its bound between characters and makes it a text that UTF-8 can carry. */
const boundReason = (text: string): string =>
  Buffer.from(
    Array.from(text.slice(0, LIMITS.reasonCharsMax * 2))
      .slice(0, LIMITS.reasonCharsMax)
      .join(''),
  ).toString();

export type QuarantineRequest = {
  /** The other codes are the rules' own. */
  readonly code: Exclude<QuarantineCode, 'superseded' | 'expired'>;
  /** One line of any length and content; it is cut to LIMITS.reasonCharsMax. */
  readonly text: string;
  readonly node: NodeName | null;
};

const quarantine = (
  lease: Lease,
  facts: RuleFacts,
  { code, text, node }: Omit<Quarantine, 'wallMs'>,
): LeaseDecision<LeaseView> => {
  const reason = { code, text: boundReason(text), node, wallMs: facts.now.wallMs };
  return change(lease, [{ kind: 'quarantine', lease: lease.number, quarantine: reason }], facts);
};

export type ReclaimRequest = { readonly node: NodeName; readonly by: string; readonly reason: string };

const isOneLine = (text: string, charsMax: number): boolean =>
  text.trim() !== '' &&
  !/\p{Cc}/u.test(text) &&
  Array.from(text).length <= charsMax &&
  isEncodable(text, charsMax * 4);

/**
 * Records an operator's word that a node of the lease is fenced off. It ends the attempt and lets the release go on
 * without the node; the uid stays until the node has certified after its return, and no job may use the node until
 * then. A node that comes back and is lost again can be reclaimed again.
 */
export const decideReclaim = (
  state: LeaseState,
  facts: RuleFacts,
  ref: LeaseRef,
  { node: name, by, reason }: ReclaimRequest,
): LeaseDecision<LeaseView> => {
  if (!isOneLine(by, LIMITS.operatorCharsMax))
    return refuse('usage', `who reclaims is one line of 1 to ${LIMITS.operatorCharsMax} characters`, {
      next: 'give --by WHO, or leave it out: then it is who logged in',
    });
  if (!isOneLine(reason, LIMITS.reasonCharsMax))
    return refuse('usage', `the reason is one line of 1 to ${LIMITS.reasonCharsMax} characters`, {
      next: "give --reason TEXT, as in --reason 'plug pulled'",
    });
  const found = findLease(state, ref);
  if (!found.ok) return found;
  const lease = found.value;
  const node = lease.nodes.get(name);
  if (node === undefined)
    return refuse('node-unknown', `${name} is not a node of ${nameLease(lease)}`, {
      next: commandFor('lease show', lease),
    });
  if (node.certificate !== null)
    return refuse(
      'lease-state',
      `${name} has certified for ${nameLease(lease)}: it holds nothing to reclaim`,
      {
        next: commandFor('lease release', lease),
      },
    );
  if (node.reclaim !== null && node.binding === null) return change(lease, [], facts);
  const reclaim = { by, reason, wallMs: facts.now.wallMs };
  return change(lease, [{ kind: 'reclaim', lease: lease.number, node: name, reclaim }], facts);
};

/**
 * Keeps the uid away from everybody until somebody retries. A quarantined lease keeps its first reason, but that its
 * uid is somebody's is said whatever was said before.
 */
export const decideQuarantine = (
  state: LeaseState,
  facts: RuleFacts,
  ref: LeaseRef,
  request: QuarantineRequest,
): LeaseDecision<LeaseView> => {
  const found = findLease(state, ref);
  if (!found.ok) return found;
  const lease = found.value;
  const isNews = request.code === 'uid-taken' && lease.quarantine?.code !== 'uid-taken';
  return lease.status === 'quarantined' && !isNews
    ? change(lease, [], facts)
    : quarantine(lease, facts, request);
};

/** What is done about a clock that proves nothing. */
export const CLOCK_ADVICE =
  'compare the clocks of this host and of the storage (xce-sandbox lease verify); once this one is right: xce-sandbox lease takeover';

const clockDoubt = ({ skewMs, stepMs, skewBoundMs }: Now): string => {
  if (skewMs === undefined || stepMs === undefined)
    return 'clock skew: it was not measured, so this host may not let a lease expire';
  const isSet = Math.abs(skewMs) <= skewBoundMs;
  const what = isSet
    ? `the clock of this host was set by ${formatDuration(Math.round(stepMs / 1000) * 1000)} since it owns the log: that`
    : `clock skew ${formatDuration(skewMs)}`;
  return `${what} is over the bound of ${formatDuration(skewBoundMs)}, so this host may not let a lease expire`;
};

const expire = (lease: Lease): Omit<Quarantine, 'wallMs'> => ({
  code: 'expired',
  text: `its time of ${formatDuration(lease.term.ttlMs)} is over`,
  node: null,
});

/**
 * Quarantines a lease because its time is over. Only on a clock that can prove it: refused with 'clock-skew' where
 * it cannot, with 'lease-state' while the lease may still live.
 */
export const decideExpire = (
  state: LeaseState,
  facts: RuleFacts,
  ref: LeaseRef,
): LeaseDecision<LeaseView> => {
  const found = findIn(state, ref, ['active']);
  if (!found.ok) return found;
  const lease = found.value;
  const { skewMs, stepMs, skewBoundMs } = facts.now;
  switch (judgeExpiry(lease.term, facts.now)) {
    case 'unsure':
      return refuse('clock-skew', clockDoubt(facts.now), {
        next: CLOCK_ADVICE,
        detail: { skewMs: skewMs ?? null, stepMs: stepMs ?? null, skewBoundMs },
      });
    case 'live':
      return refuse('lease-state', `${nameLease(lease)} has not expired for certain`, {
        next: commandFor('lease show', lease),
      });
    case 'expired':
      return quarantine(lease, facts, expire(lease));
  }
};

export type Expiries = {
  /** One for each lease that was active, by number; 'expired' ones are in quarantine now. */
  readonly outcomes: readonly {
    readonly lease: LeaseNumber;
    readonly uid: Uid;
    readonly job: JobId;
    readonly attempt: Attempt;
    readonly outcome: Expiry;
  }[];
  /** Why this host's clock proves nothing; null where it does. */
  readonly doubt: string | null;
  /** More have expired than one record takes. */
  readonly more: boolean;
};

/** Judges every active lease, and quarantines up to `limit` of those whose time is over. */
export const decideExpireAll = (
  state: LeaseState,
  facts: RuleFacts,
  limit: number,
): LeaseDecision<Expiries> => {
  const judged = [...state.leases.values()]
    .filter(({ status }) => status === 'active')
    .map((lease) => ({ lease, outcome: judgeExpiry(lease.term, facts.now) }));
  const over = judged.filter(({ outcome }) => outcome === 'expired');
  const taken = new Set(over.slice(0, limit));
  const events: LeaseEvent[] = over.slice(0, limit).map(({ lease }) => ({
    kind: 'quarantine',
    lease: lease.number,
    quarantine: { ...expire(lease), wallMs: facts.now.wallMs },
  }));
  const outcomes = judged
    .filter((one) => one.outcome !== 'expired' || taken.has(one))
    .map(({ lease: { number, uid, job, attempt }, outcome }) => ({
      lease: number,
      uid,
      job,
      attempt,
      outcome,
    }));
  const isUnsure = judged.some(({ outcome }) => outcome === 'unsure');
  return decide(events, {
    outcomes,
    doubt: isUnsure ? clockDoubt(facts.now) : null,
    more: over.length > limit,
  });
};
