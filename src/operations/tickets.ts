import { assert, XceError } from '../base/errors.ts';
import type { Epoch, NodeName } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import { commandFor } from '../lease/reference.ts';
import { claimsOfLease, jobNodesOf, ticketBytesOf } from '../lease/ticket.ts';
import type { LeaseView } from '../lease/view.ts';
import { challengeNodes } from './challenge.ts';
import type { Context } from './context.ts';
import { tellNotices } from './notices.ts';

export type Tickets = {
  /** The lease as the commit saw it that the tickets rest on. */
  readonly lease: LeaseView;
  /**
   * The ticket of a node that they were made for. Written whenever it is asked for, always as the same text: each names
   * all nodes of the lease, and thousands of them are not kept.
   */
  readonly ticketOf: (node: NodeName) => string;
  /** When the first of them may end, on this host's monotonic clock in milliseconds; no later than on any node. */
  readonly endMs: number;
};

/** Earlier versions granted leases that no ticket holds. */
const requireTicketFits = (lease: LeaseView): void => {
  const bytes = ticketBytesOf({ ...lease, nodes: jobNodesOf(lease) });
  if (bytes <= LIMITS.leaseTicketBytesMax) return;
  throw new XceError(
    'too-large',
    `nodes and writable paths of lease ${lease.lease} take ${bytes} bytes in a ticket, over ${LIMITS.leaseTicketBytesMax}: their names are too long together`,
    {
      unchanged: 'nothing was started on any node',
      next: `${commandFor('lease release', lease)}; then lease fewer nodes, or nodes with shorter names`,
    },
  );
};

/**
 * New tickets for the nodes: their nonces come first, then the commit that records the nodes and is acknowledged
 * in our own epoch, and only then the signatures. Throws what `join` makes of nodes that do not answer, and what
 * LeaseStore.bind throws, and 'too-large' before any of it for a lease that no ticket holds. `signal` gives the questions to the nodes up.
 */
export const makeTickets = async (
  context: Context,
  known: LeaseView,
  nodes: readonly NodeName[],
  join: (failed: readonly XceError[], what: string) => XceError | undefined,
  signal?: AbortSignal,
): Promise<Tickets> => {
  requireTicketFits(known);
  const { settings, leases, clock } = context;
  // A node counts its ticket's time from its nonce, which is still to come.
  const startMs = clock.monotonicMs();
  const { bindings, nonces, failed } = await challengeNodes(context, nodes, 'ticket', signal);
  const refusal = join(failed, 'not every node answers');
  if (refusal !== undefined) throw refusal;
  const { result: lease, position, notices } = await leases.bind({ lease: known.lease }, bindings);
  tellNotices(context, notices);
  const nonceOf = (node: NodeName): string => {
    const nonce = nonces.get(node);
    assert(nonce !== undefined, 'each node of a launch has its ticket');
    return nonce;
  };
  const sign = context.ticketSigner(
    claimsOfLease(lease, {
      cluster: settings.cluster.name,
      instance: settings.cluster.instance,
      epoch: position.epoch as Epoch,
      issuedWallMs: clock.wallMs(),
    }),
  );
  return {
    lease,
    ticketOf: (node) => sign({ node, nonce: nonceOf(node) }),
    endMs: startMs + lease.remainingMs,
  };
};
