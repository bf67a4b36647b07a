/**
 * Memory of attempts that have ended, so that a late or repeated prolog never revives one. Bounded by time (the
 * rules forget what is old) and by LIMITS.endedAttemptsMax.
 */
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

export class EndedAttempts {
  #queue: EndedAttempt[] = [];
  #head = 0;
  readonly #byJob = new Map<JobId, EndedAttempt[]>();

  get size(): number {
    return this.#queue.length - this.#head;
  }

  add(ended: EndedAttempt): void {
    this.#queue.push(ended);
    const ofJob = this.#byJob.get(ended.job);
    if (ofJob === undefined) this.#byJob.set(ended.job, [ended]);
    else ofJob.push(ended);
  }

  /** Forgets the oldest `count`; returns false, and forgets none, when there are fewer. */
  forget(count: number): boolean {
    if (count > this.size) return false;
    for (const { job } of this.#queue.slice(this.#head, this.#head + count)) {
      const ofJob = this.#byJob.get(job);
      if (ofJob === undefined || ofJob.length <= 1) this.#byJob.delete(job);
      else ofJob.shift();
    }
    this.#head += count;
    if (this.#head > 64 && this.#head * 2 > this.#queue.length) {
      this.#queue = this.#queue.slice(this.#head);
      this.#head = 0;
    }
    return true;
  }

  /** Ended attempts of one job, oldest first. */
  ofJob(job: JobId): readonly EndedAttempt[] {
    return this.#byJob.get(job) ?? [];
  }

  /** All, oldest first. */
  *[Symbol.iterator](): Generator<EndedAttempt> {
    for (let index = this.#head; index < this.#queue.length; index += 1) {
      const ended = this.#queue[index];
      if (ended !== undefined) yield ended;
    }
  }
}
