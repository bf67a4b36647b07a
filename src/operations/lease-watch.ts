/** What happens in the lease log, as it happens: xce-sandbox-log(5), WATCH. */
import { formatJsonLine } from '../base/escape.ts';
import { pause } from '../os/watch.ts';
import type { Context } from './context.ts';
import { formatEntry } from './lease-dump.ts';
import { followLeaseLog, type LeaseFollowed } from './lease-log-ports.ts';

/** No event announces what another client of network storage does. */
const POLL_MS = 1000;

/** As JSON lines; events look as they do in a dump. */
export const formatFollowed = (thing: LeaseFollowed): string =>
  thing.type === 'events' ? formatEntry(thing) : formatJsonLine(thing);

/** Shows what becomes part of the log from now on, until `ended` aborts. */
export const watchLeaseLog = async (
  context: Pick<Context, 'settings'>,
  ended: AbortSignal,
  show: (things: readonly LeaseFollowed[]) => Promise<void>,
): Promise<void> => {
  const nextPoll = async (): Promise<boolean> => {
    await pause(POLL_MS, ended);
    return !ended.aborted;
  };
  for await (const things of followLeaseLog(context.settings, nextPoll)) await show(things);
};
