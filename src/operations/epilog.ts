/**
 * Ends a job attempt for its batch system: releases its lease by proof, and has exactly those nodes drained that are
 * not certified clean. It may come twice, twice at the same time, or without a prolog.
 */
import { XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import type { JobId, NodeName } from '../base/ids.ts';
import { isEarlierRun } from '../lease/ended.ts';
import type { LeaseRef } from '../lease/reference.ts';
import { foldNodes } from '../nodes/hostlist.ts';
import { runChild } from '../os/spawn.ts';
import { pause } from '../os/watch.ts';
import { drainArguments, type NodesToDrain, nodesToDrain } from '../scheduler/drain.ts';
import type { JobFacts } from '../scheduler/job-facts.ts';
import type { SchedulerName } from '../scheduler/schedulers.ts';
import type { Context } from './context.ts';
import { factsOf, type HookInput, untilFree, withinDeadline } from './hook.ts';
import { nodeFaultsOf, type ReleaseResult, releaseLease } from './lease-release.ts';

export type EpilogResult = {
  readonly scheduler: SchedulerName;
  readonly job: JobId;
  readonly attempt: number;
} & (
  | { readonly outcome: 'released'; readonly released: ReleaseResult }
  /** It has been released before. */
  | { readonly outcome: 'ended' }
  /** No prolog got as far as a lease. */
  | { readonly outcome: 'never-leased' }
);

const DRAIN_MS_MAX = 15_000;
/** Of what the program that drains says last. */
const SAID_CHARS_MAX = 200;
/** There is no event to wait for: the other release may be one of another host. */
const LOOK_MS = 500;

type Found = LeaseRef | { readonly none: string };

/**
 * The lease of the run that has ended. A batch system that requeues a job may have counted on before the epilog of the
 * run begins, and the next run may have its lease by then (Slurm 24.11); and it may begin to count the time of a run
 * anew once its nodes have booted. So the run is the last that began no later than the batch system says.
 */
const findRun = async ({ leases }: Context, { job, attempt, startedS }: JobFacts): Promise<Found> => {
  if (startedS === null) return { job, attempt };
  const all = await leases.ofJob(job);
  const begun = all.filter(({ schedulerStartS }) => (schedulerStartS ?? 0) <= startedS);
  const [first, ...others] = begun;
  if (first !== undefined) {
    return { lease: others.reduce((last, one) => (isEarlierRun(last, one) ? one : last), first).lease };
  }
  const [next] = all;
  return next === undefined
    ? { job, attempt }
    : { none: `lease ${next.lease} is that of a later run of job ${job}` };
};

/** Waits until nobody is at work on the lease any more. */
const untilSettled = async (context: Context, ref: LeaseRef, signal: AbortSignal): Promise<void> => {
  for (;;) {
    const { status } = await context.leases.show(ref);
    signal.throwIfAborted();
    if (status !== 'draining' && status !== 'normalising') return;
    await pause(LOOK_MS, signal);
  }
};

/** A release that another one has taken over is left to that one: it is asked for again once that has ended. */
const releaseOnce = async (context: Context, ref: LeaseRef, signal: AbortSignal): Promise<ReleaseResult> => {
  const selection = { job: undefined, attempt: undefined, lease: undefined, ...ref };
  for (;;) {
    try {
      return await untilFree(signal, () => releaseLease(context, selection));
    } catch (error) {
      const isTakenOver = error instanceof XceError && error.code === 'lease-state';
      if (!isTakenOver || signal.aborted) throw error;
      await untilSettled(context, ref, signal);
    }
  }
};

const drainNodes = async (
  context: Context,
  program: string,
  scheduler: SchedulerName,
  drain: NodesToDrain,
): Promise<readonly NodeName[]> => {
  const { nodes, reason } = drain;
  const end = await runChild(program, drainArguments(scheduler, drain), { timeoutMs: DRAIN_MS_MAX });
  if (end.exitCode === 0 && !end.timedOut) {
    context.tell(`drained ${foldNodes(nodes)}: ${reason}`);
    return nodes;
  }
  const last = end.stderr.toString('utf8').trim().split('\n').at(-1) ?? '';
  const said = escapeText(last.slice(0, SAID_CHARS_MAX));
  const how = end.timedOut
    ? `no end within ${DRAIN_MS_MAX} ms`
    : `ended with ${end.exitCode ?? end.signal ?? end.spawnErrno}:`;
  context.tell(`${foldNodes(nodes)} must be drained by hand: ${program}: ${how} ${said}`.trim());
  return [];
};

/** Takes the nodes that hold up a release out of service, and tells that in the refusal. */
const drainMissing = async (context: Context, facts: JobFacts, error: XceError): Promise<XceError> => {
  const drains = nodesToDrain(nodeFaultsOf(error));
  const { drain: program } = context.settings.hooks;
  if (program === undefined || drains.length === 0) return error;
  const drained: NodeName[] = [];
  for (const one of drains) drained.push(...(await drainNodes(context, program, facts.scheduler, one)));
  const detail = { ...error.facts.detail, drained };
  return new XceError(error.code, error.message, { ...error.facts, detail, cause: error });
};

/** Throws what releaseLease throws, 'hook-facts', and 'timeout' at [hooks] deadline. Draining has its own bound. */
export const runEpilog = async (context: Context, input: HookInput): Promise<EpilogResult> => {
  const facts = factsOf(context, input);
  const { scheduler, job, attempt } = facts;
  const ended = (outcome: 'ended' | 'never-leased', why: string): EpilogResult => {
    context.tell(`nothing to release: ${why}`);
    return { scheduler, job, attempt, outcome };
  };
  try {
    return await withinDeadline(context, 'epilog', async (signal) => {
      const found = await findRun(context, facts);
      if ('none' in found) return ended('ended', found.none);
      const released = await releaseOnce(context, found, signal);
      return { scheduler, job, attempt: released.attempt, outcome: 'released', released };
    });
  } catch (error) {
    if (!(error instanceof XceError)) throw error;
    if (error.code === 'lease-ended') return ended('ended', error.message);
    if (error.code === 'lease-missing') return ended('never-leased', error.message);
    throw error.code === 'release-blocked' ? await drainMissing(context, facts, error) : error;
  }
};
