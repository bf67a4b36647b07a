/** Everything that one epoch's file holds, read from start to end without a lock and without a replayed state. */
import { XceError } from '../base/errors.ts';
import type { LogFile, LogFiles } from '../os/log-files.ts';
import { readBase } from './base.ts';
import { type EntryCodec, EntryReader, type LogEntry } from './entries.ts';
import { EpochDirectory, type EpochDirectoryOptions } from './epoch-directory.ts';
import { onStorage } from './failure.ts';
import type { StoragePort } from './storage.ts';

export type DumpPorts = {
  readonly files: LogFiles;
  readonly storage: StoragePort;
  wait(milliseconds: number): Promise<void>;
};

/** What a reader of a dump needs to know that is no entry. */
export type DumpEnd = {
  readonly path: string;
  readonly epoch: number;
  /** The file counts, or counted: there is a complete record. */
  readonly isComplete: boolean;
  /** Where the entries ended, and the bytes of an incomplete record behind them. */
  readonly offset: number;
  readonly tornBytes: number;
};

const emptied = (path: string): XceError =>
  new XceError('log-missing', `${path} was emptied: a later epoch took its place`, {
    at: path,
    next: 'xce-sandbox lease verify',
  });

const openEpoch = async (directory: EpochDirectory, epoch: number): Promise<LogFile> => {
  const file = await directory.open(epoch, 'read');
  if (file !== undefined) return file;
  const path = directory.pathOf(epoch);
  throw new XceError('log-missing', `there is no epoch ${epoch} in ${directory.path}`, {
    at: path,
    next: 'xce-sandbox lease verify shows the epochs that are there',
  });
};

const isComplete = async (directory: EpochDirectory, epoch: number): Promise<boolean> => {
  const path = directory.pathOf(epoch);
  const file = await openEpoch(directory, epoch);
  try {
    const base = await onStorage('read', path, () => readBase(file, path, epoch, directory.identity));
    return base !== undefined;
  } finally {
    await file.close();
  }
};

/** The newest complete epoch; the newest of all where none can be shown to be complete. */
const chooseEpoch = async (directory: EpochDirectory): Promise<number> => {
  const newest = await directory.newest();
  for (let epoch = newest; epoch >= 1; epoch--) {
    try {
      if (await isComplete(directory, epoch)) return epoch;
    } catch (error) {
      // Corruption is shown, not skipped.
      if (error instanceof XceError && error.code === 'log-corrupt') return epoch;
      throw error;
    }
  }
  return newest;
};

/**
 * The entries of an epoch, or of the newest complete one, portion by portion. Throws behind the last entry that
 * checks: 'log-corrupt', 'log-version' or 'log-foreign', with the offset; 'log-busy' when the file was emptied
 * meanwhile; 'log-missing' where there is no such epoch, or no longer.
 */
export async function* dumpEpoch<Item, Event>(
  ports: DumpPorts,
  options: EpochDirectoryOptions,
  codec: EntryCodec<Item, Event>,
  wanted: number | undefined,
): AsyncGenerator<readonly LogEntry<Item, Event>[], DumpEnd> {
  const directory = new EpochDirectory(ports.files, options, ports.storage);
  const epoch = wanted ?? (await chooseEpoch(directory));
  const path = directory.pathOf(epoch);
  const file = await openEpoch(directory, epoch);
  try {
    const bytesNow = async (): Promise<number> =>
      (await onStorage('look at', path, () => file.facts())).bytes;
    if ((await bytesNow()) === 0) throw emptied(path);
    const place = { path, epoch, identity: directory.identity };
    const reader = new EntryReader(file, place, codec, (milliseconds) => ports.wait(milliseconds));
    const portions = reader.portions();
    for (;;) {
      const { done, value } = await onStorage('read', path, () => portions.next());
      if (done === true) break;
      yield value;
    }
    const { position, tornBytes, complete } = reader;
    if ((await bytesNow()) < position.offset) {
      throw new XceError('log-busy', `${path} was emptied while it was read; its end is missing here`, {
        at: path,
        next: 'try again: a later epoch has taken its place',
      });
    }
    return { path, epoch, isComplete: complete !== undefined, offset: position.offset, tornBytes };
  } finally {
    await file.close();
  }
}
