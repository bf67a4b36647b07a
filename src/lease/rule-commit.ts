/** One rule of allocate.ts or rules.ts under one commit of the log. */
import type { Epoch } from '../base/ids.ts';
import type { Settings } from '../config/settings.ts';
import type { Clock } from '../os/clock.ts';
import type { CommitContext, Committed, LeaseLog } from '../wal/log.ts';
import type { LeaseDecision, RuleFacts } from './decision.ts';
import type { LeaseEvent } from './event.ts';
import { unwrap } from './refusal.ts';
import type { Now } from './term.ts';

export type RuleSettings = Pick<Settings, 'pool' | 'lease'>;

/** As much of the log as every rule takes. */
export type RuleLog<State> = Pick<LeaseLog<State, LeaseEvent>, 'commit'>;

export type RulePorts<State> = {
  readonly log: RuleLog<State>;
  /** Its monotonic time must be that of the boot, the same in every process of the host: os/boot-clock.ts. */
  readonly clock: Clock;
  /** Boot id of this host: with the monotonic time it makes ages exact on the host that granted. */
  readonly bootId: string;
};

export type Rule<State, Result> = (state: State, facts: RuleFacts) => LeaseDecision<Result>;

const DAY_MS = 24 * 3600 * 1000;

export const nowOf = (
  { clock, bootId }: Omit<RulePorts<never>, 'log'>,
  { lease }: RuleSettings,
  wallMs: number,
  { skewMs, stepMs }: Pick<Now, 'skewMs' | 'stepMs'>,
): Now => ({
  // By name, since a whole CommitContext may be given, and a moment has no more than this.
  wallMs,
  monotonicMs: clock.monotonicMs(),
  bootId,
  skewBoundMs: lease.skewMs,
  skewMs,
  stepMs,
});

/** Of a reader, who has measured nothing. */
export const NOT_MEASURED = { skewMs: undefined, stepMs: undefined } as const;

const factsOf = (
  ports: Omit<RulePorts<never>, 'log'>,
  settings: RuleSettings,
  context: CommitContext,
): RuleFacts => ({
  epoch: context.epoch as Epoch,
  now: nowOf(ports, settings, context.wallMs, context),
  pool: settings.pool,
  rememberMs: settings.lease.rememberDays * DAY_MS,
});

/** A refusal is thrown as XceError with the rule's code, and nothing was written for it. */
export const commitRule = <State, Result>(
  ports: RulePorts<State>,
  settings: RuleSettings,
  rule: Rule<State, Result>,
): Promise<Committed<Result>> =>
  ports.log.commit((state, context) =>
    unwrap(rule(state, factsOf(ports, settings, context)), {
      unchanged: 'nothing was written to the lease log',
    }),
  );

/** What the rule would have said a moment ago; undefined where nobody knows, or where it would have refused. */
export const guessRule = <State, Result>(
  ports: Omit<RulePorts<State>, 'log'> & { readonly log: Pick<LeaseLog<State, LeaseEvent>, 'guess'> },
  settings: RuleSettings,
  rule: Rule<State, Result>,
): Result | undefined =>
  ports.log.guess((state, context) => {
    const decision = rule(state, factsOf(ports, settings, context));
    return decision.ok ? decision.value.result : undefined;
  });
