import { assert } from '../base/errors.ts';
import type { Machine } from '../wal/machine.ts';
import { decodeEvent, encodeEvent, type LeaseEvent } from './event.ts';
import { restoreRecord, snapshotState } from './snapshot.ts';
import { applyEvent, emptyState, type LeaseState } from './state.ts';

/** A log with one record that cannot be read back is lost, so the decoder has its say before the disk. */
const encode = (event: LeaseEvent): Uint8Array => {
  const bytes = encodeEvent(event);
  assert(decodeEvent(bytes).kind === event.kind, 'what is written can be read back');
  return bytes;
};

/** What the lease log means. */
export const leaseMachine: Machine<LeaseState, LeaseEvent> = {
  empty: emptyState,
  apply: applyEvent,
  encode,
  decode: decodeEvent,
  snapshot: snapshotState,
  restore: restoreRecord,
};
