/**
 * A ticket lets one worker act for one lease for a short time, without asking anybody. It answers a nonce of that
 * worker's present boot, so it can neither be made in advance nor outlive the boot, and its time is counted by
 * the worker's own monotonic clock from the moment of that nonce: the hosts' wall clocks carry no safety. A clock
 * that is far off is refused with its own reason all the same: certificates and the log of other hosts are judged by it.
 * Possession authorises nobody; the receiver checks the peer as well.
 */
import type { KeyObject } from 'node:crypto';
import * as v from 'valibot';
import type { Epoch, InstanceName, NodeName } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import { accept, refuse, type Verdict } from './refusal.ts';
import type { SeenUid } from './seen.ts';
import { CLAIM, createSealer, openText, type SignedForm } from './signed-text.ts';
import type { LeaseView } from './view.ts';

const TicketClaims = v.strictObject({
  cluster: CLAIM.cluster,
  instance: CLAIM.instance,
  job: CLAIM.job,
  attempt: CLAIM.attempt,
  lease: CLAIM.lease,
  epoch: CLAIM.epoch,
  uid: CLAIM.uid,
  submitterUid: CLAIM.id,
  submitterGid: CLAIM.id,
  node: CLAIM.node,
  nodes: v.pipe(v.array(CLAIM.node), v.minLength(1), v.maxLength(LIMITS.leaseNodesMax)),
  nonce: CLAIM.nonce,
  ttlMs: CLAIM.ttlMs,
  issuedWallMs: CLAIM.wallMs,
  roots: v.pipe(v.array(v.strictObject({ path: CLAIM.path })), v.maxLength(LIMITS.leaseRootsMax)),
  workspace: v.nullable(
    v.strictObject({
      storage: v.pipe(v.string(), v.minLength(1), v.maxLength(LIMITS.storageNameBytesMax)),
      path: CLAIM.path,
    }),
  ),
});
export type TicketClaims = v.InferOutput<typeof TicketClaims>;

/** What differs between the tickets of one lease that rest on one commit, and what does not. */
const OwnClaims = v.object({ node: CLAIM.node, nonce: CLAIM.nonce });
const SharedClaims = v.omit(v.object(TicketClaims.entries), ['node', 'nonce']);
export type OwnClaims = v.InferOutput<typeof OwnClaims>;
export type SharedClaims = v.InferOutput<typeof SharedClaims>;

const TICKET: SignedForm<TicketClaims> = {
  name: 'ticket',
  prefix: 'xce1.',
  domain: 'xce-sandbox ticket 1\0',
  charsMax: LIMITS.ticketCharsMax,
  schema: TicketClaims,
  malformed: 'ticket-malformed',
  badSignature: 'ticket-signature',
};

/** Without hosts that joined to help. */
export const jobNodesOf = ({ nodes }: Pick<LeaseView, 'nodes'>): NodeName[] =>
  nodes.filter(({ role }) => role === 'job').map(({ node }) => node);

/**
 * What all tickets of a lease claim: the lease as an acknowledged commit of the present epoch saw it. To each belongs the
 * nonce that its node gave before that commit. They last as long as the lease does.
 */
export const claimsOfLease = (
  lease: LeaseView,
  facts: {
    readonly cluster: string;
    readonly instance: InstanceName;
    readonly epoch: Epoch;
    readonly issuedWallMs: number;
  },
): SharedClaims => ({
  cluster: facts.cluster,
  instance: facts.instance,
  job: lease.job,
  attempt: lease.attempt,
  lease: lease.lease,
  epoch: facts.epoch,
  uid: lease.uid,
  submitterUid: lease.submitter.uid,
  submitterGid: lease.submitter.gid,
  nodes: jobNodesOf(lease),
  ttlMs: lease.remainingMs,
  issuedWallMs: facts.issuedWallMs,
  roots: lease.roots.map(({ path }) => ({ path })),
  workspace: lease.workspace,
});

/** What the nodes and paths of a lease take in each ticket; see LIMITS.leaseTicketBytesMax. */
export const ticketBytesOf = ({
  nodes,
  roots,
  workspace,
}: {
  readonly nodes: readonly NodeName[];
  readonly roots: readonly { readonly path: string }[];
  readonly workspace: { readonly path: string } | null;
}): number =>
  [nodes, roots.map(({ path }) => ({ path })), workspace?.path ?? null]
    .map((part) => Buffer.byteLength(JSON.stringify(part)))
    .reduce((sum, bytes) => sum + bytes);

/** Gives one node its ticket; the same text whenever it is asked for the same. Throws 'too-large'. */
export type TicketSigner = (own: OwnClaims) => string;

/** Signs tickets that have all other claims in common. */
export const createTicketSigner = (claims: SharedClaims, key: KeyObject): TicketSigner =>
  createSealer(TICKET, SharedClaims, OwnClaims, claims, key);

/** Refused with 'ticket-malformed' or 'ticket-signature'. What is accepted is authentic, no more: see checkTicket. */
export const openTicket = (text: string, key: KeyObject): Verdict<TicketClaims> =>
  openText(TICKET, text, key);

/** What the worker knows when a ticket arrives. */
export type TicketContext = {
  readonly cluster: string;
  readonly instance: InstanceName;
  readonly node: NodeName;
  /** The worker's memory of the ticket's uid. */
  readonly seen: SeenUid | undefined;
  /** When this worker issued the ticket's nonce in this boot, monotonic milliseconds; undefined: it did not. */
  readonly nonceIssuedMs: number | undefined;
  readonly nowMonotonicMs: number;
};

/** Whether an authentic ticket holds here and now, and for how long. The durable reasons are named first. */
export const checkTicket = (
  claims: TicketClaims,
  context: TicketContext,
): Verdict<{ readonly remainingMs: number }> => {
  const { cluster, instance, node, seen, nonceIssuedMs } = context;
  if (claims.cluster !== cluster || claims.instance !== instance)
    return refuse(
      'ticket-cluster',
      `the ticket is for instance ${claims.instance} of ${claims.cluster}, this is ${instance} of ${cluster}`,
    );
  if (claims.node !== node || !claims.nodes.includes(node))
    return refuse('ticket-node', `the ticket is for ${claims.node}, this is ${node}`);
  if (seen !== undefined) {
    if (claims.lease === seen.drained)
      return refuse('ticket-tombstone', `lease ${claims.lease} has been drained on ${node}`);
    if (claims.epoch < seen.epoch)
      return refuse('ticket-epoch', `the ticket is of epoch ${claims.epoch}, ${node} has seen ${seen.epoch}`);
    if (claims.lease < seen.lease)
      return refuse(
        'ticket-lease',
        `the ticket is of lease ${claims.lease}, ${node} has seen lease ${seen.lease} of uid ${claims.uid}`,
      );
  }
  if (nonceIssuedMs === undefined)
    return refuse('ticket-nonce', `the ticket answers no nonce that the worker of ${node} gave in this boot`);
  const remainingMs = claims.ttlMs - (context.nowMonotonicMs - nonceIssuedMs);
  if (remainingMs <= 0) return refuse('ticket-expired', `the ticket expired ${-remainingMs} ms ago`);
  return accept({ remainingMs });
};

/**
 * Refused with 'clock-skew' when the two hosts' clocks are too far apart. The ticket was signed after its nonce was
 * given and before now, whenever it is presented, so the signer's clock shows its error against that span alone.
 */
export const checkTicketClock = (
  { issuedWallMs }: Pick<TicketClaims, 'issuedWallMs'>,
  now: { readonly wallMs: number; readonly sinceNonceMs: number },
): Verdict<{ readonly skewMs: number }> => {
  const early = now.wallMs - now.sinceNonceMs - issuedWallMs;
  const late = issuedWallMs - now.wallMs;
  const skewMs = Math.max(0, early, late);
  if (skewMs <= LIMITS.clockSkewMsMax) return accept({ skewMs });
  const seconds = Math.round(skewMs / 1000);
  const side = late > 0 ? 'ahead of' : 'behind';
  return refuse(
    'clock-skew',
    `clock skew ${seconds} s: the clock of the controller is ${side} that of this node; ` +
      `${LIMITS.clockSkewMsMax / 1000} s are allowed`,
    { detail: { skewMs: late > 0 ? skewMs : -skewMs, skewBoundMs: LIMITS.clockSkewMsMax } },
  );
};
