/**
 * Whether a ticket lets anything happen here and now: its signature, whom it is for, what this node remembers of
 * its uid, and the nonce that it answers. Looking and remembering are one synchronous step.
 */
import { assert, XceError } from '../base/errors.ts';
import { unwrap } from '../lease/refusal.ts';
import { checkTicket, checkTicketClock, type TicketClaims } from '../lease/ticket.ts';
import type { Memory } from './memory.ts';
import type { Nonces } from './nonces.ts';
import type { SupervisorPorts } from './ports.ts';
import type { Grant, SandboxRecord } from './record.ts';

/** An authentic ticket; whether it holds is for accept() and check(). */
export type OpenedTicket = { readonly ticket: string; readonly claims: TicketClaims };

export class Admission {
  readonly #ports: Pick<SupervisorPorts, 'cluster' | 'instance' | 'node' | 'bootId' | 'clock' | 'openTicket'>;
  readonly #memory: Memory;
  readonly #nonces: Nonces;

  constructor(ports: SupervisorPorts, memory: Memory, nonces: Nonces) {
    this.#ports = ports;
    this.#memory = memory;
    this.#nonces = nonces;
  }

  /** Throws 'ticket-missing', 'ticket-malformed' or 'ticket-signature'. */
  open(ticket: string): OpenedTicket {
    if (ticket === '') throw new XceError('ticket-missing', 'the request carries no ticket');
    return { ticket, claims: unwrap(this.#ports.openTicket(ticket)) };
  }

  /** Checks a ticket for prepare or renew, and remembers it durably. Its nonce stays open until close(). */
  accept(record: SandboxRecord | undefined, claims: TicketClaims): Grant {
    const { nonce } = claims;
    const issuedMs = this.#issuedMs(record, nonce) ?? this.#nonces.issuedMs(nonce);
    this.recheck(claims, issuedMs);
    assert(issuedMs !== undefined, 'a ticket without nonce is refused');
    const { clock } = this.#ports;
    const sinceNonceMs = clock.monotonicMs() - issuedMs;
    // What runs goes on: a clock that was set since says nothing of the ticket, whose time does not depend on it.
    if (record === undefined) unwrap(checkTicketClock(claims, { wallMs: clock.wallMs(), sinceNonceMs }));
    this.#memory.remember(claims);
    return { nonce, issuedMs, deadlineMs: issuedMs + claims.ttlMs };
  }

  /** Throws unless a ticket that prepare or renew of this sandbox accepted is still good. */
  check(record: SandboxRecord | undefined, claims: TicketClaims): void {
    // Where there is no sandbox it is the sandbox that is missing, not a nonce.
    const nowMs = this.#ports.clock.monotonicMs();
    this.recheck(claims, record === undefined ? nowMs : this.#issuedMs(record, claims.nonce));
  }

  /** Throws unless the ticket holds now, its nonce having been given out at `issuedMs`. */
  recheck(claims: TicketClaims, issuedMs: number | undefined): void {
    const { cluster, instance, node, clock } = this.#ports;
    const seen = this.#memory.seen(claims.uid);
    const nowMonotonicMs = clock.monotonicMs();
    unwrap(checkTicket(claims, { cluster, instance, node, seen, nonceIssuedMs: issuedMs, nowMonotonicMs }));
  }

  /** The ticket that answers it was taken into a record: nothing else may answer it. */
  close(nonce: string): void {
    this.#nonces.close(nonce);
  }

  /** Makes durable that the lease ended here. Throws 'ticket-epoch', 'ticket-lease' or 'io'. */
  bury(drain: { readonly uid: TicketClaims['uid']; readonly epoch: number; readonly lease: number }): void {
    this.#memory.bury(drain);
  }

  requireNotDrained({ uid, lease }: TicketClaims): void {
    if (this.#memory.seen(uid)?.drained === lease) {
      throw new XceError('ticket-tombstone', `lease ${lease} has been drained on this node`);
    }
  }

  /** When the nonce of an accepted ticket was given out, if that was in this boot. */
  #issuedMs(record: SandboxRecord | undefined, nonce: string): number | undefined {
    if (record?.bootId !== this.#ports.bootId) return undefined;
    return record.grants.find((grant) => grant.nonce === nonce)?.issuedMs;
  }
}
