/**
 * A map from ids to whole numbers. A replay asks it with every record, and ids come in sequence: eight that follow on
 * each other lie side by side, where a Map of the language goes to another place in memory for each.
 */
import { assert } from '../base/errors.ts';

const PLACES_LOG2_MIN = 4;
/** Ids of one group differ in this many of their lowest bits. */
const GROUP_LOG2 = 3;
/** No id is 0. */
const EMPTY = 0;

/** Open addressing, at most half full; what is deleted leaves no gap behind it. */
export class IdMap<Id extends number> {
  #placesLog2 = PLACES_LOG2_MIN;
  #ids = new Float64Array(1 << PLACES_LOG2_MIN);
  #values = new Float64Array(1 << PLACES_LOG2_MIN);
  #size = 0;

  get size(): number {
    return this.#size;
  }

  /** Where the id stands when nothing is in its way. */
  #homeOf(id: number): number {
    const group = Math.imul(id >>> GROUP_LOG2, 0x9e3779b1) >>> (32 - this.#placesLog2 + GROUP_LOG2);
    return (group << GROUP_LOG2) | (id & ((1 << GROUP_LOG2) - 1));
  }

  /** Where the id stands, or the empty place where it would. */
  #placeOf(id: number): number {
    const ids = this.#ids;
    const last = ids.length - 1;
    let place = this.#homeOf(id);
    while (ids[place] !== id && ids[place] !== EMPTY) place = (place + 1) & last;
    return place;
  }

  has(id: Id): boolean {
    return this.get(id) !== undefined;
  }

  get(id: Id): number | undefined {
    const place = this.#placeOf(id);
    return this.#ids[place] === EMPTY ? undefined : this.#values[place];
  }

  set(id: Id, value: number): void {
    assert(id > 0, 'an id is above 0');
    let place = this.#placeOf(id);
    if (this.#ids[place] === EMPTY) {
      if (this.#size * 2 === this.#ids.length) {
        this.#widen();
        place = this.#placeOf(id);
      }
      this.#size += 1;
      this.#ids[place] = id;
    }
    this.#values[place] = value;
  }

  #widen(): void {
    const ids = this.#ids;
    const values = this.#values;
    this.#placesLog2 += 1;
    this.#ids = new Float64Array(ids.length * 2);
    this.#values = new Float64Array(ids.length * 2);
    for (let from = 0; from < ids.length; from += 1) {
      const id = ids[from] as number;
      if (id === EMPTY) continue;
      const place = this.#placeOf(id);
      this.#ids[place] = id;
      this.#values[place] = values[from] as number;
    }
  }

  /** Returns false when it is not there. */
  delete(id: Id): boolean {
    const ids = this.#ids;
    const values = this.#values;
    const last = ids.length - 1;
    let gap = this.#placeOf(id);
    if (ids[gap] === EMPTY) return false;
    this.#size -= 1;
    // Whatever would not be found any more, because the way from its home leads over the gap, moves there.
    for (let from = (gap + 1) & last; ids[from] !== EMPTY; from = (from + 1) & last) {
      const home = this.#homeOf(ids[from] as number);
      if (((from - home) & last) < ((from - gap) & last)) continue;
      ids[gap] = ids[from] as number;
      values[gap] = values[from] as number;
      gap = from;
    }
    ids[gap] = EMPTY;
    return true;
  }

  /** Ascending by id. */
  entries(): readonly (readonly [Id, number])[] {
    const entries: [Id, number][] = [];
    for (let place = 0; place < this.#ids.length; place += 1) {
      const id = this.#ids[place] as number;
      if (id !== EMPTY) entries.push([id as Id, this.#values[place] as number]);
    }
    return entries.sort(([one], [other]) => one - other);
  }
}
