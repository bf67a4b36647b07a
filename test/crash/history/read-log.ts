/** The lease log as the order of everything that counts, put together from the files of all epochs. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { LeaseEvent } from '../../../src/lease/event.ts';
import { leaseMachine } from '../../../src/lease/machine.ts';
import { decodeComplete, decodeEvents, decodeHeader, readFrames } from '../../../src/wal/decoder.ts';
import { parseEpochName } from '../../../src/wal/names.ts';
import { type CompleteRecord, FILE_START, TYPE } from '../../../src/wal/record.ts';
import type { Position } from './history.ts';
import { keptPath } from './kept.ts';

export type LogRecord = Position & {
  /** The host that owned the epoch. */
  readonly owner: string;
  readonly events: readonly LeaseEvent[];
};

type EpochFile = {
  readonly epoch: number;
  readonly owner: string;
  readonly complete: CompleteRecord | undefined;
  readonly records: readonly LogRecord[];
};

const readEpochFile = async (path: string, epoch: number): Promise<EpochFile> => {
  const kept = keptPath(path);
  const bytes = readFileSync(existsSync(kept) ? kept : path);
  const source = {
    read: async (into: Uint8Array, position: number) => {
      const part = bytes.subarray(position, position + into.length);
      into.set(part);
      return part.length;
    },
  };
  let owner = '';
  let complete: CompleteRecord | undefined;
  const records: LogRecord[] = [];
  await readFrames(source, path, FILE_START, (frame) => {
    if (frame.type === TYPE.header) owner = decodeHeader(frame).host;
    if (frame.type === TYPE.complete) complete = decodeComplete(frame);
    if (frame.type !== TYPE.events) return;
    const events: LeaseEvent[] = [];
    decodeEvents(frame, (...event) => events.push(leaseMachine.decode(...event)));
    records.push({ epoch, sequence: frame.sequence, owner, events });
  });
  return { epoch, owner, complete, records };
};

export type WholeLog = {
  /** All that counts, the oldest first. */
  readonly records: readonly LogRecord[];
  /** Owner of every epoch that was begun. */
  readonly owners: ReadonlyMap<number, string>;
};

/** From the newest complete epoch downwards: of each epoch below, what the checkpoint above it covers. */
export const readWholeLog = async (directory: string): Promise<WholeLog> => {
  const files: EpochFile[] = [];
  for (const name of readdirSync(directory)) {
    const epoch = parseEpochName(name);
    if (epoch !== undefined) files.push(await readEpochFile(join(directory, name), epoch));
  }
  files.sort((a, b) => a.epoch - b.epoch);
  let records: readonly LogRecord[] = [];
  let file = files.findLast(({ complete }) => complete !== undefined);
  let last = Number.POSITIVE_INFINITY;
  while (file?.complete !== undefined) {
    const counting = file.records.filter(({ sequence }) => sequence <= last);
    records = [...counting, ...records];
    const { baseEpoch, baseSequence }: CompleteRecord = file.complete;
    file = files.find(({ epoch }) => epoch === baseEpoch);
    last = baseSequence;
  }
  return { records, owners: new Map(files.map(({ epoch, owner }) => [epoch, owner])) };
};
