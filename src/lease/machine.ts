import { XceError } from '../base/errors.ts';
import type { Machine } from '../wal/machine.ts';
import { decodeEvent, encodeEvent, type LeaseEvent } from './event.ts';
import { restoreRecord, snapshotState } from './snapshot.ts';
import { emptyState, type LeaseState, replayEvent } from './state.ts';

/** A log with one record that cannot be read back is lost, so the decoder has its say before the disk. */
const encode = (event: LeaseEvent): Uint8Array => {
  const bytes = encodeEvent(event);
  try {
    decodeEvent(bytes);
  } catch (cause) {
    throw new XceError('bug', `an event '${event.kind}' could not be read back`, { cause });
  }
  return bytes;
};

/** What the lease log means. */
export const leaseMachine: Machine<LeaseState, LeaseEvent> = {
  empty: emptyState,
  replay: replayEvent,
  encode,
  decode: decodeEvent,
  snapshot: snapshotState,
  restore: (state, record) => restoreRecord(state, record),
};
