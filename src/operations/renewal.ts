/**
 * Keeps a lease and the tickets of its nodes alive while a launch runs. Renewed after each third of the time that
 * is left; a renewal that fails is tried again after a third of the rest. Once no more than an eighth is left of
 * what the last one gave, it is given up, so that there is time to end the job before its deadlines do.
 */
import { setMaxListeners } from 'node:events';
import { asXceError, XceError } from '../base/errors.ts';
import type { NodeName } from '../base/ids.ts';
import { askAll, failures, joinFailures } from '../launch/fleet.ts';
import { type LongTimeout, setLongTimeout } from '../launch/long-timeout.ts';
import type { LeaseRef } from '../lease/reference.ts';
import type { Context } from './context.ts';
import { tellNotices } from './notices.ts';
import { makeTickets, type Tickets } from './tickets.ts';

/** Part of the time left after which the next renewal, or the next try, begins. */
const RENEW_AFTER = 1 / 3;
/** Part of the time a renewal gave, below which no further one is tried. */
const GIVE_UP_AT = 1 / 8;

export type Renewal = {
  /** No further renewal begins; resolves when one that is under way has ended. Idempotent. */
  stop(): Promise<void>;
};

/** The lease in the log first, for as long as it was last given for, then every node's ticket. */
const renewOnce = async (
  context: Context,
  ref: LeaseRef,
  nodes: readonly NodeName[],
  signal: AbortSignal,
): Promise<Tickets> => {
  const lease = await context.leases.show(ref);
  tellNotices(context, (await context.leases.renew(ref, lease.ttlMs)).notices);
  const tickets = await makeTickets(context, lease, nodes, joinFailures, signal);
  const answers = await askAll(nodes, async (node) => {
    const session = await context.fleet.session(node, signal);
    return await session.call(
      'renew',
      { ticket: tickets.ticketOf(node) },
      { timeoutMs: context.settings.nodes.requestTimeoutMs, signal },
    );
  });
  const refusal = joinFailures(failures(answers), 'not every node took the renewed ticket');
  if (refusal !== undefined) throw refusal;
  return tickets;
};

/**
 * `onRenewed` gets the tickets that every node has taken; `onFailure` is called at most once, when there is no time for
 * another try.
 */
export const keepRenewing = (
  context: Context,
  { lease, endMs: firstEndMs }: Pick<Tickets, 'lease' | 'endMs'>,
  nodes: readonly NodeName[],
  {
    onRenewed,
    onFailure,
  }: { readonly onRenewed: (tickets: Tickets) => void; readonly onFailure: (error: XceError) => void },
): Renewal => {
  const { clock } = context;
  const ref: LeaseRef = { lease: lease.lease };
  const stopping = new AbortController();
  // One listener for each node that is asked at the same time.
  setMaxListeners(0, stopping.signal);
  let endMs = firstEndMs;
  let termMs = firstEndMs - clock.monotonicMs();
  let timer: LongTimeout;
  let renewing: Promise<void> = Promise.resolve();

  const leftMs = (): number => endMs - clock.monotonicMs();

  const arm = (): void => {
    timer = setLongTimeout(
      () => {
        renewing = renew();
      },
      Math.max(1, Math.floor(leftMs() * RENEW_AFTER)),
    );
  };

  const renew = async (): Promise<void> => {
    try {
      const tickets = await renewOnce(context, ref, nodes, stopping.signal);
      endMs = tickets.endMs;
      termMs = leftMs();
      onRenewed(tickets);
    } catch (error) {
      // The launch is over; what it needed the lease for is done.
      if (stopping.signal.aborted) return;
      const known = asXceError(error);
      context.tell(`the lease was not renewed: ${known.message}`);
      if (leftMs() <= termMs * GIVE_UP_AT) {
        onFailure(known);
        return;
      }
    }
    if (!stopping.signal.aborted) arm();
  };

  arm();
  return {
    stop: async () => {
      stopping.abort(new XceError('cancelled', 'the launch is over'));
      timer.clear();
      await renewing;
    },
  };
};
