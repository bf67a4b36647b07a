/**
 * Connections whose peer has not proven yet who it is. Anybody who reaches the port can make them, a job on any node
 * too, and each may stay as long as a handshake may take. So they have a bound of their own: over it, the oldest
 * one of the host that has most of them makes room, and who has few is never the one.
 */
export class Handshakes<S> {
  readonly #max: number;
  /** Host, then port: both ends of a handshake know these of their peer, and nothing else in common. */
  readonly #byHost = new Map<string, Map<number, S>>();
  #size = 0;

  constructor(max: number) {
    this.#max = max;
  }

  /** Takes the connection in; returns the one that has to go for it. */
  add(host: string, port: number, connection: S): S | undefined {
    const evicted = this.#size >= this.#max ? this.#evict() : undefined;
    const ports = this.#byHost.get(host) ?? new Map<number, S>();
    this.#byHost.set(host, ports);
    if (!ports.has(port)) this.#size += 1;
    ports.set(port, connection);
    return evicted;
  }

  /** Its handshake is over, or the connection is. Without effect when another one of that port has come since. */
  remove(host: string, port: number, connection?: S): void {
    const ports = this.#byHost.get(host);
    const known = ports?.get(port);
    if (ports === undefined || known === undefined) return;
    if (connection !== undefined && known !== connection) return;
    ports.delete(port);
    this.#size -= 1;
    if (ports.size === 0) this.#byHost.delete(host);
  }

  all(): readonly S[] {
    return [...this.#byHost.values()].flatMap((ports) => [...ports.values()]);
  }

  #evict(): S | undefined {
    let most: readonly [host: string, ports: ReadonlyMap<number, S>] | undefined;
    for (const entry of this.#byHost) if (most === undefined || entry[1].size > most[1].size) most = entry;
    const [oldest] = most?.[1] ?? [];
    if (most === undefined || oldest === undefined) return undefined;
    this.remove(most[0], oldest[0]);
    return oldest[1];
  }
}
