/** Begins a job attempt for its batch system: the lease, and a look at every node. Repeating it changes nothing. */
import { XceError } from '../base/errors.ts';
import type { NodeName } from '../base/ids.ts';
import { listFailures, tellFailures } from '../launch/fleet.ts';
import { commandFor } from '../lease/reference.ts';
import { requireJob } from '../scheduler/job-facts.ts';
import type { SchedulerName } from '../scheduler/schedulers.ts';
import { leaseTimeMs } from '../scheduler/term.ts';
import { challengeNodes } from './challenge.ts';
import type { Context } from './context.ts';
import { factsOf, type HookInput, untilFree, withinDeadline } from './hook.ts';
import { type AllocateResult, allocateLease } from './lease-allocate.ts';

export type PrologInput = HookInput & { readonly ttlMs: number | undefined };

export type PrologResult = { readonly scheduler: SchedulerName } & AllocateResult;

/** A node that gives no answer is found here and not by the job. Nothing starts on any node. */
const requireAnswers = async (
  context: Context,
  lease: AllocateResult,
  signal: AbortSignal,
): Promise<void> => {
  const nodes: readonly NodeName[] = lease.nodes.map(({ node }) => node);
  const { failed } = await challengeNodes(context, nodes, 'hello', signal);
  if (failed.length === 0) return;
  throw new XceError('hook-nodes', `lease ${lease.lease}: ${tellFailures(failed)}`, {
    unchanged: `nothing was started; uid ${lease.uid} stays leased until the epilog`,
    next: commandFor('lease release', lease),
    detail: { lease: lease.lease, nodes: listFailures(failed) },
  });
};

/** Throws what allocateLease throws, 'hook-facts', 'hook-nodes', and 'timeout' at [hooks] deadline. */
export const runProlog = async (context: Context, input: PrologInput): Promise<PrologResult> => {
  const facts = factsOf(context, input);
  const { hooks } = context.settings;
  const { submitter, nodes } = requireJob(facts, hooks.own);
  const ttlMs = input.ttlMs ?? leaseTimeMs(facts.endsS, context.clock.wallMs(), hooks.graceMs) ?? undefined;
  return await withinDeadline(context, 'prolog', async (signal) => {
    const lease = await untilFree(signal, () =>
      allocateLease(context, {
        job: facts.job,
        attempt: facts.attempt,
        schedulerStartS: facts.startedS,
        submitter,
        nodes,
        ttlMs,
        writablePaths: [],
        workspace: undefined,
      }),
    );
    await context.progress.phase('ask the nodes', () => requireAnswers(context, lease, signal));
    return { scheduler: facts.scheduler, ...lease };
  });
};
