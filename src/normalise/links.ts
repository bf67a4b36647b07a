/**
 * Counts the names of inodes with more than one, to find those with names outside the tree. A flat table:
 * 12 bytes a slot, so that a tree of a million hard links costs tens of megabytes and not hundreds.
 */
import { assert } from '../base/errors.ts';

const SLOTS_MIN = 1 << 10;
/** About 3 million inodes, 50 MB. More are not tracked, and the report says so. */
const SLOTS_MAX = 1 << 22;

export class LinkTable {
  #inodes: BigUint64Array;
  /** Names not met yet, plus one; zero marks a free slot. */
  #missing: Uint32Array;
  #used = 0;
  #untracked = 0;

  constructor() {
    this.#inodes = new BigUint64Array(SLOTS_MIN);
    this.#missing = new Uint32Array(SLOTS_MIN);
  }

  #find(inode: bigint): number {
    const mask = this.#missing.length - 1;
    // Fibonacci hashing: inode numbers are dense in some of their bits, and which is the file system's choice.
    let slot = Number(BigInt.asUintN(64, inode * 0x9e37_79b9_7f4a_7c15n) >> 32n) & mask;
    while (this.#missing[slot] !== 0 && this.#inodes[slot] !== inode) slot = (slot + 1) & mask;
    return slot;
  }

  #grow(): void {
    const inodes = this.#inodes;
    const missing = this.#missing;
    this.#inodes = new BigUint64Array(inodes.length * 2);
    this.#missing = new Uint32Array(inodes.length * 2);
    for (let slot = 0; slot < missing.length; slot += 1) {
      const inode = inodes[slot];
      if (missing[slot] === 0 || inode === undefined) continue;
      const to = this.#find(inode);
      this.#inodes[to] = inode;
      this.#missing[to] = missing[slot] ?? 0;
    }
  }

  /** Whether the inode was met. */
  has(inode: bigint): boolean {
    return this.#missing[this.#find(inode)] !== 0;
  }

  /** Notes one name of an inode that has `links` names. Says whether this is the first, and how many are left. */
  meet(inode: bigint, links: number): { readonly first: boolean; readonly missing: number } {
    let slot = this.#find(inode);
    const known = this.#missing[slot] ?? 0;
    if (known !== 0) {
      const missing = Math.max(0, known - 2);
      this.#missing[slot] = missing + 1;
      return { first: false, missing };
    }
    if (this.#used >= this.#missing.length * 0.75) {
      if (this.#missing.length === SLOTS_MAX) {
        this.#untracked += 1;
        return { first: true, missing: links - 1 };
      }
      this.#grow();
      slot = this.#find(inode);
    }
    assert(links >= 1 && links < 0xffff_ffff, 'a link count is a count');
    this.#inodes[slot] = inode;
    this.#missing[slot] = links;
    this.#used += 1;
    return { first: true, missing: links - 1 };
  }

  /** Inodes of which not every name was met. */
  countMissing(): number {
    let count = 0;
    for (const missing of this.#missing) if (missing > 1) count += 1;
    return count;
  }

  /** Names of inodes for which the table had no room. */
  get untracked(): number {
    return this.#untracked;
  }
}
