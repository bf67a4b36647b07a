/**
 * The state of the lease log as far as it concerns one lease or one job: what a short process needs that renews one
 * of 100,000 leases. It is replayed from the same bytes, all of them, and each byte is checked by the log below; but
 * what cannot hold the job is not decoded. Of other leases remain the next number and the epoch.
 *
 * One thing is not known to the end: which of the job's ended attempts were forgotten since the checkpoint. A rule
 * whose answer would depend on it is told by WholeStateNeeded, and decides again with the whole state (job-log.ts).
 */
import type { JobId, LeaseNumber } from '../base/ids.ts';
import type { SelectRecord, View } from '../wal/machine.ts';
import { ITEM_HEADER_BYTES } from '../wal/record.ts';
import { asBuffer, ByteWriter } from './codec.ts';
import type { EndedAttempt } from './ended.ts';
import { decodeEvent, type LeaseEvent, peekEvent } from './event.ts';
import { leaseMachine } from './machine.ts';
import type { LeaseRef } from './reference.ts';
import { firstLeaseOf, kindOfRecord, RECORD, restoreRecord } from './snapshot.ts';
import { applyForeign, emptyState, type JobState, type LeaseState, replayEvent } from './state.ts';

/** Only the whole state can answer. It is thrown into a decision, before anything is written. */
export class WholeStateNeeded extends Error {
  constructor(what: string) {
    super(`only the whole state knows ${what}`);
    this.name = 'WholeStateNeeded';
  }
}

export class JobView implements JobState {
  /** The state with the leases and ended attempts of the job alone. */
  readonly own: LeaseState = emptyState();
  #forgetsUnknown = false;

  get epoch(): number {
    return this.own.epoch;
  }
  get nextLease(): number {
    return this.own.nextLease;
  }
  get leases(): JobState['leases'] {
    return this.own.leases;
  }

  readonly ended: JobState['ended'] = {
    ofJob: (job: JobId): readonly EndedAttempt[] => {
      if (this.#forgetsUnknown) throw new WholeStateNeeded('which attempts were forgotten');
      return this.own.ended.ofJob(job);
    },
  };

  applyForget(): void {
    if (this.own.ended.size > 0) this.#forgetsUnknown = true;
  }
}

/** What stands in bytes that hold something of the job: its id as a text of codec.ts. Of a lease it is its number. */
const needleOf = (ref: LeaseRef): Buffer =>
  'lease' in ref
    ? Buffer.from(new ByteWriter().whole(ref.lease).finish())
    : Buffer.from(new ByteWriter().text(ref.job).finish());

/** Whether the record of leases or nodes in part[start, end) may hold the lease; the next one may stand behind it. */
const mayHoldLease = (part: Uint8Array, start: number, end: number, lease: LeaseNumber): boolean => {
  if (firstLeaseOf(part, start) > lease) return false;
  const next = end + ITEM_HEADER_BYTES;
  if (next >= part.length || kindOfRecord(part, next) !== kindOfRecord(part, start)) return true;
  return firstLeaseOf(part, next) >= lease;
};

/** The view of what the reference names: all attempts of a job, or one lease. */
export const jobView = (ref: LeaseRef): View<JobView, LeaseEvent> => {
  const needle = needleOf(ref);
  const isWanted = (job: JobId, lease: LeaseNumber): boolean =>
    'lease' in ref ? lease === ref.lease : job === ref.job;

  /**
   * Leases and nodes stand in the order of lease numbers: a record holds none below its first, nor above the first of
   * the next one. Everything else is looked for, once in all that was read.
   */
  const select = (view: JobView, bytes: Uint8Array, bytesEnd: number): SelectRecord => {
    const part = asBuffer(bytes).subarray(0, bytesEnd);
    let found = 0;
    const holdsNeedle = (start: number, end: number): boolean => {
      if (found < start) {
        const at = part.indexOf(needle, start);
        found = at === -1 ? part.length : at;
      }
      return found < end;
    };
    return (start, end) => {
      switch (kindOfRecord(part, start)) {
        case RECORD.ended:
          return holdsNeedle(start, end);
        case RECORD.leases:
          return 'lease' in ref ? mayHoldLease(part, start, end, ref.lease) : holdsNeedle(start, end);
        case RECORD.nodes:
          for (const lease of view.own.leases.numbers())
            if (mayHoldLease(part, start, end, lease)) return true;
          return false;
        default:
          return true;
      }
    };
  };

  return {
    empty: () => new JobView(),
    select,
    restore: (view, record) => restoreRecord(view.own, record, isWanted),
    replay: (view, bytes, start = 0, end = bytes.length) => {
      const { kind, lease } = peekEvent(bytes, start, end);
      if (lease === undefined) {
        view.applyForget();
        return;
      }
      if (view.own.leases.has(lease)) {
        replayEvent(view.own, bytes, start, end);
        return;
      }
      if (kind !== 'allocate' && kind !== 'renew') return;
      const event = decodeEvent(bytes, start, end);
      if (event.kind === 'allocate' && isWanted(event.job, event.lease))
        replayEvent(view.own, bytes, start, end);
      else if (event.kind === 'allocate' || event.kind === 'renew') applyForeign(view.own, event);
    },
    withMachine: (use) => use(leaseMachine),
  };
};
