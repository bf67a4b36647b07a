/** Taking epochs: xce-sandbox-log(5), "To take epoch N" and "To create the log". */
import { XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import type { Clock } from '../os/clock.ts';
import type { LogFile, LogFiles } from '../os/log-files.ts';
import { type EncodedFrame, encodeBase, encodeFrame, encodeHeader } from './encoder.ts';
import type { EpochDirectory } from './epoch-directory.ts';
import { EpochReader } from './epoch-reader.ts';
import { appendAll, linkFailure, onStorage, reasonOf, unlinkIfThere } from './failure.ts';
import type { HeldToken, HostTokens } from './host-tokens.ts';
import type { LogNotice, LogPosition } from './log.ts';
import { type Machine, viewOf } from './machine.ts';
import type { HostMemory, Seen } from './memory.ts';
import { isSignOfLog, parseEpochName, preparedPath } from './names.ts';
import { FILE_START, type LogHeader, TOKEN_BYTES, TYPE } from './record.ts';
import { type Mark, type Replay, readHeader } from './replay.ts';
import { settleNames } from './settle.ts';
import { encodeStorage, type StorageFacts, type StoragePort } from './storage.ts';

export type EpochTakerPorts = {
  readonly files: LogFiles;
  readonly clock: Clock;
  readonly storage: StoragePort;
  randomBytes(count: number): Uint8Array;
  wait(milliseconds: number): Promise<void>;
};

/** An epoch just taken: its token is held, and the log itself not open. */
export type Taken = {
  readonly token: HeldToken;
  readonly header: LogHeader;
  readonly last: Mark;
  /** The last record that its checkpoint covers. */
  readonly base: Mark & { readonly epoch: number };
};

/**
 * What is a sign of a log is never removed without thought: with it goes what keeps uids from being given out twice.
 */
const refuseSign = (what: string, at: string): XceError =>
  new XceError('log-exists', what, {
    at,
    unchanged: 'no log was made',
    next: 'xce-sandbox lease verify; no file of a log is ever removed by hand but as xce-sandbox-log(5), RECOVERY, says',
  });

export class EpochTaker<State, Event> {
  readonly #ports: EpochTakerPorts;
  readonly #host: string;
  readonly #lockTimeoutMs: number;
  readonly #machine: Machine<State, Event>;
  readonly #directory: EpochDirectory;
  readonly #tokens: HostTokens;
  readonly #memory: HostMemory;
  readonly #reader: EpochReader<State, Event>;

  constructor(
    ports: EpochTakerPorts,
    options: { readonly host: string; readonly lockTimeoutMs: number },
    machine: Machine<State, Event>,
    parts: {
      readonly directory: EpochDirectory;
      readonly tokens: HostTokens;
      readonly memory: HostMemory;
    },
  ) {
    this.#ports = ports;
    this.#host = options.host;
    this.#lockTimeoutMs = options.lockTimeoutMs;
    this.#machine = machine;
    this.#directory = parts.directory;
    this.#tokens = parts.tokens;
    this.#memory = parts.memory;
    this.#reader = new EpochReader(parts.directory, viewOf(machine), ports.wait);
  }

  /**
   * Undefined when another was faster with the epoch, or has taken the one after it. By itself a host that owns the
   * log stays bound to the clocks it took it with; a takeover is an operator's word that they are right now.
   */
  async take(epoch: number, by: 'itself' | 'operator', notices: LogNotice[]): Promise<Taken | undefined> {
    if (epoch > LIMITS.logEpochsMax) {
      throw new XceError('log-full', `${this.#directory.path} holds ${epoch - 1} epochs`, {
        at: this.#directory.path,
        unchanged: 'no epoch was begun',
        next: 'let all leases end, then make a new log in an empty directory ([lease] directory)',
      });
    }
    const storage = await this.#directory.admit();
    const seen = await this.#memory.load();
    // After the memory, so that what another process of this host has seen meanwhile is no contradiction.
    if ((await this.#directory.newest()) !== epoch - 1) return undefined;
    const base = await this.#unlessOver(epoch - 1, () => this.#replayBase(epoch - 1, seen));
    if (base === undefined) return undefined;
    await this.#directory.removePrepared(epoch - 1);
    await this.#directory.removeLeftProbes(this.#ports.clock.wallMs());
    const held = await this.#tokens.lock(epoch, this.#deadlineMs());
    let taken: Taken | undefined;
    try {
      // The token file of an epoch that is there is somebody's proof.
      if ((await this.#directory.newest()) !== epoch - 1) return undefined;
      const header = this.#newHeader(epoch, storage);
      const own = by === 'itself' ? await this.#tokens.read(epoch - 1) : undefined;
      await this.#tokens.write(held, { token: header.token, isBusy: true, clocks: own?.clocks });
      const first = encodeFrame(TYPE.header, encodeHeader(header), FILE_START);
      await this.#link(header, [first]);
      taken = await this.#unlessOver(epoch, async () => {
        const file = await this.#openOwn(header);
        return file && (await this.#fill(held, file, header, first, seen, notices));
      });
      return taken;
    } finally {
      if (taken === undefined) await this.#tokens.release(held);
    }
  }

  /** Throws 'log-exists' where anything of a log is found, and 'storage-unfit' where none can be. */
  async requireNone(): Promise<void> {
    await this.#directory.inspect();
    await this.#refuseSigns();
  }

  /** The first epoch, whole from the moment its name is there. Throws 'log-exists'. */
  async createFirst(): Promise<LogPosition> {
    const { path } = this.#directory;
    await this.requireNone();
    await this.#directory.removePrepared(1);
    const header = this.#newHeader(1, await this.#ports.storage.probe(path));
    const { epoch, token, host, wallMs } = header;
    const first = encodeFrame(TYPE.header, encodeHeader(header), FILE_START);
    const nothing = { baseEpoch: 0, baseSequence: 0, baseChain: 0, wallMs };
    const rest = encodeBase(this.#machine.snapshot(this.#machine.empty()), nothing, first.next);
    await this.#link(header, [first, ...rest]);
    const file = await this.#openOwn(header);
    if (file === undefined) throw refuseSign('another host made the log first', path);
    const replay = this.#reader.newReplay(epoch, undefined);
    try {
      await onStorage('read', this.#directory.pathOf(epoch), () => replay.advance(file));
    } finally {
      await file.close();
    }
    // A token before the log would be a sign of a log, and keep an interrupted creation from being repeated.
    const held = await this.#tokens.lock(epoch, this.#deadlineMs());
    try {
      await this.#tokens.write(held, { token, isBusy: false });
    } finally {
      await this.#tokens.release(held);
    }
    const { last } = replay;
    await onStorage('write', this.#memory.path, () => this.#memory.remember({ epoch, token, ...last }));
    return { epoch, token, host, sequence: last.sequence };
  }

  #deadlineMs(): number {
    return this.#ports.clock.monotonicMs() + this.#lockTimeoutMs;
  }

  #newHeader(epoch: number, storage: StorageFacts): LogHeader {
    return {
      ...this.#directory.identity,
      epoch,
      token: Buffer.from(this.#ports.randomBytes(TOKEN_BYTES)).toString('hex'),
      wallMs: this.#ports.clock.wallMs(),
      host: this.#host,
      storage: encodeStorage(storage),
    };
  }

  async #refuseSigns(): Promise<void> {
    const { path } = this.#directory;
    const found = (await this.#directory.list()).find(isSignOfLog);
    if (found !== undefined) throw refuseSign(`${path} holds ${JSON.stringify(found)}`, path);
    const tokens = this.#tokens.path;
    if (await this.#tokens.exist()) throw refuseSign(`${tokens} holds the token of an epoch`, tokens);
    const memory = this.#memory.path;
    if ((await this.#memory.load()) !== undefined) throw refuseSign(`${memory} remembers a log`, memory);
  }

  /** The newest complete epoch below, which must be no older than what this host has seen. */
  async #replayBase(below: number, seen: Seen | undefined): Promise<Replay<State, Event>> {
    const { replay: base } = await this.#reader.replayNewest(async () => below, seen);
    await this.#reader.checkSeen(below, base, seen);
    return base;
  }

  /** Undefined when a step fails and there is a higher epoch: its owner may have emptied what was read or written. */
  async #unlessOver<T>(highest: number, step: () => Promise<T>): Promise<T | undefined> {
    try {
      return await step();
    } catch (error) {
      if ((await this.#directory.newest()) > highest) return undefined;
      throw error;
    }
  }

  /** Steps 3 and 4: the frames as a whole file under the epoch's name, unless the name is another's. */
  async #link({ epoch, token }: LogHeader, frames: Iterable<EncodedFrame>): Promise<void> {
    const { files } = this.#ports;
    const { path: directory } = this.#directory;
    const path = this.#directory.pathOf(epoch);
    const prepared = preparedPath(directory, epoch, token);
    let linkError: unknown;
    await onStorage('prepare', prepared, async () => {
      const file = await files.open(prepared, 'create');
      try {
        for (const { bytes } of frames) await appendAll(file, bytes);
        await file.sync();
      } catch (error) {
        await unlinkIfThere(files, prepared);
        throw error;
      } finally {
        await file.close();
      }
      try {
        await files.link(prepared, path);
      } catch (error) {
        // An answer can be lost on the way: what stands under the name says who made it.
        linkError = error;
      }
      await settleNames(this.#ports, directory, prepared);
    });
    await onStorage('fsync', directory, () => files.syncDirectory(directory));
    if (linkError === undefined) return;
    const isThere = (await this.#directory.list()).some((name) => parseEpochName(name) === epoch);
    if (!isThere) throw linkFailure(path, linkError);
  }

  /** Step 5: the epoch's file, opened by name, when the token inside is ours. */
  async #openOwn({ epoch, token }: LogHeader): Promise<LogFile | undefined> {
    const { identity } = this.#directory;
    const path = this.#directory.pathOf(epoch);
    const file = await this.#directory.open(epoch, 'append');
    if (file === undefined) throw new XceError('log-io', `${path} is gone`, { at: path });
    let isOwn = false;
    try {
      const header = await onStorage('read', path, () => readHeader(file, path, epoch, identity));
      isOwn = header?.token === token;
    } finally {
      if (!isOwn) await file.close();
    }
    return isOwn ? file : undefined;
  }

  /** Steps 6 to 8. Closes the file. */
  async #fill(
    token: HeldToken,
    file: LogFile,
    header: LogHeader,
    first: EncodedFrame,
    seen: Seen | undefined,
    notices: LogNotice[],
  ): Promise<Taken | undefined> {
    const { epoch } = header;
    const path = this.#directory.pathOf(epoch);
    let last: Mark;
    let base: Taken['base'];
    try {
      const below = await this.#replayBase(epoch - 1, seen);
      base = { epoch: below.epoch, ...below.last };
      if (below.tornBytes > 0) {
        const { offset } = below.position;
        notices.push({ kind: 'torn-tail', path: below.path, offset, bytes: below.tornBytes });
      }
      last = await onStorage('write', path, () => this.#writeBase(file, epoch, first, below));
    } finally {
      await file.close();
    }
    if (await this.#directory.hasSuccessor(epoch)) return undefined;
    await this.#tokens.mark(token, false);
    try {
      await this.#memory.remember({ epoch, token: header.token, ...last });
    } catch (error) {
      // The epoch is taken already; that this host could not write it down takes nothing from it.
      notices.push({ kind: 'not-remembered', path: this.#memory.path, reason: reasonOf(error) });
    }
    return { token, header, last, base };
  }

  /** Step 7. What comes back is replayed from the bytes, as everyone else will. Returns the complete record. */
  async #writeBase(
    file: LogFile,
    epoch: number,
    first: EncodedFrame,
    below: Replay<State, Event>,
  ): Promise<Mark> {
    const complete = {
      baseEpoch: below.epoch,
      baseSequence: below.last.sequence,
      baseChain: below.last.chain,
      wallMs: this.#ports.clock.wallMs(),
    };
    let end = first.next;
    for (const { bytes, next } of encodeBase(this.#machine.snapshot(below.state), complete, first.next)) {
      await appendAll(file, bytes);
      end = next;
    }
    await file.sync();
    const back = this.#reader.newReplay(epoch, undefined);
    await back.advance(file);
    const { position, tornBytes } = back;
    const isWhole = back.complete !== undefined && tornBytes === 0;
    if (isWhole && position.offset === end.offset && position.chain === end.chain) return back.last;
    throw new XceError('log-io', 'the checkpoint does not read back as it was written');
  }
}
