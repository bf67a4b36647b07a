import { formatDuration } from '../base/duration.ts';
import type { IdRange } from '../base/id-range.ts';
import type { Epoch, NodeName } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import type { Decision } from '../wal/log.ts';
import type { LeaseEvent } from './event.ts';
import { accept, refuse, type Verdict } from './refusal.ts';
import type { JobState, LeaseState } from './state.ts';
import type { Now } from './term.ts';

/** What a rule may know beside the state and the request. */
export type RuleFacts = {
  /** Epoch that the events will be written in. */
  readonly epoch: Epoch;
  readonly now: Now;
  readonly pool: IdRange;
  /** How long ended attempts are remembered. */
  readonly rememberMs: number;
};

/** Events and a result, or a refusal for which nothing is written. */
export type LeaseDecision<Result> = Verdict<Decision<LeaseEvent, Result>>;

export const decide = <Result>(events: readonly LeaseEvent[], result: Result): LeaseDecision<Result> =>
  accept({ events, result });

/** Refused with 'usage' unless a lease may last so long. */
export const checkTtl = (ttlMs: number): Verdict<undefined> =>
  Number.isSafeInteger(ttlMs) && ttlMs >= LIMITS.ttlMsMin && ttlMs <= LIMITS.ttlMsMax
    ? accept(undefined)
    : refuse(
        'usage',
        `a lease lasts from ${formatDuration(LIMITS.ttlMsMin)} to ${formatDuration(LIMITS.ttlMsMax)}, not ${formatDuration(ttlMs)}`,
        { next: 'give a --ttl such as 90s, 10m, 2h or 7d' },
      );

/** Refused with 'node-withheld' while some lease waits for one of the nodes to certify after a reclaim. */
export const checkNotWithheld = (state: LeaseState, nodes: Iterable<NodeName>): Verdict<undefined> => {
  if (state.withheld.size === 0) return accept(undefined);
  for (const node of nodes) {
    const lease = state.withheld.holderOf(node);
    if (lease !== undefined)
      return refuse(
        'node-withheld',
        `${node} was reclaimed and no job may use it: lease ${lease} waits for it to certify after its return`,
        { at: node, next: `xce-sandbox lease release --lease ${lease}`, detail: { node, lease } },
      );
  }
  return accept(undefined);
};

/** A controller whose epoch is over gives nobody a right to run, even where the log would let it write. */
export const checkEpoch = (state: JobState, facts: RuleFacts): Verdict<undefined> =>
  facts.epoch < state.epoch
    ? refuse('log-fenced', `epoch ${facts.epoch} is over, the log has reached epoch ${state.epoch}`, {
        next: 'xce-sandbox lease takeover',
      })
    : accept(undefined);
