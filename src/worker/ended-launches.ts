/** The launches that were ended by name on this node: nothing of theirs begins afterwards. */
import { XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';

export class EndedLaunches {
  /** In the order of their ends. */
  readonly #keys = new Set<string>();

  add(lease: number, launch: string): void {
    this.#keys.add(`${lease} ${launch}`);
    if (this.#keys.size <= LIMITS.endedLaunchesMax) return;
    for (const oldest of this.#keys) {
      this.#keys.delete(oldest);
      return;
    }
  }

  /** Throws 'cancelled' for one that has ended. */
  requireOpen(lease: number, launch: string | undefined): void {
    if (launch === undefined || !this.#keys.has(`${lease} ${launch}`)) return;
    throw new XceError('cancelled', `launch ${launch} of lease ${lease} was ended here`);
  }
}
