/**
 * Which uids have been used, and which of them came back. Both answer in time that does not grow with the
 * number of leases: a grant must not get slower as the pool fills.
 */
import { assert } from '../base/errors.ts';
import type { IdRange } from '../base/id-range.ts';
import { IdMap } from './id-map.ts';

/** A set of ids as sorted ranges that neither touch nor overlap. */
export class IdRanges {
  readonly #firsts: number[] = [];
  readonly #lasts: number[] = [];

  /** Index of the last range that begins at or before the id; -1 when there is none. */
  #find(id: number): number {
    let low = 0;
    let high = this.#firsts.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((this.#firsts[middle] ?? 0) <= id) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  has(id: number): boolean {
    const last = this.#lasts[this.#find(id)];
    return last !== undefined && id <= last;
  }

  /** Adds ids that are all absent; returns false, and adds none, when one is there or the range is empty. */
  addRange(range: IdRange): boolean {
    const before = this.#find(range.first);
    const previousLast = this.#lasts[before];
    const nextFirst = this.#firsts[before + 1];
    if (range.first > range.last) return false;
    if (previousLast !== undefined && previousLast >= range.first) return false;
    if (nextFirst !== undefined && nextFirst <= range.last) return false;
    const joinsPrevious = previousLast === range.first - 1;
    const joinsNext = nextFirst === range.last + 1;
    if (joinsPrevious && joinsNext) {
      this.#lasts[before] = this.#lasts[before + 1] ?? range.last;
      this.#firsts.splice(before + 1, 1);
      this.#lasts.splice(before + 1, 1);
    } else if (joinsPrevious) this.#lasts[before] = range.last;
    else if (joinsNext) this.#firsts[before + 1] = range.first;
    else {
      this.#firsts.splice(before + 1, 0, range.first);
      this.#lasts.splice(before + 1, 0, range.last);
    }
    return true;
  }

  /** Adds an id; no effect when it is there already. */
  add(id: number): void {
    if (!this.has(id)) this.addRange({ first: id, last: id });
  }

  /** Ids of `range` that are not in the set, ascending. */
  *absent(range: IdRange): Generator<number> {
    let id = range.first;
    for (let index = this.#find(range.first); id <= range.last; index += 1) {
      const last = this.#lasts[index];
      if (last !== undefined && last >= id) id = last + 1;
      const end = Math.min(range.last, (this.#firsts[index + 1] ?? Number.POSITIVE_INFINITY) - 1);
      for (; id <= end; id += 1) yield id;
    }
  }

  *[Symbol.iterator](): Generator<IdRange> {
    for (const [index, first] of this.#firsts.entries()) yield { first, last: this.#lasts[index] ?? first };
  }
}

/** A queue that also gives up members from its middle. Iteration is from the oldest; add and remove are O(1). */
export class IdQueue {
  /** 0 marks a member that left. */
  #order: number[] = [];
  #head = 0;
  /** Place of each member, counted from the first member ever. */
  readonly #places = new IdMap<number>();
  #dropped = 0;

  get size(): number {
    return this.#places.size;
  }

  has(id: number): boolean {
    return this.#places.has(id);
  }

  push(id: number): void {
    assert(id > 0 && !this.#places.has(id), 'an id is queued once');
    this.#places.set(id, this.#dropped + this.#order.length);
    this.#order.push(id);
  }

  /** Returns false when it is not there. */
  remove(id: number): boolean {
    const place = this.#places.get(id);
    if (place === undefined) return false;
    this.#places.delete(id);
    this.#order[place - this.#dropped] = 0;
    while (this.#head < this.#order.length && this.#order[this.#head] === 0) this.#head += 1;
    if (this.#head > 64 && this.#head * 2 > this.#order.length) {
      this.#order = this.#order.slice(this.#head);
      this.#dropped += this.#head;
      this.#head = 0;
    }
    return true;
  }

  *[Symbol.iterator](): Generator<number> {
    for (let index = this.#head; index < this.#order.length; index += 1) {
      const id = this.#order[index] ?? 0;
      if (id !== 0) yield id;
    }
  }
}
