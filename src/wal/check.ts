/** Looks at every byte of every epoch and says what it found; changes nothing and decides nothing. */
import { XceError } from '../base/errors.ts';
import type { LogFiles } from '../os/log-files.ts';
import { damaged, emptiedOnTop, noneComplete } from './damage.ts';
import { isWithoutStart, readFrames } from './decoder.ts';
import { EpochDirectory, type EpochDirectoryOptions } from './epoch-directory.ts';
import { EpochReader } from './epoch-reader.ts';
import { onStorage } from './failure.ts';
import type { LogPosition } from './log.ts';
import { type Machine, viewOf } from './machine.ts';
import { readSeen, type Seen } from './memory.ts';
import { FILE_START } from './record.ts';
import type { Mark } from './replay.ts';
import type { StoragePort } from './storage.ts';

export type EpochReport = {
  readonly epoch: number;
  readonly path: string;
  /** complete: it was, or is, the log. void: it was begun and does not count. empty: its bytes were given up. */
  readonly status: 'complete' | 'void' | 'empty';
  readonly owner: { readonly host: string; readonly token: string; readonly wallMs: number } | null;
  /** Whole records, the header among them, and the bytes they take. */
  readonly records: number;
  readonly bytes: number;
  /** Bytes of an incomplete last record. */
  readonly tornBytes: number;
  readonly base: (Mark & { readonly epoch: number }) | null;
};

export type LogProblem = {
  readonly code: 'log-corrupt' | 'log-version' | 'log-foreign' | 'log-rollback';
  readonly path: string;
  /** Where the record begins that does not check; null where it is not one record. */
  readonly offset: number | null;
  readonly message: string;
  /** What every command advises in this case. */
  readonly next: string;
};

/** When the newest record was written, milliseconds since the Unix epoch. */
export type RecordTimes = {
  /** By the clock of who wrote it. */
  readonly recordMs: number;
  /** By the clock of the storage; null where something was written behind it. */
  readonly storageMs: number | null;
};

export type LogReport<State> = {
  /** Newest first. */
  readonly epochs: readonly EpochReport[];
  readonly problems: readonly LogProblem[];
  /** The log as it counts: the newest complete epoch, replayed; null when it does not check, or there is none. */
  readonly newest: (LogPosition & { readonly state: State; readonly tornBytes: number } & RecordTimes) | null;
};

const CODES: readonly string[] = ['log-corrupt', 'log-version', 'log-foreign', 'log-rollback'];
const isProblemCode = (code: string): code is LogProblem['code'] => CODES.includes(code);

const problemOf = (path: string, error: unknown): LogProblem => {
  if (!(error instanceof XceError) || !isProblemCode(error.code)) throw error;
  const { at, detail } = error.facts;
  const offset = detail?.['offset'];
  return {
    code: error.code,
    path: typeof offset === 'number' ? path : (at ?? path),
    offset: typeof offset === 'number' ? offset : null,
    message: error.message,
    next: error.facts.next ?? '',
  };
};

const emptyReport = (epoch: number, path: string): EpochReport => ({
  epoch,
  path,
  status: 'empty',
  owner: null,
  records: 0,
  bytes: 0,
  tornBytes: 0,
  base: null,
});

const wentOn = (directory: string): XceError =>
  new XceError('log-busy', 'the lease log went on in other epochs while it was checked', {
    at: directory,
    unchanged: 'the lease log',
    next: 'try again',
  });

/**
 * Checks the whole directory, and holds it against what this host has seen. Opens files for reading alone and writes
 * nothing anywhere: it works on storage that is full or mounted read-only. Throws 'log-missing', 'log-io', and
 * 'log-corrupt' when there are gaps in the names.
 */
export const checkLog = async <State, Event>(
  ports: {
    readonly files: LogFiles;
    readonly storage: StoragePort;
    wait(milliseconds: number): Promise<void>;
  },
  options: EpochDirectoryOptions & { readonly memoryPath: string },
  machine: Machine<State, Event>,
): Promise<LogReport<State>> => {
  const directory = new EpochDirectory(ports.files, options, ports.storage);
  const reader = new EpochReader(directory, viewOf(machine), (milliseconds) => ports.wait(milliseconds));
  const epochs: EpochReport[] = [];
  const problems: LogProblem[] = [];
  let newest: LogReport<State>['newest'] = null;
  let seen: Seen | undefined;
  try {
    seen = await readSeen(ports.files, options.memoryPath, directory.identity);
  } catch (error) {
    problems.push(problemOf(options.memoryPath, error));
  }
  const highest = await directory.newest();
  /** What later epochs rest on, by epoch. */
  const wanted = new Map<number, { readonly mark: Mark; readonly by: number }[]>();

  /** Nobody empties the newest: either there is another above it by now, or its bytes were lost. */
  const emptiedError = async (epoch: number): Promise<XceError> =>
    (await directory.newest()) > highest
      ? wentOn(directory.path)
      : emptiedOnTop(directory.path, directory.pathOf(epoch));

  const checkOne = async (epoch: number): Promise<void> => {
    const path = directory.pathOf(epoch);
    const file = await directory.openExisting(epoch, 'read');
    try {
      const { bytes } = await onStorage('look at', path, () => file.facts());
      const isSuperseded = epochs.some(({ status }) => status === 'complete');
      if (bytes === 0 || (isSuperseded && (await onStorage('read', path, () => isWithoutStart(file))))) {
        epochs.push(emptyReport(epoch, path));
        if (!isSuperseded && problems.length === 0) throw await emptiedError(epoch);
        return;
      }
      const replay = reader.newReplay(epoch, seen);
      await onStorage('read', path, () => replay.advance(file));
      const { header, complete, position, tornBytes } = replay;
      const isComplete = complete !== undefined;
      const base = isComplete
        ? { epoch: complete.baseEpoch, sequence: complete.baseSequence, chain: complete.baseChain }
        : null;
      const status = isComplete ? 'complete' : 'void';
      const owner =
        header === undefined ? null : { host: header.host, token: header.token, wallMs: header.wallMs };
      epochs.push({
        epoch,
        path,
        status,
        owner,
        records: position.sequence,
        bytes: position.offset,
        tornBytes,
        base,
      });
      if (isComplete && header !== undefined && newest === null && problems.length === 0) {
        const { token, host } = header;
        const { writtenMs } = await onStorage('look at', path, () => file.facts());
        newest = {
          epoch,
          token,
          host,
          sequence: replay.last.sequence,
          state: replay.state,
          tornBytes,
          recordMs: replay.wallMs,
          storageMs: tornBytes === 0 ? Math.round(writtenMs) : null,
        };
        await reader.checkSeen(highest, replay, seen);
      }
      const marks = wanted.get(epoch) ?? [];
      if (marks.length > 0) {
        const chains = new Map<number, number>();
        await readFrames(file, path, FILE_START, ({ sequence, chain }) => {
          if (marks.some(({ mark }) => mark.sequence === sequence)) chains.set(sequence, chain);
        });
        for (const { mark, by } of marks) {
          if (isComplete && chains.get(mark.sequence) === mark.chain) continue;
          const message = `epoch ${by} rests on record ${mark.sequence} of ${path}, which is not there`;
          problems.push(
            problemOf(path, damaged('record', message, { directory: directory.path, what: path })),
          );
        }
      }
      if (base !== null && base.epoch > 0) {
        wanted.set(base.epoch, [...(wanted.get(base.epoch) ?? []), { mark: base, by: epoch }]);
      }
    } catch (error) {
      problems.push(problemOf(path, error));
    } finally {
      await file.close();
    }
  };

  /** The owner may empty a superseded file while it is read: then what was found in it says nothing. */
  const forgetEmptied = async (epoch: number, problemsBefore: number): Promise<void> => {
    const at = epochs.findIndex((report) => report.epoch === epoch);
    if (epochs[at]?.status === 'empty' || (await directory.sizeOf(epoch)) > 0) return;
    if (newest === null || newest.epoch === epoch) throw wentOn(directory.path);
    problems.splice(problemsBefore);
    if (at !== -1) epochs.splice(at, 1);
    epochs.push(emptyReport(epoch, directory.pathOf(epoch)));
  };

  for (let epoch = highest; epoch >= 1; epoch--) {
    const problemsBefore = problems.length;
    try {
      await checkOne(epoch);
      await forgetEmptied(epoch, problemsBefore);
    } catch (error) {
      problems.push(problemOf(directory.pathOf(epoch), error));
    }
  }
  if (problems.length === 0 && !epochs.some(({ status }) => status === 'complete')) {
    problems.push(problemOf(directory.path, noneComplete(directory.path)));
  }
  return { epochs, problems, newest };
};
