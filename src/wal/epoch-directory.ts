/** The directory of epochs: which there are, and what is in place of each name. */
import { type Answer, after } from '../base/answer.ts';
import { assert, errnoOf, XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import type { LogFile, LogFiles } from '../os/log-files.ts';
import { damaged, fileGone } from './damage.ts';
import { isWithoutStart, readFrames } from './decoder.ts';
import { onStorage, storageFailure, unlinkIfThere } from './failure.ts';
import { lookFor } from './look.ts';
import { epochPath, parseEpochName, parsePreparedName } from './names.ts';
import { removeLeftProbes } from './probe-hand.ts';
import { corruptLog, FILE_START, type LogHeader } from './record.ts';
import { type LogIdentity, readHeader } from './replay.ts';
import { type StorageFacts, type StoragePort, storageTypeOf } from './storage.ts';

export type EpochDirectoryOptions = LogIdentity & {
  readonly directory: string;
  /** See EpochLogOptions. */
  readonly isLocal?: boolean;
};

const countEpochs = (names: readonly string[]): { readonly newest: number; readonly count: number } => {
  let newest = 0;
  let count = 0;
  for (const name of names) {
    const epoch = parseEpochName(name);
    if (epoch === undefined) continue;
    count += 1;
    if (epoch > newest) newest = epoch;
  }
  return { newest, count };
};

export class EpochDirectory {
  readonly path: string;
  readonly identity: LogIdentity;
  readonly #isLocal: boolean;
  readonly #files: LogFiles;
  readonly #storage: StoragePort;
  #facts: StorageFacts | undefined;

  constructor(
    files: LogFiles,
    { directory, cluster, instance, isLocal = false }: EpochDirectoryOptions,
    storage: StoragePort,
  ) {
    this.#isLocal = isLocal;
    this.#files = files;
    this.path = directory;
    this.identity = { cluster, instance };
    this.#storage = storage;
  }

  pathOf(epoch: number): string {
    return epochPath(this.path, epoch);
  }

  /** All names, read anew. Throws 'log-missing' when there is no such directory. */
  async list(): Promise<readonly string[]> {
    let names: readonly string[];
    try {
      names = await this.#files.list(this.path);
    } catch (error) {
      const errno = errnoOf(error);
      if (errno !== 'ENOENT' && errno !== 'ENOTDIR') throw storageFailure('list', this.path, error);
      throw damaged(
        'directory',
        `${this.path} is not a directory`,
        { directory: this.path },
        { cause: error },
      );
    }
    if (names.length <= LIMITS.logNamesMax) return names;
    throw damaged('record', `${this.path} holds more than ${LIMITS.logNamesMax} names`, {
      directory: this.path,
    });
  }

  /** The highest epoch there is a name for. Throws 'log-missing' when there is none, 'log-corrupt' for a gap. */
  async newest(): Promise<number> {
    let { newest, count } = countEpochs(await this.list());
    // A listing may miss a name that is linked while it runs, and show one that is linked later.
    if (newest !== count) ({ newest, count } = countEpochs(await this.list()));
    if (newest !== count) {
      throw damaged('gap', `${this.path} has epoch ${newest}, but not every one below it`, {
        directory: this.path,
      });
    }
    if (newest > 0) return newest;
    const { type, path } = await this.inspect();
    const { path: directory } = this;
    const what = `${type}, mounted at ${path}`;
    throw damaged('none', `${directory} holds no lease log`, { directory, what }, { at: directory });
  }

  /**
   * To look: lists the directory anew and opens the next name. On a disk of this host alone, where no answer is stale,
   * the two names are asked for and nothing is listed or opened.
   */
  hasSuccessor(epoch: number): Answer<boolean> {
    const next = this.pathOf(epoch + 1);
    if (!this.#isLocal) return lookFor(this.#files, next, async () => (await this.newest()) > epoch);
    return after(this.#askFor(epoch), (identity) => {
      // That the epoch's own name is there stands for the listing: that it is the directory of the log.
      if (identity === undefined) throw fileGone(this.pathOf(epoch));
      return after(this.#askFor(epoch + 1), (successor) => successor !== undefined);
    });
  }

  /**
   * What stands under the name of an epoch if that is the highest, else undefined: as good as a look where nothing is
   * to be acknowledged.
   */
  identifyNewest(epoch: number): Answer<string | undefined> {
    if (!this.#isLocal) {
      return this.newest().then((newest) => (newest === epoch ? this.#askFor(epoch) : undefined));
    }
    return after(this.#askFor(epoch), (identity) =>
      identity === undefined
        ? undefined
        : after(this.#askFor(epoch + 1), (next) => (next === undefined ? identity : undefined)),
    );
  }

  /** `identity` of what stands under the name of an epoch now. */
  #askFor(epoch: number): Answer<string | undefined> {
    const path = this.pathOf(epoch);
    return onStorage('look for', path, () => this.#files.identify(path));
  }

  /** Opens an epoch's file; undefined when there is none. Throws 'log-corrupt' for what is not a regular file. */
  async open(epoch: number, purpose: 'read' | 'append'): Promise<LogFile | undefined> {
    const path = this.pathOf(epoch);
    let file: LogFile;
    try {
      file = await this.#files.open(path, purpose);
    } catch (error) {
      const errno = errnoOf(error);
      if (errno === 'ENOENT') return undefined;
      if (errno === 'ELOOP' || errno === 'ENXIO' || errno === 'EISDIR') {
        throw corruptLog(path, 0, 'it is not a regular file', error);
      }
      throw storageFailure('open', path, error);
    }
    try {
      const { isRegular } = await onStorage('look at', path, () => file.facts());
      if (!isRegular) throw corruptLog(path, 0, 'it is not a regular file');
      return file;
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  /** The same for an epoch that must be there: no name of one is ever removed. */
  async openExisting(epoch: number, purpose: 'read' | 'append'): Promise<LogFile> {
    const file = await this.open(epoch, purpose);
    if (file !== undefined) return file;
    throw fileGone(this.pathOf(epoch));
  }

  async #withFile<T>(
    epoch: number,
    what: string,
    use: (file: LogFile, path: string) => Promise<T>,
  ): Promise<T> {
    const path = this.pathOf(epoch);
    const file = await this.openExisting(epoch, 'read');
    try {
      return await onStorage(what, path, () => use(file, path));
    } finally {
      await file.close();
    }
  }

  /** The header of an epoch's file; undefined when the file is empty or ends within it. */
  async headerOf(epoch: number): Promise<LogHeader | undefined> {
    return await this.#withFile(epoch, 'read', (file, path) => readHeader(file, path, epoch, this.identity));
  }

  /** Bytes of an epoch's file, asked afresh. */
  async sizeOf(epoch: number): Promise<number> {
    return await this.#withFile(epoch, 'look at', async (file) => (await file.facts()).bytes);
  }

  /**
   * The header of an epoch below one that is complete; undefined as well when its file was emptied, even if a write
   * that its owner had begun before landed in it afterwards.
   */
  async supersededHeaderOf(epoch: number): Promise<LogHeader | undefined> {
    return await this.#withFile(epoch, 'read', async (file, path) =>
      (await isWithoutStart(file)) ? undefined : await readHeader(file, path, epoch, this.identity),
    );
  }

  /**
   * Gives up the bytes of a file that counts no more, unless it ends in a torn tail: then it is what an operator who
   * asks what was lost has left. Throws the system's error, and 'log-corrupt' for one that does not check.
   */
  async empty(epoch: number): Promise<void> {
    const file = await this.open(epoch, 'append');
    if (file === undefined) return;
    try {
      if (await this.#endsTorn(file, this.pathOf(epoch))) return;
      await file.empty();
      await file.sync();
    } finally {
      await file.close();
    }
  }

  async #endsTorn(file: LogFile, path: string): Promise<boolean> {
    // A write that landed in a file which was emptied before.
    if (await isWithoutStart(file)) return false;
    const { tornBytes } = await readFrames(file, path, FILE_START, () => undefined);
    return tornBytes > 0;
  }

  /** What the directory lies on. Throws 'storage-unfit'. */
  async inspect(): Promise<StorageFacts> {
    this.#facts ??= await this.#storage.look(this.path);
    return this.#facts;
  }

  /** The same for whoever is to write, as it is now: a mount can change while a process runs. */
  async admit(): Promise<StorageFacts> {
    return await this.#storage.admit(this.path);
  }

  /** A copy of the log on other storage is another log, whatever stands in it. */
  async checkStorage(header: LogHeader): Promise<void> {
    const { type, path } = await this.inspect();
    const expected = storageTypeOf(header.storage);
    if (expected === type) return;
    const was = expected === undefined ? 'storage that its header does not name' : expected;
    throw new XceError(
      'storage-unfit',
      `epoch ${header.epoch} was written on ${was}, and ${this.path} lies on ${type}, mounted at ${path}`,
      { at: this.path, next: 'mount the storage of the lease log' },
    );
  }

  /** Removes what probes left that were killed. */
  async removeLeftProbes(wallMs: number): Promise<void> {
    await onStorage('tidy', this.path, () => removeLeftProbes(this.#files, this.path, wallMs));
  }

  /** Removes what takes of epochs up to this one prepared and left. */
  async removePrepared(epoch: number): Promise<void> {
    assert(Number.isSafeInteger(epoch), 'an epoch is a whole number');
    for (const name of await this.list()) {
      const prepared = parsePreparedName(name);
      if (prepared === undefined || prepared > epoch) continue;
      const path = `${this.path}/${name}`;
      await onStorage('remove', path, () => unlinkIfThere(this.#files, path));
    }
  }
}
