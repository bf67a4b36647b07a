/**
 * The nonces that this process has given out and that no ticket has answered yet. They live in memory only: a
 * ticket for a nonce of an earlier process, or of an earlier boot, fits nothing. A ticket's time to live counts
 * from the moment the nonce was issued, on this host's clock, so no two clocks have to agree.
 */
import { randomBytes } from 'node:crypto';
import type { Clock } from '../os/clock.ts';

/** A controller answers within one command; a nonce that nobody answered for so long is void. */
export const NONCE_AGE_MS_MAX = 10 * 60 * 1000;
/** Nonces open at the same time; the oldest makes room, and its ticket is refused. */
export const NONCES_MAX = 16_384;

export class Nonces {
  readonly #clock: Pick<Clock, 'monotonicMs'>;
  /** By nonce; a Map keeps the order of issue, so the oldest stand first. */
  readonly #issuedMs = new Map<string, number>();

  constructor(clock: Pick<Clock, 'monotonicMs'>) {
    this.#clock = clock;
  }

  /** A fresh nonce, 16 random bytes in hex. */
  issue(): string {
    const nowMs = this.#clock.monotonicMs();
    for (const [nonce, issuedMs] of this.#issuedMs) {
      if (nowMs - issuedMs < NONCE_AGE_MS_MAX && this.#issuedMs.size < NONCES_MAX) break;
      this.#issuedMs.delete(nonce);
    }
    const nonce = randomBytes(16).toString('hex');
    this.#issuedMs.set(nonce, nowMs);
    return nonce;
  }

  /** When an open nonce was issued (monotonic milliseconds); undefined for any other. */
  issuedMs(nonce: string): number | undefined {
    const issuedMs = this.#issuedMs.get(nonce);
    if (issuedMs === undefined || this.#clock.monotonicMs() - issuedMs >= NONCE_AGE_MS_MAX) return undefined;
    return issuedMs;
  }

  /** Closes a nonce: it has been answered. */
  close(nonce: string): void {
    this.#issuedMs.delete(nonce);
  }

  get size(): number {
    return this.#issuedMs.size;
  }
}
