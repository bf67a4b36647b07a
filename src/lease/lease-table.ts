/**
 * The leases that hold a uid, found by number, by uid and by job. There may be 100,000, and a replay changes one with
 * every record: so they are not objects, which a collector of garbage would have to follow, but rows of columns. The
 * row of a lease that has ended is used again.
 */

import { assert } from '../base/errors.ts';
import type { Attempt, Epoch, JobId, LeaseNumber, Uid } from '../base/ids.ts';
import type { LeaseRoot, LeaseWorkspace, Quarantine, Submitter } from './event.ts';
import { IdMap } from './id-map.ts';
import {
  type FinishedScope,
  LEASE_STATUSES,
  type Lease,
  type LeaseFacts,
  type LeaseStatus,
  NO_MOUNTS,
  NONE_FINISHED,
  type RecordedMount,
} from './lease.ts';
import { LeaseNodes, NodeTable } from './nodes.ts';
import type { Term } from './term.ts';

/** The columns of numbers, and what holds each of them. */
const NUMBERS = {
  /** Whole numbers beyond 32 bits, times, and NaN for a start that is not known. */
  number: Float64Array,
  schedulerStartS: Float64Array,
  epoch: Float64Array,
  ttlMs: Float64Array,
  issuedWallMs: Float64Array,
  issuedMonotonicMs: Float64Array,
  uid: Uint32Array,
  attempt: Uint32Array,
  submitterUid: Uint32Array,
  submitterGid: Uint32Array,
  /** Index in LEASE_STATUSES. */
  status: Uint8Array,
  /** The row of the lease that came before whose job has the same key, or NONE. */
  earlier: Int32Array,
} as const;

type NumberColumns = { -readonly [Name in keyof typeof NUMBERS]: InstanceType<(typeof NUMBERS)[Name]> };
const NUMBER_NAMES = Object.keys(NUMBERS) as (keyof NumberColumns)[];

/** Each a field of its own: a replay reads and writes them for every event. */
const NumberFields = class {
  constructor(rows: number) {
    for (const name of NUMBER_NAMES) Object.assign(this, { [name]: new NUMBERS[name](rows) });
  }
} as new (
  rows: number,
) => NumberColumns;

/** No row. */
const NONE = -1;

class LeaseColumns extends NumberFields {
  readonly job: JobId[] = [];
  readonly bootId: string[] = [];
  readonly roots: (readonly LeaseRoot[])[] = [];
  readonly workspace: (LeaseWorkspace | null)[] = [];
  readonly nodes: LeaseNodes[] = [];
  readonly mounts: (readonly RecordedMount[])[] = [];
  readonly finished: (readonly FinishedScope[])[] = [];
  readonly quarantine: (Quarantine | null)[] = [];
  readonly #nodeTable: NodeTable;

  constructor(rows: number) {
    super(rows);
    this.#nodeTable = new NodeTable(rows);
  }

  get rows(): number {
    return this.number.length;
  }

  /** Makes room for as many rows again. */
  widen(): void {
    const { rows } = this;
    for (const name of NUMBER_NAMES) {
      const longer = new NUMBERS[name](rows * 2);
      longer.set(this[name]);
      Object.assign(this, { [name]: longer });
    }
  }

  /** All but the nodes: the row is to have none. */
  set(at: number, lease: LeaseFacts): void {
    this.number[at] = lease.number;
    this.schedulerStartS[at] = lease.schedulerStartS ?? Number.NaN;
    this.epoch[at] = lease.epoch;
    const { ttlMs, issued } = lease.term;
    this.setTerm(at, ttlMs, issued.wallMs, issued.monotonicMs, issued.bootId);
    this.uid[at] = lease.uid;
    this.attempt[at] = lease.attempt;
    this.submitterUid[at] = lease.submitter.uid;
    this.submitterGid[at] = lease.submitter.gid;
    this.status[at] = LEASE_STATUSES.indexOf(lease.status);
    this.earlier[at] = NONE;
    this.job[at] = lease.job;
    this.roots[at] = lease.roots;
    this.workspace[at] = lease.workspace;
    this.nodes[at] ??= new LeaseNodes(this.#nodeTable);
    this.mounts[at] = lease.mounts;
    this.finished[at] = lease.finished;
    this.quarantine[at] = lease.quarantine;
  }

  setTerm(at: number, ttlMs: number, wallMs: number, monotonicMs: number, bootId: string): void {
    this.ttlMs[at] = ttlMs;
    this.issuedWallMs[at] = wallMs;
    this.issuedMonotonicMs[at] = monotonicMs;
    this.bootId[at] = bootId;
  }
}

/** One lease of the table, as it is and as it becomes. Of no use once the lease has ended. Rules get `read()`. */
export class LeaseRow {
  declare readonly isLive: true;
  readonly #columns: LeaseColumns;
  readonly at: number;

  constructor(columns: LeaseColumns, at: number) {
    this.#columns = columns;
    this.at = at;
  }

  /** A copy that can be changed without the original. */
  static alone(lease: Lease): LeaseRow {
    const columns = new LeaseColumns(1);
    columns.set(0, lease);
    const row = new LeaseRow(columns, 0);
    row.nodes.become(lease.nodes);
    return row;
  }

  get number(): LeaseNumber {
    return this.#columns.number[this.at] as LeaseNumber;
  }
  get uid(): Uid {
    return this.#columns.uid[this.at] as Uid;
  }
  get job(): JobId {
    return this.#columns.job[this.at] as JobId;
  }
  get attempt(): Attempt {
    return this.#columns.attempt[this.at] as Attempt;
  }
  get schedulerStartS(): number | null {
    const start = this.#columns.schedulerStartS[this.at] as number;
    return Number.isNaN(start) ? null : start;
  }
  get submitter(): Submitter {
    return {
      uid: this.#columns.submitterUid[this.at] as number,
      gid: this.#columns.submitterGid[this.at] as number,
    };
  }
  get roots(): readonly LeaseRoot[] {
    return this.#columns.roots[this.at] as readonly LeaseRoot[];
  }
  get workspace(): LeaseWorkspace | null {
    return this.#columns.workspace[this.at] as LeaseWorkspace | null;
  }
  /** Live as well. */
  get nodes(): LeaseNodes {
    return this.#columns.nodes[this.at] as LeaseNodes;
  }

  get status(): LeaseStatus {
    return LEASE_STATUSES[this.#columns.status[this.at] as number] as LeaseStatus;
  }
  /** The status as its place in LEASE_STATUSES. */
  get statusIndex(): number {
    return this.#columns.status[this.at] as number;
  }
  set statusIndex(index: number) {
    this.#columns.status[this.at] = index;
  }
  get epoch(): Epoch {
    return this.#columns.epoch[this.at] as Epoch;
  }
  set epoch(epoch: Epoch) {
    this.#columns.epoch[this.at] = epoch;
  }
  get term(): Term {
    return {
      ttlMs: this.#columns.ttlMs[this.at] as number,
      issued: {
        wallMs: this.#columns.issuedWallMs[this.at] as number,
        monotonicMs: this.#columns.issuedMonotonicMs[this.at] as number,
        bootId: this.#columns.bootId[this.at] as string,
      },
    };
  }
  setTerm(ttlMs: number, wallMs: number, monotonicMs: number, bootId: string): void {
    this.#columns.setTerm(this.at, ttlMs, wallMs, monotonicMs, bootId);
  }
  get mounts(): readonly RecordedMount[] {
    return this.#columns.mounts[this.at] as readonly RecordedMount[];
  }
  set mounts(mounts: readonly RecordedMount[]) {
    this.#columns.mounts[this.at] = mounts;
  }
  get finished(): readonly FinishedScope[] {
    return this.#columns.finished[this.at] as readonly FinishedScope[];
  }
  set finished(finished: readonly FinishedScope[]) {
    this.#columns.finished[this.at] = finished;
  }
  get quarantine(): Quarantine | null {
    return this.#columns.quarantine[this.at] as Quarantine | null;
  }
  set quarantine(quarantine: Quarantine | null) {
    this.#columns.quarantine[this.at] = quarantine;
  }

  /** The lease as it is now, whatever becomes of the row. */
  read(): Lease {
    return {
      number: this.number,
      uid: this.uid,
      job: this.job,
      attempt: this.attempt,
      schedulerStartS: this.schedulerStartS,
      submitter: this.submitter,
      roots: this.roots,
      workspace: this.workspace,
      status: this.status,
      epoch: this.epoch,
      term: this.term,
      nodes: this.nodes.clone(),
      mounts: this.mounts,
      finished: this.finished,
      quarantine: this.quarantine,
    };
  }
}

const ROWS_MIN = 16;
const NO_ROWS: readonly LeaseRow[] = [];
const NO_ROOTS: readonly LeaseRoot[] = [];

/** FNV-1a of a job id, as a number above 0: other jobs may have the same, if few. */
const jobKeyOf = (job: JobId): number => {
  let hash = 0x811c9dc5;
  for (let index = 0; index < job.length; index += 1)
    hash = Math.imul(hash ^ job.charCodeAt(index), 0x01000193);
  return hash >>> 0 || 1;
};

export class LeaseTable {
  readonly #columns = new LeaseColumns(ROWS_MIN);
  /** Rows below this are used, or spare. */
  #end = 0;
  readonly #spare: number[] = [];
  readonly #ofNumber = new IdMap<LeaseNumber>();
  readonly #ofUid = new IdMap<Uid>();
  /** The row that was added last of those whose jobs have that key; the others are found by way of `earlier`. */
  readonly #ofJob = new IdMap<number>();

  get size(): number {
    return this.#ofNumber.size;
  }

  has(number: LeaseNumber): boolean {
    return this.#ofNumber.has(number);
  }

  isHeld(uid: Uid): boolean {
    return this.#ofUid.has(uid);
  }

  /** The lease with that number, to be changed. */
  row(number: LeaseNumber): LeaseRow | undefined {
    return this.#rowAt(this.#ofNumber.get(number));
  }

  /** The lease that holds the uid. */
  rowOfUid(uid: Uid): LeaseRow | undefined {
    return this.#rowAt(this.#ofUid.get(uid));
  }

  #rowAt(at: number | undefined): LeaseRow | undefined {
    return at === undefined ? undefined : new LeaseRow(this.#columns, at);
  }

  /** The leases of a job, oldest first. */
  rowsOfJob(job: JobId): readonly LeaseRow[] {
    const newest = this.#ofJob.get(jobKeyOf(job));
    if (newest === undefined) return NO_ROWS;
    const columns = this.#columns;
    const rows: LeaseRow[] = [];
    for (let at = newest; at !== NONE; at = columns.earlier[at] ?? NONE)
      if (columns.job[at] === job) rows.push(new LeaseRow(columns, at));
    return rows.reverse();
  }

  /** The lease of that attempt, as long as it holds a uid. */
  rowOfAttempt(job: JobId, attempt: Attempt): LeaseRow | undefined {
    const columns = this.#columns;
    for (let at = this.#ofJob.get(jobKeyOf(job)) ?? NONE; at !== NONE; at = columns.earlier[at] as number)
      if (columns.attempt[at] === attempt && columns.job[at] === job) return new LeaseRow(columns, at);
    return undefined;
  }

  /** All, ascending by number. */
  *rows(): Generator<LeaseRow> {
    for (const [, at] of this.#ofNumber.entries()) yield new LeaseRow(this.#columns, at);
  }

  numbers(): readonly LeaseNumber[] {
    return this.#ofNumber.entries().map(([number]) => number);
  }

  /** Copies of them as they are now. */
  get(number: LeaseNumber): Lease | undefined {
    return this.row(number)?.read();
  }

  ofJob(job: JobId): readonly Lease[] {
    return this.rowsOfJob(job).map((row) => row.read());
  }

  *values(): Generator<Lease> {
    for (const row of this.rows()) yield row.read();
  }

  /** Neither its number nor its uid may be there already. The row is returned to get the nodes; it has none yet. */
  add(lease: LeaseFacts): LeaseRow {
    const at = this.#takeRow();
    this.#columns.set(at, lease);
    this.#ofNumber.set(lease.number, at);
    this.#ofUid.set(lease.uid, at);
    const key = jobKeyOf(lease.job);
    this.#columns.earlier[at] = this.#ofJob.get(key) ?? NONE;
    this.#ofJob.set(key, at);
    return new LeaseRow(this.#columns, at);
  }

  #takeRow(): number {
    const spare = this.#spare.pop();
    if (spare !== undefined) return spare;
    if (this.#end === this.#columns.rows) this.#columns.widen();
    this.#end += 1;
    return this.#end - 1;
  }

  remove(row: LeaseRow): void {
    assert(this.#ofNumber.get(row.number) === row.at, 'a lease ends once');
    this.#ofNumber.delete(row.number);
    this.#ofUid.delete(row.uid);
    this.#removeOfJob(row);
    const { at } = row;
    // Only what would keep much: numbers are written over.
    const { roots, workspace, mounts, finished, quarantine } = this.#columns;
    roots[at] = NO_ROOTS;
    workspace[at] = null;
    row.nodes.clear();
    mounts[at] = NO_MOUNTS;
    finished[at] = NONE_FINISHED;
    quarantine[at] = null;
    this.#spare.push(at);
  }

  #removeOfJob({ job, at }: LeaseRow): void {
    const { earlier } = this.#columns;
    const before = earlier[at] ?? NONE;
    const key = jobKeyOf(job);
    let later = this.#ofJob.get(key);
    assert(later !== undefined, 'a lease is one of its job');
    if (later === at) {
      if (before === NONE) this.#ofJob.delete(key);
      else this.#ofJob.set(key, before);
      return;
    }
    while (earlier[later] !== at) {
      later = earlier[later] ?? NONE;
      assert(later !== NONE, 'a lease is one of its job');
    }
    earlier[later] = before;
  }
}
