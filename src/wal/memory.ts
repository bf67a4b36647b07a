/**
 * What this host has seen of the log, kept on its own disk. Storage can come back older than it was (a restored
 * snapshot, an export without sync, a wrong mount): the log alone cannot tell, the controllers together can.
 */
import { type Answer, after } from '../base/answer.ts';
import { assert, errnoOf, type XceError } from '../base/errors.ts';
import type { Clock } from '../os/clock.ts';
import type { LogFile, LogFiles } from '../os/log-files.ts';
import { crcOf } from './crc.ts';
import { damaged } from './damage.ts';
import { onStorage, overwriteAll, replaceHostFile, storageFailure } from './failure.ts';
import type { LogIdentity, Mark } from './replay.ts';

/** A record that was acknowledged. The header (sequence 0) stands for an epoch of which no more is known. */
export type Seen = Mark & { readonly epoch: number; readonly token: string };

const isNewer = (a: Seen, b: Seen | undefined): boolean =>
  b === undefined || a.epoch > b.epoch || (a.epoch === b.epoch && a.sequence > b.sequence);

/**
 * The file has two lines of one length, each a whole memory, and the older one is written over: so that at any
 * moment one of them can be read, and that a commit costs one small write more, and not a new file. A line is a sector,
 * the least that a disk writes, and writes as a whole: both may be on their way to it.
 */
const LINE_BYTES = 512;
const LINES = 2;
const CHECK_CHARS = 8;
/** A process that commits again and again does not wait for two disks each time. */
const SYNC_MS = 1000;

const whole = (value: unknown): value is number => Number.isSafeInteger(value) && Number(value) >= 0;

/** Makes the lines of one memory, each in the place of the one before: of two in a row only the numbers differ. */
class LineEncoder {
  readonly #identity: LogIdentity;
  readonly #line = Buffer.alloc(LINE_BYTES, ' ');
  /** What the line begins with as long as the epoch is the same, and how much of it that is. */
  #start:
    | { readonly epoch: number; readonly token: string; readonly bytes: number; readonly crc: number }
    | undefined;
  /** Where the numbers of the last line end: there are spaces from here to the checksum. */
  #end = LINE_BYTES;

  constructor(identity: LogIdentity) {
    this.#identity = identity;
  }

  #startOf({ epoch, token }: Seen): { readonly bytes: number; readonly crc: number } {
    if (this.#start?.epoch === epoch && this.#start.token === token) return this.#start;
    const { cluster, instance } = this.#identity;
    const text = JSON.stringify({ format: 1, cluster, instance, epoch, token });
    const bytes = this.#line.write(text.slice(0, -1), 'utf8');
    this.#start = { epoch, token, bytes, crc: crcOf(this.#line, 0, bytes) };
    return this.#start;
  }

  /** Good until the next call. */
  encode(seen: Seen): Buffer {
    const line = this.#line;
    const { bytes, crc } = this.#startOf(seen);
    const end = bytes + line.write(`,"sequence":${seen.sequence},"chain":${seen.chain}}`, bytes, 'latin1');
    assert(end < LINE_BYTES - 16, 'a memory fits into its line');
    if (end < this.#end) line.fill(' ', end, LINE_BYTES - CHECK_CHARS - 1);
    this.#end = end;
    const check = crcOf(line, bytes, end, crc).toString(16).padStart(CHECK_CHARS, '0');
    line.write(`${check}\n`, LINE_BYTES - CHECK_CHARS - 1, 'latin1');
    return line;
  }
}

/** Undefined for a line that is not whole, or of another log. */
const decodeLine = (line: Buffer, identity: LogIdentity): Seen | undefined => {
  const body = Buffer.from(line.toString('utf8', 0, LINE_BYTES - CHECK_CHARS - 1).trimEnd(), 'utf8');
  if (
    line.toString('latin1', LINE_BYTES - CHECK_CHARS - 1) !==
    `${crcOf(body, 0, body.length).toString(16).padStart(CHECK_CHARS, '0')}\n`
  ) {
    return undefined;
  }
  const value: unknown = JSON.parse(body.toString('utf8'));
  if (typeof value !== 'object' || value === null) return undefined;
  const fields: Readonly<Record<string, unknown>> = { ...value };
  const { format, cluster, instance, epoch, token, sequence, chain } = fields;
  if (format !== 1 || cluster !== identity.cluster || instance !== identity.instance) return undefined;
  if (!whole(epoch) || !whole(sequence) || !whole(chain)) return undefined;
  if (typeof token !== 'string' || !/^[0-9a-f]{32}$/.test(token)) return undefined;
  return { epoch, token, sequence, chain };
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

const unreadableMemory = (path: string, reason: string): XceError =>
  damaged('memory', `${path} cannot be read: ${reason}`, { directory: path });

/** The newer line of a memory, and which one it is. Throws 'log-rollback' when there is none of this log. */
const readLines = async (
  file: LogFile,
  path: string,
  identity: LogIdentity,
): Promise<{ readonly seen: Seen; readonly line: number }> => {
  if (!(await onStorage('look at', path, () => file.facts())).isRegular) {
    throw unreadableMemory(path, 'it is not a regular file');
  }
  const bytes = Buffer.alloc(LINES * LINE_BYTES);
  // Local and smaller than a page: one read gives all of it.
  const length = await onStorage('read', path, () => file.read(bytes, 0));
  let newest: { readonly seen: Seen; readonly line: number } | undefined;
  for (let line = 0; (line + 1) * LINE_BYTES <= length; line++) {
    const seen = decodeLine(bytes.subarray(line * LINE_BYTES, (line + 1) * LINE_BYTES), identity);
    if (seen !== undefined && isNewer(seen, newest?.seen)) newest = { seen, line };
  }
  if (newest === undefined) throw unreadableMemory(path, 'it holds no memory of this log');
  return newest;
};

/** What a host has seen, read without a change to anything; undefined when it has seen nothing. */
export const readSeen = async (
  files: LogFiles,
  path: string,
  identity: LogIdentity,
): Promise<Seen | undefined> => {
  let file: LogFile;
  try {
    file = await files.open(path, 'read');
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw storageFailure('read', path, error);
  }
  try {
    return (await readLines(file, path, identity)).seen;
  } finally {
    await file.close();
  }
};

export type HostMemoryPorts = {
  readonly files: LogFiles;
  readonly clock: Clock;
  readonly processId: number;
};

/**
 * The memory of this host as the log uses it: loaded again and again, written only forwards. What is written survives
 * the process at once. It survives the host when it was fsynced: with the first record of a process or of an epoch, at
 * most once a second after that, and when the memory is closed.
 */
export class HostMemory {
  readonly path: string;
  readonly #files: LogFiles;
  readonly #clock: Clock;
  readonly #identity: LogIdentity;
  readonly #processId: number;
  readonly #lines: LineEncoder;
  #file: LogFile | undefined;
  #seen: Seen | undefined;
  /** The epoch and the time of the last fsync of this process. */
  #synced: { readonly epoch: number; readonly untilMs: number } | undefined;
  #isSynced = true;
  /** The line to write next: not the one that holds `#seen`. */
  #nextLine = 0;

  constructor({ files, clock, processId }: HostMemoryPorts, path: string, identity: LogIdentity) {
    this.#files = files;
    this.#clock = clock;
    this.path = path;
    this.#identity = identity;
    this.#processId = processId;
    this.#lines = new LineEncoder(identity);
  }

  /** The newest that this process or another of the host has written down. One that cannot be read is refused. */
  async load(): Promise<Seen | undefined> {
    const { path } = this;
    const file = await onStorage('read', path, () => this.#open());
    if (file === undefined) return this.#seen;
    const { seen, line } = await readLines(file, path, this.#identity);
    if (this.#seen === undefined || !isNewer(this.#seen, seen)) {
      this.#seen = seen;
      this.#nextLine = 1 - line;
    }
    return this.#seen;
  }

  /** Without effect for what is not news. Throws the system's error. */
  remember(seen: Seen): Answer<void> {
    if (!isNewer(seen, this.#seen)) return;
    const line = this.#lines.encode(seen);
    const syncIfDue = (): Answer<void> => {
      this.#seen = seen;
      this.#nextLine = 1 - this.#nextLine;
      return this.#isDue(seen) ? this.#sync() : undefined;
    };
    return after(this.#open(), (file) => {
      if (file === undefined) return this.#create(line, seen).then(syncIfDue);
      return after(overwriteAll(file, line, this.#nextLine * LINE_BYTES), () => {
        this.#isSynced = false;
        return syncIfDue();
      });
    });
  }

  /** Throws the system's error when what was written may not survive the host. */
  async close(): Promise<void> {
    try {
      await this.#sync();
    } finally {
      const file = this.#file;
      this.#file = undefined;
      await file?.close();
    }
  }

  #isDue({ epoch }: Seen): boolean {
    const synced = this.#synced;
    return synced === undefined || synced.epoch < epoch || synced.untilMs <= this.#clock.monotonicMs();
  }

  async #sync(): Promise<void> {
    if (this.#isSynced || this.#file === undefined || this.#seen === undefined) return;
    await this.#file.sync();
    this.#noteSynced(this.#seen);
  }

  #noteSynced({ epoch }: Seen): void {
    this.#isSynced = true;
    this.#synced = { epoch, untilMs: this.#clock.monotonicMs() + SYNC_MS };
  }

  #open(): Answer<LogFile | undefined> {
    return this.#file ?? this.#openNow();
  }

  async #openNow(): Promise<LogFile | undefined> {
    try {
      this.#file = await this.#files.open(this.path, 'update');
    } catch (error) {
      if (errnoOf(error) !== 'ENOENT') throw error;
    }
    return this.#file;
  }

  /** With the second line still empty. */
  async #create(line: Buffer, seen: Seen): Promise<void> {
    const bytes = Buffer.concat([line, Buffer.alloc(LINE_BYTES, ' ')]);
    await replaceHostFile(this.#files, this.path, this.#processId, bytes);
    this.#nextLine = 0;
    this.#noteSynced(seen);
  }
}
