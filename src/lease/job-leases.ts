/** What is done about one job without its nodes: a lease, and a new term. See store.ts for everything else. */
import { XceError } from '../base/errors.ts';
import type { Uid } from '../base/ids.ts';
import type { NameService } from '../os/name-service.ts';
import type { Committed, LeaseLog, LogNotice } from '../wal/log.ts';
import { type AllocateRequest, type Allocation, decideAllocate } from './allocate.ts';
import type { LeaseEvent } from './event.ts';
import { lookUpCandidates } from './pool.ts';
import type { LeaseRef } from './reference.ts';
import { commitRule, guessRule, type Rule, type RulePorts, type RuleSettings } from './rule-commit.ts';
import { decideRenew } from './rules.ts';
import type { JobState, LeaseState } from './state.ts';
import type { LeaseView } from './view.ts';

export type JobLeasesPorts = RulePorts<LeaseState> & {
  readonly log: Pick<LeaseLog<LeaseState, LeaseEvent>, 'guess'>;
  readonly nameService: NameService;
};

export type Allocated = {
  readonly lease: LeaseView;
  /** False when this attempt had the lease already. */
  readonly created: boolean;
  /** Free uids that were passed over because the name service knows them. */
  readonly skipped: readonly Uid[];
};

/** Rounds of look-ups; each asks for twice as many uids as the one before, up to CANDIDATES_MAX. */
const ROUNDS_MAX = 12;
const CANDIDATES_MAX = 32;

/** A new term. Throws 'lease-expired', 'lease-state', 'log-fenced'. */
export const renewTerm = (
  ports: RulePorts<JobState>,
  settings: RuleSettings,
  ref: LeaseRef,
  ttlMs: number,
): Promise<Committed<LeaseView>> =>
  commitRule(ports, settings, (state, facts) => decideRenew(state, facts, ref, ttlMs));

/** Grants leases; one for all requests of a process. */
export class JobLeases {
  readonly #ports: JobLeasesPorts;
  readonly #settings: RuleSettings;
  /** Uids that are being looked up for a request of this process: others look for other ones. */
  readonly #offered = new Set<Uid>();

  constructor(ports: JobLeasesPorts, settings: RuleSettings) {
    this.#ports = ports;
    this.#settings = settings;
  }

  /**
   * Grants a uid that the name service does not know, or returns the lease that this attempt has already.
   * Throws 'lease-conflict', 'lease-ended', 'lease-expired', 'node-withheld', 'pool-exhausted', 'submitter',
   * 'name-service', 'uid-taken'; 'log-busy' when others were faster with every candidate.
   */
  async allocate(request: AllocateRequest): Promise<Committed<Allocated>> {
    const own = new Set<Uid>();
    try {
      return await this.#allocate(request, own);
    } finally {
      for (const uid of own) this.#offered.delete(uid);
    }
  }

  async #allocate(request: AllocateRequest, own: Set<Uid>): Promise<Committed<Allocated>> {
    const present = new Set<Uid>();
    const notices: LogNotice[] = [];
    const ruleOf =
      (absent: readonly Uid[], wanted: number): Rule<LeaseState, Allocation> =>
      (state, facts) =>
        decideAllocate(state, facts, request, { absent, present, offered: this.#offered, wanted });
    let absent = await this.#prove(this.#guess(ruleOf([], 1)), own, present, 'guess');
    for (let round = 0; round < ROUNDS_MAX; round += 1) {
      const rule = ruleOf(absent, Math.min(2 ** round, CANDIDATES_MAX));
      const committed = await commitRule(this.#ports, this.#settings, rule);
      notices.push(...committed.notices);
      const { result } = committed;
      if (result.kind !== 'look-up')
        return {
          ...committed,
          notices,
          result: { lease: result.lease, created: result.kind === 'granted', skipped: [...present] },
        };
      absent = await this.#prove(this.#guess(rule) ?? result.candidates, own, present, 'answer');
    }
    const unchanged = 'no uid was leased';
    if (absent.length === 0)
      throw new XceError('uid-taken', `the name service knows all of ${present.size} free uids looked up`, {
        unchanged,
        next: 'choose another [pool] range',
        detail: { taken: [...present].slice(0, CANDIDATES_MAX) },
      });
    throw new XceError('log-busy', 'other allocations took every uid that was looked up', {
      unchanged,
      next: 'try again',
    });
  }

  /** Candidates without asking the log, and without those that other requests of this process look up. */
  #guess(rule: Rule<LeaseState, Allocation>): readonly Uid[] | undefined {
    const guess = guessRule(this.#ports, this.#settings, rule);
    return guess?.kind === 'look-up' ? guess.candidates : undefined;
  }

  /** Those of the candidates that are nobody's; the others become `present`. */
  async #prove(
    candidates: readonly Uid[] | undefined,
    own: Set<Uid>,
    present: Set<Uid>,
    after: 'guess' | 'answer',
  ): Promise<readonly Uid[]> {
    if (candidates === undefined) return [];
    for (const uid of candidates) {
      own.add(uid);
      this.#offered.add(uid);
    }
    try {
      const found = await lookUpCandidates(this.#ports.nameService, candidates);
      for (const uid of found.present) present.add(uid);
      return found.absent;
    } catch (error) {
      // The log may have an answer that takes no look-up; if it has not, the name service is asked again.
      if (after === 'guess' && error instanceof XceError && error.code === 'name-service') return [];
      throw error;
    }
  }
}
