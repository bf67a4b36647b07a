/**
 * Leases as callers use them: each method is one rule of allocate.ts or rules.ts under one commit of the log. A
 * method that resolves has been acknowledged; its effects (tickets, drains, chowns) may begin. A refusal is thrown
 * as XceError with the rule's code, and nothing was written for it. Errors of the log pass through unchanged.
 */
import { randomBytes } from 'node:crypto';
import type { JobId, LeaseNumber, NodeName, Uid } from '../base/ids.ts';
import type { Settings } from '../config/settings.ts';
import type { Committed, LeaseLog, LogNotice } from '../wal/log.ts';
import type { AllocateRequest } from './allocate.ts';
import { openCertificate } from './certificate.ts';
import { decide } from './decision.ts';
import type { EndedAttempt } from './ended.ts';
import type { LeaseEvent } from './event.ts';
import { type Allocated, JobLeases, type JobLeasesPorts, renewTerm } from './job-leases.ts';
import type { LeaseStatus } from './lease.ts';
import { findLease, type LeaseRef } from './reference.ts';
import { unwrap } from './refusal.ts';
import { commitRule, NOT_MEASURED, nowOf, type Rule } from './rule-commit.ts';
import {
  type Certified,
  type Drain,
  decideBeginNormalise,
  decideBind,
  decideCertify,
  decideDrain,
  decideExpire,
  decideExpireAll,
  decideFinishRoot,
  decideFree,
  decideJoin,
  decideQuarantine,
  decideReclaim,
  decideRecordMounts,
  decideRetry,
  type Expiries,
  findRunning,
  type NodeBinding,
  type NodeCertificate,
  type NodeMounts,
  type NormaliseStart,
  type QuarantineRequest,
  type ReclaimRequest,
  type ScopeResult,
} from './rules.ts';
import type { LeaseState } from './state.ts';
import type { Now } from './term.ts';
import { type LeaseView, viewLease } from './view.ts';

export type LeaseStoreSettings = Pick<Settings, 'cluster' | 'pool' | 'lease'>;

export type LeaseStorePorts = JobLeasesPorts & { readonly log: LeaseLog<LeaseState, LeaseEvent> };

/** Certificates of one commit, so that a lease of any size fits into records. */
const CERTIFICATE_BYTES = 256 << 10;
/** Leases that expire in one record. */
const EXPIRED_AT_ONCE = 4096;
const SEED_BYTES = 32;

export class LeaseStore {
  readonly #ports: LeaseStorePorts;
  readonly #settings: LeaseStoreSettings;
  readonly #jobs: JobLeases;

  constructor(ports: LeaseStorePorts, settings: LeaseStoreSettings) {
    this.#ports = ports;
    this.#settings = settings;
    this.#jobs = new JobLeases(ports, settings);
  }

  #commit<Result>(rule: Rule<LeaseState, Result>): Promise<Committed<Result>> {
    return commitRule(this.#ports, this.#settings, rule);
  }

  /** See JobLeases. */
  allocate(request: AllocateRequest): Promise<Committed<Allocated>> {
    return this.#jobs.allocate(request);
  }

  /** See renewTerm. */
  renew(ref: LeaseRef, ttlMs: number): Promise<Committed<LeaseView>> {
    return renewTerm(this.#ports, this.#settings, ref, ttlMs);
  }

  /**
   * Records the workers that a launch talks to; the view and the position's epoch are what tickets are made of.
   * Throws 'worker-key', 'node-unknown', 'node-withheld', 'lease-expired', 'lease-state'.
   */
  bind(ref: LeaseRef, bindings: readonly NodeBinding[]): Promise<Committed<LeaseView>> {
    return this.#commit((state, facts) => decideBind(state, facts, ref, bindings));
  }

  /** Adds a host that will act under the lease's name. */
  join(ref: LeaseRef, node: NodeName): Promise<Committed<LeaseView>> {
    return this.#commit((state, facts) => decideJoin(state, facts, ref, node));
  }

  /** Throws 'mount-changed' when a node sees another mount than the nodes before it, and records nothing then. */
  recordMounts(ref: LeaseRef, seen: readonly NodeMounts[]): Promise<Committed<LeaseView>> {
    return this.#commit((state, facts) => decideRecordMounts(state, facts, ref, seen));
  }

  /** Ends the right to run, with a fresh nonce for every node that has not certified. */
  beginDrain(ref: LeaseRef, bindings: readonly NodeBinding[]): Promise<Committed<Drain>> {
    const seed = randomBytes(SEED_BYTES);
    return this.#commit((state, facts) => decideDrain(state, facts, ref, { bindings, seed }));
  }

  /** The same for a quarantined lease, which goes back to draining. */
  retry(ref: LeaseRef, bindings: readonly NodeBinding[]): Promise<Committed<Drain>> {
    const seed = randomBytes(SEED_BYTES);
    return this.#commit((state, facts) => decideRetry(state, facts, ref, { bindings, seed }));
  }

  /**
   * Checks certificates and records those that fit. Signatures are verified before the lock is taken, and many
   * certificates take several commits.
   */
  async certify(
    ref: LeaseRef,
    certificates: readonly {
      readonly node: NodeName;
      readonly certificate: string;
      readonly nonce?: string | undefined;
    }[],
  ): Promise<Committed<Certified>> {
    const before = await this.#look(ref);
    const lease = { lease: before.result.lease };
    const keys = new Map(before.result.nodes.map(({ node, workerKey }) => [node, workerKey]));
    const refused: { node: NodeName; problem: string }[] = [];
    const opened: NodeCertificate[] = [];
    for (const { node, nonce: asked, certificate: text } of certificates) {
      const key = keys.get(node) ?? null;
      const problem = keys.has(node)
        ? 'no worker of it is bound to the lease'
        : 'it is not a node of the lease';
      if (key === null) {
        refused.push({ node, problem });
        continue;
      }
      const certificate = openCertificate(text, key);
      if (certificate.ok) opened.push({ node, certificate: certificate.value, asked });
      else refused.push({ node, problem: certificate.message });
    }
    const notices = [...before.notices];
    const { cluster } = this.#settings;
    const identity = { cluster: cluster.name, instance: cluster.instance };
    const askedAnew: NodeName[] = [];
    let start = 0;
    for (;;) {
      let end = start;
      let bytes = 0;
      while (end < opened.length && (end === start || bytes < CERTIFICATE_BYTES)) {
        bytes += opened[end]?.certificate.text.length ?? 0;
        end += 1;
      }
      const batch = opened.slice(start, end);
      const committed = await this.#commit((state, facts) =>
        decideCertify(state, facts, lease, batch, identity),
      );
      notices.push(...committed.notices);
      refused.push(...committed.result.refused);
      askedAnew.push(...committed.result.askedAnew);
      start = end;
      if (start >= opened.length)
        return { ...committed, notices, result: { lease: committed.result.lease, refused, askedAnew } };
    }
  }

  /** Throws 'release-blocked' while a node has not certified. */
  beginNormalise(ref: LeaseRef): Promise<Committed<NormaliseStart>> {
    return this.#commit((state, facts) => decideBeginNormalise(state, facts, ref));
  }

  /**
   * Records a verify pass. Throws 'normalise-partial' when it found inodes of the uid, 'lease-state' when a node has
   * certified since it began.
   */
  finishRoot(ref: LeaseRef, result: ScopeResult): Promise<Committed<LeaseView>> {
    return this.#commit((state, facts) => decideFinishRoot(state, facts, ref, result));
  }

  /** Throws 'release-blocked' while any proof is missing. */
  free(ref: LeaseRef): Promise<Committed<{ readonly uid: Uid }>> {
    return this.#commit((state, facts) => decideFree(state, facts, ref));
  }

  /** Keeps the uid from everybody until a retry. */
  quarantine(ref: LeaseRef, request: QuarantineRequest): Promise<Committed<LeaseView>> {
    return this.#commit((state, facts) => decideQuarantine(state, facts, ref, request));
  }

  /** Records that a node is fenced off. Throws 'usage', 'node-unknown', 'lease-state' for a node that certified. */
  reclaim(ref: LeaseRef, request: ReclaimRequest): Promise<Committed<LeaseView>> {
    return this.#commit((state, facts) => decideReclaim(state, facts, ref, request));
  }

  /** Quarantines a lease whose time is over. Throws 'clock-skew' where this host's clock cannot prove it. */
  expire(ref: LeaseRef): Promise<Committed<LeaseView>> {
    return this.#commit((state, facts) => decideExpire(state, facts, ref));
  }

  /** The same for every lease, in as many commits as it takes. */
  async expireAll(): Promise<Committed<Omit<Expiries, 'more'>>> {
    const expired: Expiries['outcomes'][number][] = [];
    const notices: LogNotice[] = [];
    for (;;) {
      const committed = await this.#commit((state, facts) => decideExpireAll(state, facts, EXPIRED_AT_ONCE));
      notices.push(...committed.notices);
      const { outcomes, doubt, more } = committed.result;
      if (!more) {
        const all = [...expired, ...outcomes].sort((one, other) => one.lease - other.lease);
        return { ...committed, notices, result: { outcomes: all, doubt } };
      }
      expired.push(...outcomes.filter(({ outcome }) => outcome === 'expired'));
    }
  }

  /** The lease as the lock's holder sees it, without an event. */
  #look(ref: LeaseRef): Promise<Committed<LeaseView>> {
    return this.#commit((state, facts) => {
      const found = findLease(state, ref);
      return found.ok ? decide([], viewLease(found.value, facts.now)) : found;
    });
  }

  /**
   * One lease, read without a lock on any host: it may be behind. Throws 'lease-missing', or 'lease-ended' with the
   * uid it had in the facts.
   */
  async show(ref: LeaseRef): Promise<LeaseView> {
    const { state } = await this.#ports.log.read();
    return viewLease(unwrap(findLease(state, ref)), this.#readersNow());
  }

  /** The same for a lease under which something is to start: throws 'lease-state' and 'lease-expired' as well. */
  async showRunning(ref: LeaseRef): Promise<LeaseView> {
    const { state } = await this.#ports.log.read();
    const now = this.#readersNow();
    const unchanged = 'nothing was started on any node';
    return viewLease(unwrap(findRunning(state, now, ref), { unchanged }), now);
  }

  #readersNow(): Now {
    return nowOf(this.#ports, this.#settings, this.#ports.clock.wallMs(), NOT_MEASURED);
  }

  /** All leases in any of the statuses, by number, read without a lock: they may be behind. */
  async list(statuses?: readonly LeaseStatus[]): Promise<readonly LeaseView[]> {
    const { state } = await this.#ports.log.read();
    const now = this.#readersNow();
    const wanted = [...state.leases.values()].filter(
      ({ status }) => statuses === undefined || statuses.includes(status),
    );
    return wanted.map((lease) => viewLease(lease, now));
  }

  /** What is remembered of leases that have ended, by number, likewise: all that `[lease] remember` still covers. */
  async endedAmong(numbers: ReadonlySet<LeaseNumber>): Promise<ReadonlyMap<LeaseNumber, EndedAttempt>> {
    if (numbers.size === 0) return new Map();
    const { state } = await this.#ports.log.read();
    const wanted = [...state.ended].filter(({ lease }) => numbers.has(lease));
    return new Map(wanted.map((attempt) => [attempt.lease, attempt]));
  }

  /** The leases of one job, likewise. */
  async ofJob(job: JobId): Promise<readonly LeaseView[]> {
    const { state } = await this.#ports.log.read();
    const now = this.#readersNow();
    return state.leases.ofJob(job).map((lease) => viewLease(lease, now));
  }
}
