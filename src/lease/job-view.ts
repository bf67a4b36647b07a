/**
 * The state of the lease log as far as it concerns one lease or one job: what a short process needs that renews one
 * of 100,000 leases. It is replayed from the same bytes, all of them, and each byte is checked by the log below; but
 * what cannot hold the job is not decoded. Of other leases remain what rules ask of all: the next number, the epoch,
 * the uids and the withheld nodes.
 *
 * Two things are not known to the end: which uids other leases gave back since the checkpoint (their events name
 * leases, not uids), and which of the job's ended attempts were forgotten since. Such a uid counts as held. A rule
 * whose answer would depend on one of the two is told by WholeStateNeeded, and decides again with the whole state
 * (job-log.ts).
 */

import type { IdRange } from '../base/id-range.ts';
import type { JobId, LeaseNumber, Uid } from '../base/ids.ts';
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
  /** Another lease gave back a uid that is not known. Whatever is behind it in the queue is in the wrong place. */
  #givesBackUnknown = false;
  readonly #behindUnknown = new Set<number>();
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
  get withheld(): JobState['withheld'] {
    return this.own.withheld;
  }

  readonly ended: JobState['ended'] = {
    ofJob: (job: JobId): readonly EndedAttempt[] => {
      if (this.#forgetsUnknown) throw new WholeStateNeeded('which attempts were forgotten');
      return this.own.ended.ofJob(job);
    },
  };

  /** A uid that was used and did not come back is held, whoever holds it. */
  readonly byUid: JobState['byUid'] = {
    has: (uid: Uid): boolean => this.own.used.has(uid) && !this.own.freed.has(uid),
    values: () => {
      throw new WholeStateNeeded('every lease');
    },
  };

  readonly used: JobState['used'] = {
    absent: (range: IdRange): Iterable<number> => this.own.used.absent(range),
  };

  readonly freed: JobState['freed'] = { [Symbol.iterator]: () => this.#knownFreed() };

  *#knownFreed(): Generator<number> {
    for (const uid of this.own.freed) {
      if (this.#behindUnknown.has(uid)) break;
      yield uid;
    }
    if (this.#givesBackUnknown) throw new WholeStateNeeded('which uid is next');
  }

  applyOwn(event: LeaseEvent): void {
    const { freed, leases } = this.own;
    const uid = event.kind === 'free' && this.#givesBackUnknown ? leases.get(event.lease)?.uid : undefined;
    applyEvent(this.own, event);
    if (uid !== undefined && freed.has(uid)) this.#behindUnknown.add(uid);
  }

  applyOther(event: Exclude<LeaseEvent, { kind: 'forget' }>): void {
    if (event.kind === 'free') this.#givesBackUnknown = true;
    if (event.kind === 'allocate') this.#behindUnknown.delete(event.uid);
    applyForeign(this.own, event);
  }

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
    replay: (view, bytes) => {
      const { kind, lease } = peekEvent(bytes);
      if (lease === undefined) {
        view.applyForget();
        return;
      }
      if (view.own.leases.has(lease)) {
        view.applyOwn(decodeEvent(bytes));
        return;
      }
      switch (kind) {
        case 'allocate':
        case 'renew':
        case 'reclaim':
        case 'certify':
        case 'free': {
          const event = decodeEvent(bytes);
          if (event.kind === 'forget') return;
          if (event.kind === 'allocate' && isWanted(event.job, event.lease)) view.applyOwn(event);
          else view.applyOther(event);
          return;
        }
        default:
      }
    },
    withMachine: (use) => use(leaseMachine),
  };
};
