/**
 * The nodes of leases, with what is known of each. Nodes of many leases share the columns of one table: a replay
 * changes one with almost every record, and neither an object of its own for each nor a text for each nonce could keep
 * up with that. Those of one lease are linked, in the order in which they came. Most leases have few: looking through
 * them is faster then than a hash table; many get an index.
 */

import type { NodeName } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
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

/** Nodes that nothing is known of, most of all there are. */
export const UNTOUCHED_NODE: Readonly<Record<LeaseNode['role'], LeaseNode>> = {
  job: { role: 'job', binding: null, nonce: null, certificate: null, reclaim: null },
  helper: { role: 'helper', binding: null, nonce: null, certificate: null, reclaim: null },
};

/** No row. */
const NONE = -1;

/** What a row is marked with: its role, and which of its columns count. */
const HELPER = 1;
const HAS_NONCE = 2;
const HAS_CERTIFICATE = 4;
const HAS_RECLAIM = 8;

/** Of each row: the nonce, then the SHA-256. */
const PROOF_BYTES = LIMITS.nonceBytes + LIMITS.digestBytes;

/** Copies so few bytes faster than a call into the system's library. */
const copyBytes = (to: Uint8Array, at: number, from: Uint8Array, start: number, count: number): void => {
  for (let index = 0; index < count; index += 1) to[at + index] = from[start + index] as number;
};

/** A row stands for one node of one lease until it is given back. */
export class NodeTable {
  readonly names: NodeName[] = [];
  readonly bindings: (Binding | null)[] = [];
  readonly reclaims = new Map<number, Reclaim>();
  marks: Uint8Array;
  proofs: Uint8Array;
  /** The row of the next node of the lease, or the next one to be used again. */
  next: Int32Array;
  #spare = NONE;
  #end = 0;

  constructor(rows: number) {
    this.marks = new Uint8Array(rows);
    this.proofs = new Uint8Array(rows * PROOF_BYTES);
    this.next = new Int32Array(rows);
  }

  /** A row of a node that nothing is known of, and that no other follows. */
  take(name: NodeName, role: LeaseNode['role']): number {
    let row = this.#spare;
    if (row !== NONE) this.#spare = this.next[row] as number;
    else {
      if (this.#end === this.marks.length) this.#widen();
      row = this.#end;
      this.#end += 1;
    }
    this.names[row] = name;
    this.bindings[row] = null;
    this.marks[row] = role === 'helper' ? HELPER : 0;
    this.next[row] = NONE;
    return row;
  }

  /** Gives back the row and those that follow it. */
  giveBack(first: number): void {
    for (let row = first; row !== NONE; ) {
      if (((this.marks[row] as number) & HAS_RECLAIM) !== 0) this.reclaims.delete(row);
      const next = this.next[row] as number;
      this.next[row] = this.#spare;
      this.#spare = row;
      row = next;
    }
  }

  #widen(): void {
    const { marks, proofs, next } = this;
    const rows = Math.max(1, marks.length * 2);
    this.marks = new Uint8Array(rows);
    this.marks.set(marks);
    this.proofs = new Uint8Array(rows * PROOF_BYTES);
    this.proofs.set(proofs);
    this.next = new Int32Array(rows);
    this.next.set(next);
  }
}

/** From here on there is an index. */
const MANY_NODES = 16;

/** The nodes of one lease. What asks for a row takes one that `rowOf` or `add` gave. */
export class LeaseNodes {
  readonly #table: NodeTable;
  #first = NONE;
  #last = NONE;
  #size = 0;
  #rows: Map<NodeName, number> | undefined;

  constructor(table: NodeTable) {
    this.#table = table;
  }

  /** Nodes of a job, each once, that nothing is known of yet. */
  static untouched(names: readonly NodeName[]): LeaseNodes {
    const nodes = new LeaseNodes(new NodeTable(names.length));
    for (const name of names) nodes.add(name, 'job');
    return nodes;
  }

  clone(): LeaseNodes {
    const copy = new LeaseNodes(new NodeTable(this.#size));
    copy.become(this);
    return copy;
  }

  /** Becomes a copy of others. */
  become(others: LeaseNodes): void {
    this.clear();
    const from = others.#table;
    const to = this.#table;
    for (let row = others.#first; row !== NONE; row = from.next[row] as number) {
      const copy = this.add(from.names[row] as NodeName, 'job');
      to.marks[copy] = from.marks[row] as number;
      to.bindings[copy] = from.bindings[row] ?? null;
      copyBytes(to.proofs, copy * PROOF_BYTES, from.proofs, row * PROOF_BYTES, PROOF_BYTES);
      const reclaim = from.reclaims.get(row);
      if (reclaim !== undefined) to.reclaims.set(copy, reclaim);
    }
  }

  clear(): void {
    this.#table.giveBack(this.#first);
    this.#first = NONE;
    this.#last = NONE;
    this.#size = 0;
    this.#rows = undefined;
  }

  get size(): number {
    return this.#size;
  }

  /** undefined for one that is not there. */
  rowOf(name: NodeName): number | undefined {
    const { names, next } = this.#table;
    if (this.#size < MANY_NODES) {
      for (let row = this.#first; row !== NONE; row = next[row] as number)
        if (names[row] === name) return row;
      return undefined;
    }
    if (this.#rows === undefined) {
      this.#rows = new Map();
      for (let row = this.#first; row !== NONE; row = next[row] as number)
        this.#rows.set(names[row] as NodeName, row);
    }
    return this.#rows.get(name);
  }

  has(name: NodeName): boolean {
    return this.rowOf(name) !== undefined;
  }

  /** Adds one that is not there yet. */
  add(name: NodeName, role: LeaseNode['role']): number {
    const table = this.#table;
    const row = table.take(name, role);
    if (this.#last === NONE) this.#first = row;
    else table.next[this.#last] = row;
    this.#last = row;
    this.#size += 1;
    this.#rows?.set(name, row);
    return row;
  }

  #isMarked(row: number, mark: number): boolean {
    return ((this.#table.marks[row] as number) & mark) !== 0;
  }

  #mark(row: number, mark: number, isSo: boolean): void {
    const marks = this.#table.marks[row] as number;
    this.#table.marks[row] = isSo ? marks | mark : marks & ~mark;
  }

  bindingAt(row: number): Binding | null {
    return this.#table.bindings[row] ?? null;
  }
  hasNonceAt(row: number): boolean {
    return this.#isMarked(row, HAS_NONCE);
  }
  isCertifiedAt(row: number): boolean {
    return this.#isMarked(row, HAS_CERTIFICATE);
  }
  isReclaimedAt(row: number): boolean {
    return this.#isMarked(row, HAS_RECLAIM);
  }

  bindAt(row: number, binding: Binding | null): void {
    this.#table.bindings[row] = binding;
  }

  /** The nonce is that in bytes from `start` on. */
  askAt(row: number, bytes: Uint8Array, start: number): void {
    copyBytes(this.#table.proofs, row * PROOF_BYTES, bytes, start, LIMITS.nonceBytes);
    this.#mark(row, HAS_NONCE, true);
  }

  /** The SHA-256 of its certificate is that in bytes from `start` on. */
  certifyAt(row: number, bytes: Uint8Array, start: number): void {
    const at = row * PROOF_BYTES + LIMITS.nonceBytes;
    copyBytes(this.#table.proofs, at, bytes, start, LIMITS.digestBytes);
    this.#mark(row, HAS_CERTIFICATE, true);
  }

  reclaimAt(row: number, reclaim: Reclaim | null): void {
    if (reclaim === null) this.#table.reclaims.delete(row);
    else this.#table.reclaims.set(row, reclaim);
    this.#mark(row, HAS_RECLAIM, reclaim !== null);
  }

  get(name: NodeName): LeaseNode | undefined {
    const row = this.rowOf(name);
    return row === undefined ? undefined : this.#read(row);
  }

  #read(row: number): LeaseNode {
    const { marks, bindings, proofs, reclaims } = this.#table;
    const role = this.#isMarked(row, HELPER) ? 'helper' : 'job';
    const binding = bindings[row] ?? null;
    if (((marks[row] as number) & ~HELPER) === 0 && binding === null) return UNTOUCHED_NODE[role];
    const at = row * PROOF_BYTES;
    const hexOf = (from: number, count: number): string =>
      Buffer.from(proofs.buffer, proofs.byteOffset + from, count).toString('hex');
    return {
      role,
      binding,
      nonce: this.hasNonceAt(row) ? hexOf(at, LIMITS.nonceBytes) : null,
      certificate: this.isCertifiedAt(row) ? hexOf(at + LIMITS.nonceBytes, LIMITS.digestBytes) : null,
      reclaim: reclaims.get(row) ?? null,
    };
  }

  /** Adds the node, or replaces what is known of it. */
  set(name: NodeName, { role, binding, nonce, certificate, reclaim }: LeaseNode): void {
    const row = this.rowOf(name) ?? this.add(name, role);
    this.#mark(row, HELPER, role === 'helper');
    this.bindAt(row, binding);
    if (nonce === null) this.#mark(row, HAS_NONCE, false);
    else this.askAt(row, Buffer.from(nonce, 'hex'), 0);
    if (certificate === null) this.#mark(row, HAS_CERTIFICATE, false);
    else this.certifyAt(row, Buffer.from(certificate, 'hex'), 0);
    this.reclaimAt(row, reclaim);
  }

  get names(): readonly NodeName[] {
    const { names, next } = this.#table;
    const own: NodeName[] = [];
    for (let row = this.#first; row !== NONE; row = next[row] as number) own.push(names[row] as NodeName);
    return own;
  }

  /** The first node without a certificate. */
  get firstUncertified(): NodeName | undefined {
    return this.#firstWithout(HAS_CERTIFICATE);
  }
  /** The first node that has neither certified nor been reclaimed. */
  get firstUnaccounted(): NodeName | undefined {
    return this.#firstWithout(HAS_CERTIFICATE | HAS_RECLAIM);
  }

  #firstWithout(marks: number): NodeName | undefined {
    const { names, next } = this.#table;
    for (let row = this.#first; row !== NONE; row = next[row] as number)
      if (!this.#isMarked(row, marks)) return names[row];
    return undefined;
  }

  *[Symbol.iterator](): Generator<readonly [NodeName, LeaseNode]> {
    const { names, next } = this.#table;
    for (let row = this.#first; row !== NONE; row = next[row] as number)
      yield [names[row] as NodeName, this.#read(row)];
  }
}
