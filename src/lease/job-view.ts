/**
 * The state of the lease log as far as it concerns one lease or one job: what a short process needs that renews one
 * of 100,000 leases. It is replayed from the same bytes, all of them, and each byte is checked by the log below; but
 * what cannot hold the job is not decoded. Of other leases remain the next number and the epoch.
 *
 * One thing is not known to the end: which of the job's ended attempts were forgotten since the checkpoint. A rule
 * whose answer would depend on it is told by WholeStateNeeded, and decides again with the whole state (job-log.ts).
 */
import type { JobId, LeaseNumber } from '../base/ids.ts';
import type { View } from '../wal/machine.ts';
import { asBuffer, ByteWriter } from './codec.ts';
import type { EndedAttempt } from './ended.ts';
import { decodeEvent, type LeaseEvent, peekEvent } from './event.ts';
import { leaseMachine } from './machine.ts';
import type { LeaseRef } from './reference.ts';
import { firstLeaseOf, kindOfRecord, RECORD, restoreRecord } from './snapshot.ts';
import { applyEvent, applyForeign, emptyState, type JobState, type LeaseState } from './state.ts';

/** Only the whole state can answer. It is thrown into a decision, before anything is written. */
export class WholeStateNeeded extends Error {
  constructor(what: string) {
    super(`only the whole state knows ${what}`);
    this.name = 'WholeStateNeeded';
  }
}

const numberBytes = (lease: LeaseNumber): Buffer => Buffer.from(new ByteWriter().whole(lease).finish());

export class JobView implements JobState {
  /** The state with the leases and ended attempts of the job alone. */
  readonly own: LeaseState = emptyState();
  #numbers: ReadonlyMap<LeaseNumber, Buffer> | undefined;
  #forgetsUnknown = false;

  /** The leases of a checkpoint as its records of nodes name them. Not to be asked before all leases are restored. */
  get numbers(): ReadonlyMap<LeaseNumber, Buffer> {
    this.#numbers ??= new Map([...this.own.leases.keys()].map((lease) => [lease, numberBytes(lease)]));
    return this.#numbers;
  }

  get epoch(): number {
    return this.own.epoch;
  }
  get nextLease(): number {
    return this.own.nextLease;
  }
  get leases(): JobState['leases'] {
    return this.own.leases;
  }
  get byJob(): JobState['byJob'] {
    return this.own.byJob;
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

/** What stands in bytes that hold something of the lease or job: its number, or its id as a text of codec.ts. */
const needleOf = (ref: LeaseRef): Buffer =>
  'lease' in ref ? numberBytes(ref.lease) : Buffer.from(new ByteWriter().text(ref.job).finish());

const holds = (bytes: Uint8Array, needle: Buffer): boolean => asBuffer(bytes).includes(needle);

/** The view of what the reference names: all attempts of a job, or one lease. */
export const jobView = (ref: LeaseRef): View<JobView, LeaseEvent> => {
  const needle = needleOf(ref);
  const isWanted = (job: JobId, lease: LeaseNumber): boolean =>
    'lease' in ref ? lease === ref.lease : job === ref.job;

  /** Leases and nodes stand in the order of lease numbers, so that a record holds none below its first. */
  const mayHold = (view: JobView, record: Uint8Array): boolean => {
    switch (kindOfRecord(record)) {
      case RECORD.ended:
        return holds(record, needle);
      case RECORD.leases:
        return holds(record, needle) && (!('lease' in ref) || firstLeaseOf(record) <= ref.lease);
      case RECORD.nodes:
        for (const [lease, bytes] of view.numbers) {
          if (holds(record, bytes) && firstLeaseOf(record) <= lease) return true;
        }
        return false;
      default:
        return true;
    }
  };

  return {
    empty: () => new JobView(),
    restore: (view, record) => {
      if (mayHold(view, record)) restoreRecord(view.own, record, isWanted);
    },
    replay: (view, bytes, start = 0, end = bytes.length) => {
      const { kind, lease } = peekEvent(bytes, start, end);
      if (lease === undefined) {
        view.applyForget();
        return;
      }
      if (view.own.leases.has(lease)) {
        applyEvent(view.own, decodeEvent(bytes, start, end));
        return;
      }
      if (kind !== 'allocate' && kind !== 'renew') return;
      const event = decodeEvent(bytes, start, end);
      if (event.kind === 'allocate' && isWanted(event.job, event.lease)) applyEvent(view.own, event);
      else if (event.kind === 'allocate' || event.kind === 'renew') applyForeign(view.own, event);
    },
    withMachine: (use) => use(leaseMachine),
  };
};
