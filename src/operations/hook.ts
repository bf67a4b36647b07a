/** What prolog and epilog have in common. */
import { formatDuration } from '../base/duration.ts';
import { XceError } from '../base/errors.ts';
import { pause } from '../os/watch.ts';
import { withinMs } from '../os/within.ts';
import { type GivenFacts, type JobFacts, readJobFacts } from '../scheduler/job-facts.ts';
import type { Context } from './context.ts';

export type HookInput = GivenFacts & {
  /** The variables that the batch system set. */
  readonly environment: Readonly<Record<string, string | undefined>>;
};

/** Throws 'hook-facts'. */
export const factsOf = ({ settings }: Context, { environment, ...given }: HookInput): JobFacts => {
  const { own, scheduler } = settings.hooks;
  return readJobFacts(environment, own, { ...given, scheduler: given.scheduler ?? scheduler ?? undefined });
};

/**
 * Runs a hook within [hooks] deadline. What is under way then is given up: `signal` says so to whoever repeats, and the
 * command ends as soon as a commit of its own that is under way has; the workers take that as any end of a command.
 */
export const withinDeadline = async <T>(
  { settings }: Context,
  hook: string,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> => {
  const { deadlineMs } = settings.hooks;
  const controller = new AbortController();
  return await withinMs(deadlineMs, work(controller.signal), () => {
    const late = new XceError('timeout', `the ${hook} has not ended within ${formatDuration(deadlineMs)}`, {
      unchanged: 'what was recorded until then counts; nothing was freed without proof',
      next: 'xce-sandbox status; then run the hook again',
    });
    controller.abort(late);
    return late;
  });
};

/** Some refusals of a busy log come at once. */
const AGAIN_MS = 100;

/** Repeats what another process of this host or another one held up. */
export const untilFree = async <T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> => {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (signal.aborted || !(error instanceof XceError) || error.code !== 'log-busy') throw error;
    }
    await pause(AGAIN_MS, signal);
  }
};
