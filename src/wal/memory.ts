/**
 * What this host has seen of the log, kept on its own disk. Storage can come back older than it was (a restored
 * snapshot, an export without sync, a wrong mount): the log alone cannot tell, the controllers together can.
 */
import { dirname } from 'node:path';
import { errnoOf, XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import type { LogFiles } from '../os/log-files.ts';
import { storageFailure, unlinkIfThere } from './failure.ts';
import type { LogIdentity, Mark } from './replay.ts';

/** A record that was acknowledged. The header (sequence 0) stands for an epoch of which no more is known. */
export type Seen = Mark & { readonly epoch: number; readonly token: string };

export const isNewer = (a: Seen, b: Seen | undefined): boolean =>
  b === undefined || a.epoch > b.epoch || (a.epoch === b.epoch && a.sequence > b.sequence);

const whole = (value: unknown): value is number => Number.isSafeInteger(value) && Number(value) >= 0;

const decodeSeen = (bytes: Buffer, identity: LogIdentity): Seen | undefined => {
  let value: unknown;
  try {
    value = JSON.parse(bytes.toString('utf8'));
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
  if (typeof value !== 'object' || value === null) return undefined;
  const fields: Readonly<Record<string, unknown>> = { ...value };
  const { format, cluster, instance, epoch, token, sequence, chain } = fields;
  if (format !== 1 || cluster !== identity.cluster || instance !== identity.instance) return undefined;
  if (!whole(epoch) || !whole(sequence) || !whole(chain)) return undefined;
  if (typeof token !== 'string' || !/^[0-9a-f]{32}$/.test(token)) return undefined;
  return { epoch, token, sequence, chain };
};

/** The memory of this host, or undefined when it has none. One that cannot be read is no reason to go on without. */
export const loadSeen = async (
  files: LogFiles,
  path: string,
  identity: LogIdentity,
): Promise<Seen | undefined> => {
  const unreadable = (reason: string): XceError =>
    new XceError('log-rollback', `${path} cannot be read: ${reason}`, {
      at: path,
      unchanged: 'nothing was written',
      next: 'this file says what this host has seen of the log; remove it only if you know that the log is not older',
    });
  try {
    const file = await files.open(path, 'read');
    try {
      if (!(await file.facts()).isRegular) throw unreadable('it is not a regular file');
      const bytes = Buffer.alloc(LIMITS.logNoteBytesMax);
      let length = 0;
      for (let count = -1; count !== 0 && length < bytes.length; length += count) {
        count = await file.read(bytes.subarray(length), length);
      }
      const seen = decodeSeen(bytes.subarray(0, length), identity);
      if (seen === undefined) throw unreadable('it holds something else');
      return seen;
    } finally {
      await file.close();
    }
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw storageFailure('read', path, error);
  }
};

/** Replaces the memory in one step that survives a crash. Throws the system's error. */
export const storeSeen = async (
  files: LogFiles,
  path: string,
  { cluster, instance }: LogIdentity,
  { epoch, token, sequence, chain }: Seen,
  processId: number,
): Promise<void> => {
  const text = JSON.stringify({ format: 1, cluster, instance, epoch, token, sequence, chain });
  const bytes = Buffer.from(`${text}\n`, 'utf8');
  const temporary = `${path}.new-${processId}`;
  await files.makeDirectory(dirname(path), 0o700);
  await unlinkIfThere(files, temporary);
  const file = await files.open(temporary, 'create');
  try {
    for (let done = 0; done < bytes.length; ) done += await file.append(bytes.subarray(done));
    await file.sync();
  } finally {
    await file.close();
  }
  await files.rename(temporary, path);
  await files.syncDirectory(dirname(path));
};

/** What a replay shows of the log, as far as the memory can be held against it. */
export type LogSight = {
  /** The highest number there is a file for, and the newest complete epoch. */
  readonly newest: number;
  readonly epoch: number;
  /** What the complete record of that epoch rests on. */
  readonly base: { readonly epoch: number } & Mark;
  /** Whether the remembered record was met, when it is one of that epoch. */
  readonly markMet: boolean;
  /** Token in the header of the remembered epoch's file; undefined when the file was emptied. */
  readonly tokenOfSeen: string | undefined;
};

/** Says why the log cannot be a later state of what this host has seen, or undefined. */
export const findRollback = (seen: Seen, sight: LogSight): string | undefined => {
  const { newest, epoch, base } = sight;
  if (newest < seen.epoch) return `its newest epoch is ${newest}, and this host has seen ${seen.epoch}`;
  if (sight.tokenOfSeen !== undefined && sight.tokenOfSeen !== seen.token) {
    return `epoch ${seen.epoch} is another than the one this host has seen`;
  }
  // Of an epoch of which only the header was seen it is not known whether it ever counted.
  if (seen.sequence === 0) return undefined;
  if (epoch < seen.epoch) return `epoch ${seen.epoch} was complete when this host saw it`;
  if (epoch === seen.epoch) {
    return sight.markMet
      ? undefined
      : `record ${seen.sequence} of epoch ${epoch} is gone, or not the one this host has seen`;
  }
  if (base.epoch > seen.epoch) return undefined;
  const rests =
    base.epoch === seen.epoch &&
    (base.sequence > seen.sequence || (base.sequence === seen.sequence && base.chain === seen.chain));
  return rests ? undefined : `epoch ${epoch} does not rest on record ${seen.sequence} of epoch ${seen.epoch}`;
};

/** The memory of this host as the log uses it: loaded again and again, written only forwards. */
export class HostMemory {
  readonly path: string;
  readonly #files: LogFiles;
  readonly #identity: LogIdentity;
  readonly #processId: number;
  #seen: Seen | undefined;

  constructor(files: LogFiles, path: string, identity: LogIdentity, processId: number) {
    this.#files = files;
    this.path = path;
    this.#identity = identity;
    this.#processId = processId;
  }

  /** The newest that this process or another of the host has written down. */
  async load(): Promise<Seen | undefined> {
    const seen = await loadSeen(this.#files, this.path, this.#identity);
    if (seen !== undefined && isNewer(seen, this.#seen)) this.#seen = seen;
    return this.#seen;
  }

  /** Without effect for what is not news. Throws the system's error. */
  async remember(seen: Seen): Promise<void> {
    if (!isNewer(seen, this.#seen)) return;
    await storeSeen(this.#files, this.path, this.#identity, seen, this.#processId);
    this.#seen = seen;
  }
}
