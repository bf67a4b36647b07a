/**
 * What this host has written down of its last probe of shared storage, on its own disk: xce-sandbox-log(5), THE
 * PROBE. Mount options are those of one client, so another host's probe says nothing of them.
 */
import { dirname } from 'node:path';
import { errnoOf, XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import type { LogFile, LogFiles } from '../os/log-files.ts';
import type { MountPlace } from '../os/mount-table.ts';
import { readUpTo } from './decoder.ts';
import { onStorage, replaceHostFile, unlinkIfThere } from './failure.ts';
import type { LogIdentity } from './replay.ts';
import type { ProbeReport } from './storage.ts';

/** What of a mount must be the same for a probe to hold. */
export type MountMarks = {
  readonly type: string;
  readonly source: string;
  /** Sorted; see OPTIONS_WITHOUT_EFFECT. */
  readonly options: readonly string[];
};

export type HostRecord = LogIdentity & {
  /** This host's clock when the probe had passed. */
  readonly wallMs: number;
  readonly mount: MountMarks;
  readonly probe: ProbeReport;
};

/** Options that say nothing of what a client shows: access times, devices, execution, and addresses that may change. */
const OPTIONS_WITHOUT_EFFECT =
  /^(?:(?:no|rel|strict|lazy|nodir)?(?:atime|diratime)|lazytime|(?:no)?(?:suid|dev|exec)|(?:addr|clientaddr|mountaddr|mountport|mountvers|mountproto)=.*|(?:user|group)_id=.*)$/;

export const marksOf = (
  mount: Pick<MountPlace, 'type' | 'source' | 'options' | 'superOptions'>,
): MountMarks => ({
  type: mount.type,
  source: mount.source,
  options: [...new Set([...mount.options, ...mount.superOptions])]
    .filter((option) => !OPTIONS_WITHOUT_EFFECT.test(option))
    .sort(),
});

/** Says in what the mount differs from the one that was probed, or undefined. */
export const findChange = (probed: MountMarks, now: MountMarks): string | undefined => {
  if (probed.type !== now.type) return `its type was ${probed.type} and is ${now.type}`;
  if (probed.source !== now.source) return `its source was ${probed.source} and is ${now.source}`;
  const gone = probed.options.filter((option) => !now.options.includes(option));
  const come = now.options.filter((option) => !probed.options.includes(option));
  if (gone.length + come.length === 0) return undefined;
  const list = (options: readonly string[]): string => options.join(',') || 'nothing';
  return `its options had ${list(gone)} and have ${list(come)} instead`;
};

const isRecord = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

const isTexts = (value: unknown): value is readonly string[] =>
  Array.isArray(value) && value.every((each) => typeof each === 'string');

const decodeMount = (value: unknown): MountMarks | undefined => {
  if (!isRecord(value)) return undefined;
  const { type, source, options } = value;
  if (typeof type !== 'string' || typeof source !== 'string' || !isTexts(options)) return undefined;
  return { type, source, options };
};

const decodeProbe = (value: unknown): ProbeReport | undefined => {
  if (!isRecord(value) || !isTexts(value['kept']) || !isRecord(value['peer'])) return undefined;
  const { node, rounds, stale } = value['peer'];
  if (typeof node !== 'string' || !Number.isSafeInteger(rounds) || stale !== 0) return undefined;
  return { kept: value['kept'], peer: { node, rounds: Number(rounds), stale } };
};

const parse = (text: string): unknown => {
  try {
    return JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
};

/** Undefined for what is not a record of a probe that passed. */
export const decodeRecord = (text: string): HostRecord | undefined => {
  const value = parse(text);
  if (!isRecord(value) || value['format'] !== 1) return undefined;
  const { cluster, instance, wallMs } = value;
  const mount = decodeMount(value['mount']);
  const probe = decodeProbe(value['probe']);
  if (typeof cluster !== 'string' || typeof instance !== 'string') return undefined;
  if (typeof wallMs !== 'number' || mount === undefined || probe === undefined) return undefined;
  return { cluster, instance, wallMs, mount, probe };
};

export class HostRecordFile {
  readonly #files: LogFiles;
  readonly #path: string;
  readonly #identity: LogIdentity;
  readonly #processId: number;

  constructor(files: LogFiles, path: string, identity: LogIdentity, processId: number) {
    this.#files = files;
    this.#path = path;
    this.#identity = identity;
    this.#processId = processId;
  }

  #unreadable(reason: string): XceError {
    return new XceError('storage-unfit', `${this.#path} ${reason}`, {
      at: this.#path,
      unchanged: 'nothing was written to the lease log',
      next: 'xce-sandbox lease probe --peer HOST writes it anew',
    });
  }

  /** Undefined when there is none. Throws 'storage-unfit' for one that says nothing, or of another log. */
  async read(): Promise<HostRecord | undefined> {
    const text = await onStorage('read', this.#path, () => this.#readText());
    if (text === undefined) return undefined;
    const record = decodeRecord(text);
    if (record === undefined) throw this.#unreadable('is not the record of a probe that passed');
    const { cluster, instance } = this.#identity;
    if (record.cluster === cluster && record.instance === instance) return record;
    throw this.#unreadable(`is of ${record.cluster}, instance ${record.instance}`);
  }

  async #readText(): Promise<string | undefined> {
    let file: LogFile;
    try {
      file = await this.#files.open(this.#path, 'read');
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return undefined;
      throw error;
    }
    try {
      const bytes = Buffer.alloc(LIMITS.probeRecordBytesMax + 1);
      const length = await readUpTo(file, bytes, 0);
      if (length === bytes.length) throw this.#unreadable('is longer than any record of a probe');
      return bytes.toString('utf8', 0, length);
    } finally {
      await file.close();
    }
  }

  /** For storage that has been shown not to keep a promise: what another probe had shown counts no more. */
  async remove(): Promise<void> {
    await onStorage('remove', this.#path, async () => {
      if (!(await unlinkIfThere(this.#files, this.#path))) return;
      await this.#files.syncDirectory(dirname(this.#path));
    });
  }

  async write(record: Omit<HostRecord, keyof LogIdentity>): Promise<void> {
    const text = `${JSON.stringify({ format: 1, ...this.#identity, ...record }, null, 2)}\n`;
    await onStorage('write', this.#path, () =>
      replaceHostFile(this.#files, this.#path, this.#processId, Buffer.from(text, 'utf8')),
    );
  }
}
