/**
 * Nodes that no job may use: each was reclaimed from some lease and has not certified for that lease since.
 *
 *     reclaim (lease, node): the node is withheld for the lease
 *     certify (lease, node): no more
 */
import type { LeaseNumber, NodeName } from '../base/ids.ts';

export class WithheldNodes {
  readonly #leases = new Map<NodeName, Set<LeaseNumber>>();

  /** How many nodes are withheld. */
  get size(): number {
    return this.#leases.size;
  }

  withhold(node: NodeName, lease: LeaseNumber): void {
    const leases = this.#leases.get(node);
    if (leases === undefined) this.#leases.set(node, new Set([lease]));
    else leases.add(lease);
  }

  /** Without effect when the lease does not withhold the node. */
  giveBack(node: NodeName, lease: LeaseNumber): void {
    const leases = this.#leases.get(node);
    if (leases?.delete(lease) === true && leases.size === 0) this.#leases.delete(node);
  }

  /** A lease that waits for the node to certify after its return. */
  holderOf(node: NodeName): LeaseNumber | undefined {
    const [lease] = this.#leases.get(node) ?? [];
    return lease;
  }

  /** Every lease that waits for some node. */
  holders(): ReadonlySet<LeaseNumber> {
    return new Set([...this.#leases.values()].flatMap((leases) => [...leases]));
  }
}
