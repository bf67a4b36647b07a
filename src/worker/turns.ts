/**
 * Who may act on one lease now. Starting a step shares the turn with other starts; prepare, renew, stop and
 * drain have it alone. First come, first served: a start that asks after a drain waits for the drain and then
 * finds the lease ended; a drain that asks while starts are in flight waits them out.
 */
import { assert, XceError } from '../base/errors.ts';

/** Requests that wait for one lease at the same time; more is a caller that repeats itself without reading. */
const WAITING_MAX = 512;

type Waiter = { readonly alone: boolean; readonly begin: () => void };
type Queue = { holders: number; alone: boolean; readonly waiting: Waiter[] };

export class Turns {
  readonly #queues = new Map<number, Queue>();

  /** Runs `act` while nothing else acts on the lease. */
  alone<T>(lease: number, act: () => Promise<T>): Promise<T> {
    return this.#take(lease, true, act);
  }

  /** Runs `act` while only others that share act on the lease. */
  shared<T>(lease: number, act: () => Promise<T>): Promise<T> {
    return this.#take(lease, false, act);
  }

  async #take<T>(lease: number, alone: boolean, act: () => Promise<T>): Promise<T> {
    await this.#enter(lease, alone);
    try {
      return await act();
    } finally {
      this.#leave(lease);
    }
  }

  #enter(lease: number, alone: boolean): Promise<void> | undefined {
    const queue = this.#queues.get(lease);
    if (queue === undefined) {
      this.#queues.set(lease, { holders: 1, alone, waiting: [] });
      return undefined;
    }
    if (!alone && !queue.alone && queue.waiting.length === 0) {
      queue.holders += 1;
      return undefined;
    }
    if (queue.waiting.length >= WAITING_MAX) {
      throw new XceError('worker-busy', `${WAITING_MAX} requests wait for lease ${lease} already`);
    }
    return new Promise((begin) => {
      queue.waiting.push({ alone, begin });
    });
  }

  #leave(lease: number): void {
    const queue = this.#queues.get(lease);
    assert(queue !== undefined, 'a turn ends once');
    queue.holders -= 1;
    if (queue.holders > 0) return;
    const first = queue.waiting.shift();
    if (first === undefined) {
      this.#queues.delete(lease);
      return;
    }
    queue.alone = first.alone;
    queue.holders = 1;
    first.begin();
    while (!queue.alone && queue.waiting[0]?.alone === false) {
      queue.holders += 1;
      queue.waiting.shift()?.begin();
    }
  }
}
