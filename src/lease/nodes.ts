/**
 * The nodes of one lease, with what is known of each, in the order in which they came. Most leases have few: looking
 * through a list is faster then than a hash table, and 100,000 leases have no table each. A long list gets an index.
 */
import type { NodeName } from '../base/ids.ts';
import type { Binding, Reclaim } from './event.ts';

/** What the lease knows of one node. */
export type LeaseNode = {
  /** 'helper': a host that joined to walk, fetch or stage, not a node of the job. */
  readonly role: 'job' | 'helper';
  readonly binding: Binding | null;
  /** Nonce of the newest drain request, hex. */
  readonly nonce: string | null;
  /** SHA-256 of the certificate of cleanliness, hex; null: not certified. */
  readonly certificate: string | null;
  /** The operator's word that it is fenced off, until it certifies. */
  readonly reclaim: Reclaim | null;
};

/** Nodes that nothing is known of, most of all there are: shared, since a node's facts are replaced, not changed. */
export const UNTOUCHED_NODE: Readonly<Record<LeaseNode['role'], LeaseNode>> = {
  job: { role: 'job', binding: null, nonce: null, certificate: null, reclaim: null },
  helper: { role: 'helper', binding: null, nonce: null, certificate: null, reclaim: null },
};

/** From here on there is an index. */
const MANY_NODES = 16;

export class LeaseNodes {
  readonly #names: NodeName[];
  readonly #facts: LeaseNode[];
  #places: Map<NodeName, number> | undefined;

  private constructor(names: NodeName[], facts: LeaseNode[]) {
    this.#names = names;
    this.#facts = facts;
  }

  /** Nodes of a job, each once, that nothing is known of yet. */
  static untouched(names: readonly NodeName[]): LeaseNodes {
    return new LeaseNodes(names.slice(), new Array<LeaseNode>(names.length).fill(UNTOUCHED_NODE.job));
  }

  clone(): LeaseNodes {
    return new LeaseNodes(this.#names.slice(), this.#facts.slice());
  }

  /** Becomes a copy of others, in the memory that it has. */
  become(others: LeaseNodes): void {
    const { size } = others;
    for (let place = 0; place < size; place += 1) {
      this.#names[place] = others.#names[place] as NodeName;
      this.#facts[place] = others.#facts[place] as LeaseNode;
    }
    this.#names.length = size;
    this.#facts.length = size;
    this.#places = undefined;
  }

  get size(): number {
    return this.#names.length;
  }

  /** -1 for one that is not there. */
  #placeOf(name: NodeName): number {
    if (this.#names.length < MANY_NODES) return this.#names.indexOf(name);
    this.#places ??= new Map(this.#names.map((known, place) => [known, place]));
    return this.#places.get(name) ?? -1;
  }

  has(name: NodeName): boolean {
    return this.#placeOf(name) !== -1;
  }

  get(name: NodeName): LeaseNode | undefined {
    return this.#facts[this.#placeOf(name)];
  }

  set(name: NodeName, facts: LeaseNode): void {
    const place = this.#placeOf(name);
    if (place !== -1) {
      this.#facts[place] = facts;
      return;
    }
    this.#places?.set(name, this.#names.length);
    this.#names.push(name);
    this.#facts.push(facts);
  }

  get names(): readonly NodeName[] {
    return this.#names;
  }

  /** The first node that is so. */
  find(isSo: (node: LeaseNode) => boolean): NodeName | undefined {
    return this.#names[this.#facts.findIndex(isSo)];
  }

  *[Symbol.iterator](): Generator<readonly [NodeName, LeaseNode]> {
    for (const [place, name] of this.#names.entries()) {
      const facts = this.#facts[place];
      if (facts !== undefined) yield [name, facts];
    }
  }
}
