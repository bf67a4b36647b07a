/**
 * Memory of attempts that have ended, so that a late or repeated prolog never revives one. Bounded by time (the
 * rules forget what is old) and by LIMITS.endedAttemptsMax.
 */
import { assert } from '../base/errors.ts';
import type { Attempt, JobId, LeaseNumber, Uid } from '../base/ids.ts';

/** What identifies one run of a job. Schedulers reuse job ids, and some do not count requeues. */
export type AttemptKey = {
  readonly job: JobId;
  readonly attempt: Attempt;
  /** Unix seconds; null when the caller does not know. */
  readonly schedulerStartS: number | null;
};

export type EndedAttempt = AttemptKey & {
  readonly lease: LeaseNumber;
  readonly uid: Uid;
  readonly endedWallMs: number;
};

/** The same run, as far as both sides know: an unknown start fits any. */
export const isSameRun = (one: AttemptKey, other: AttemptKey): boolean =>
  one.job === other.job &&
  one.attempt === other.attempt &&
  (one.schedulerStartS === null ||
    other.schedulerStartS === null ||
    one.schedulerStartS === other.schedulerStartS);

/** Whether `one` is an earlier run of the job than `other`: by start where both are known, else by attempt. */
export const isEarlierRun = (one: AttemptKey, other: AttemptKey): boolean => {
  if (one.schedulerStartS !== null && other.schedulerStartS !== null) {
    if (one.schedulerStartS !== other.schedulerStartS) return one.schedulerStartS < other.schedulerStartS;
  }
  return one.attempt < other.attempt;
};

const addToJob = (byJob: Map<JobId, EndedAttempt[]>, ended: EndedAttempt): void => {
  const ofJob = byJob.get(ended.job);
  if (ofJob === undefined) byJob.set(ended.job, [ended]);
  else ofJob.push(ended);
};

/** Attempts of a block. */
const BLOCK = 1024;

/** Some attempts as columns of numbers, not as an object each: there may be half a million. */
class EndedBlock {
  readonly #jobs: JobId[] = [];
  readonly #attempts = new Uint32Array(BLOCK);
  /** NaN where it is not known. */
  readonly #starts = new Float64Array(BLOCK);
  readonly #leases = new Float64Array(BLOCK);
  readonly #uids = new Uint32Array(BLOCK);
  readonly #endedWallMs = new Float64Array(BLOCK);

  add({ job, attempt, schedulerStartS, lease, uid, endedWallMs }: EndedAttempt): void {
    const at = this.#jobs.length;
    this.#jobs.push(job);
    this.#attempts[at] = attempt;
    this.#starts[at] = schedulerStartS ?? Number.NaN;
    this.#leases[at] = lease;
    this.#uids[at] = uid;
    this.#endedWallMs[at] = endedWallMs;
  }

  get(at: number): EndedAttempt {
    const job = this.#jobs[at];
    assert(job !== undefined, 'an attempt that is asked for is there');
    const start = this.#starts[at] as number;
    return {
      job,
      attempt: this.#attempts[at] as Attempt,
      schedulerStartS: Number.isNaN(start) ? null : start,
      lease: this.#leases[at] as LeaseNumber,
      uid: this.#uids[at] as Uid,
      endedWallMs: this.#endedWallMs[at] as number,
    };
  }
}

export class EndedAttempts {
  readonly #blocks: EndedBlock[] = [];
  /** Attempts are numbered from the first of the first block on: the oldest that is remembered, and the next one. */
  #first = 0;
  #next = 0;
  /**
   * The attempts of each job. Made when they are first asked for, which whoever only replays a log never does.
   */
  #byJob: Map<JobId, EndedAttempt[]> | undefined;

  get size(): number {
    return this.#next - this.#first;
  }

  add(ended: EndedAttempt): void {
    if (this.#next === this.#blocks.length * BLOCK) this.#blocks.push(new EndedBlock());
    this.#blocks.at(-1)?.add(ended);
    this.#next += 1;
    if (this.#byJob !== undefined) addToJob(this.#byJob, ended);
  }

  /** Forgets the oldest `count`; returns false, and forgets none, when there are fewer. */
  forget(count: number): boolean {
    if (count > this.size) return false;
    for (let left = count; left > 0; left -= 1) this.#forgetOldest();
    return true;
  }

  #forgetOldest(): void {
    if (this.#byJob !== undefined) {
      const { job } = this.#get(this.#first);
      const ofJob = this.#byJob.get(job);
      if (ofJob === undefined || ofJob.length <= 1) this.#byJob.delete(job);
      else ofJob.shift();
    }
    this.#first += 1;
    if (this.#first < BLOCK) return;
    this.#blocks.shift();
    this.#first -= BLOCK;
    this.#next -= BLOCK;
  }

  #get(number: number): EndedAttempt {
    const block = this.#blocks[Math.floor(number / BLOCK)];
    assert(block !== undefined, 'an attempt that is asked for is there');
    return block.get(number % BLOCK);
  }

  /** Ended attempts of one job, oldest first. */
  ofJob(job: JobId): readonly EndedAttempt[] {
    if (this.#byJob === undefined) {
      this.#byJob = new Map();
      for (const ended of this) addToJob(this.#byJob, ended);
    }
    return this.#byJob.get(job) ?? [];
  }

  /** All, oldest first. */
  *[Symbol.iterator](): Generator<EndedAttempt> {
    for (let number = this.#first; number < this.#next; number += 1) yield this.#get(number);
  }
}
