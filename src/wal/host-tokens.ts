/** The token files of this host: who may work in an epoch here, one process at a time. */
import { dirname } from 'node:path';
import { type Answer, after, attempt } from '../base/answer.ts';
import { assert, errnoOf, XceError } from '../base/errors.ts';
import type { Clock } from '../os/clock.ts';
import type { LogFile, LogFiles } from '../os/log-files.ts';
import { lockFailure, reasonOf, unlinkIfThere } from './failure.ts';
import { parseTokenName, tokenPath } from './names.ts';
import { type Clocks, parseToken, readTokenText, type Token, writeMark, writeToken } from './token.ts';

/** A locked token file, until it is released or kept. */
export type HeldToken = {
  readonly epoch: number;
  readonly path: string;
  readonly file: LogFile;
  isHeld: boolean;
};

/** A token file that is open and not locked. */
export type KeptToken = Pick<HeldToken, 'epoch' | 'path' | 'file'>;

export type HostTokensPorts = {
  readonly files: LogFiles;
  readonly clock: Clock;
  readonly bootId: string;
  wait(milliseconds: number): Promise<void>;
};

const WAIT_MS_MIN = 1;
/** Between two questions for a lock that a server may have to answer, and for one of this host. */
const WAIT_MS_MAX = 50;
const HOST_WAIT_MS_MAX = 4;
/** Who locks a token again and again leaves it free so often, for so long: nobody who asks for it misses that. */
const FREE_EVERY_MS = 500;
const FREE_MS = 2 * HOST_WAIT_MS_MAX;

/** Whether the lock is given at once. */
const isLocked = (file: LogFile, path: string): boolean => {
  try {
    return file.tryLock();
  } catch (error) {
    throw lockFailure(path, error);
  }
};

/** Asks for a lock until it is given or the deadline has passed. */
export const pollLock = (
  file: LogFile,
  path: string,
  deadlineMs: number,
  { clock, wait }: HostTokensPorts,
  waitMsMax = WAIT_MS_MAX,
): Answer<void> => {
  const askAgain = async (): Promise<void> => {
    for (let waitMs = WAIT_MS_MIN; ; waitMs = Math.min(2 * waitMs, waitMsMax)) {
      if (clock.monotonicMs() + waitMs > deadlineMs) {
        throw new XceError('log-busy', `another process holds ${path}`, {
          at: path,
          unchanged: 'nothing was written to the lease log',
          next: 'try again',
        });
      }
      await wait(waitMs);
      if (isLocked(file, path)) return;
    }
  };
  return isLocked(file, path) ? undefined : askAgain();
};

export class HostTokens {
  readonly path: string;
  readonly #ports: HostTokensPorts;
  /** When a kept token was last given back, and when it was last free for long enough. */
  #keptMs = 0;
  #freeMs = 0;
  /** What was read last: each commit of a process finds what the one before has left there. */
  #last: { readonly text: string; readonly token: Token | undefined } | undefined;

  constructor(ports: HostTokensPorts, runDirectory: string) {
    this.#ports = ports;
    this.path = runDirectory;
  }

  clocksNow(): Clocks {
    const { clock } = this.#ports;
    return { wallMs: clock.wallMs(), monotonicMs: clock.monotonicMs() };
  }

  #pathOf(epoch: number): string {
    return tokenPath(this.path, epoch);
  }

  #onFile<T>(path: string, step: () => Answer<T>): Answer<T> {
    return attempt(step, (error) => {
      if (error instanceof XceError) throw error;
      throw new XceError('io', `cannot use ${path}: ${reasonOf(error)}`, {
        at: path,
        unchanged: 'nothing was written to the lease log',
        cause: error,
      });
    });
  }

  async #openRegular(path: string, purpose: 'read' | 'update' | 'token'): Promise<LogFile> {
    const file = await this.#ports.files.open(path, purpose);
    try {
      if ((await file.facts()).isRegular) return file;
    } catch (error) {
      await file.close();
      throw error;
    }
    await file.close();
    throw new XceError('io', `${path} is not a regular file`, {
      at: path,
      unchanged: 'nothing was written to the lease log',
    });
  }

  async #openOrMake(path: string): Promise<LogFile> {
    try {
      return await this.#openRegular(path, 'token');
    } catch (error) {
      if (errnoOf(error) !== 'ENOENT') throw error;
    }
    // The directory of the instance is shared with a worker of this host, whose sockets others must reach.
    await this.#ports.files.makeDirectory(dirname(this.path), 0o711);
    await this.#ports.files.makeDirectory(this.path, 0o700);
    return await this.#openRegular(path, 'token');
  }

  /** Whether this host has tokens of any epoch. */
  async exist(): Promise<boolean> {
    return await this.#onFile(this.path, async () => {
      try {
        return (await this.#ports.files.list(this.path)).some((name) => parseTokenName(name) !== undefined);
      } catch (error) {
        if (errnoOf(error) === 'ENOENT') return false;
        throw error;
      }
    });
  }

  /** The token of an epoch that counts in this boot, read without a lock. */
  async read(epoch: number): Promise<Token | undefined> {
    const path = this.#pathOf(epoch);
    return await this.#onFile(path, async () => {
      let file: LogFile;
      try {
        file = await this.#openRegular(path, 'read');
      } catch (error) {
        if (errnoOf(error) === 'ENOENT') return undefined;
        throw error;
      }
      try {
        return await this.#readOwn(file);
      } finally {
        await file.close();
      }
    });
  }

  /** The token in a file; undefined when it is of another boot, or cannot be read. */
  #readOwn(file: LogFile): Answer<Token | undefined> {
    return after(readTokenText(file), (text) => {
      if (this.#last?.text !== text) this.#last = { text, token: parseToken(text) };
      const { token } = this.#last;
      return token?.bootId === this.#ports.bootId ? token : undefined;
    });
  }

  #lockOpen(file: LogFile, epoch: number, path: string, deadlineMs: number): Answer<HeldToken> {
    return attempt(
      () =>
        after(
          pollLock(file, path, deadlineMs, this.#ports, HOST_WAIT_MS_MAX),
          (): HeldToken => ({ epoch, path, file, isHeld: true }),
        ),
      (error) =>
        after(file.close(), () => {
          throw error;
        }),
    );
  }

  /** Locks the token file of an epoch, making it where it is missing. Throws 'log-busy' at the deadline. */
  async lock(epoch: number, deadlineMs: number): Promise<HeldToken> {
    const path = this.#pathOf(epoch);
    return await this.#onFile(path, async () =>
      this.#lockOpen(await this.#openOrMake(path), epoch, path, deadlineMs),
    );
  }

  /** Locks the token file that an epoch of this host has; undefined when there is none. */
  async lockOwn(epoch: number, deadlineMs: number): Promise<HeldToken | undefined> {
    const path = this.#pathOf(epoch);
    return await this.#onFile(path, async () => {
      let file: LogFile;
      try {
        file = await this.#openRegular(path, 'update');
      } catch (error) {
        if (errnoOf(error) === 'ENOENT') return undefined;
        throw error;
      }
      this.#freeMs = this.#ports.clock.monotonicMs();
      return await this.#lockOpen(file, epoch, path, deadlineMs);
    });
  }

  /**
   * Removes the tokens of epochs below one that is complete. Whoever has such a file open, or waits for its lock, finds
   * that its epoch is over before it writes to the log.
   */
  async removeBelow(epoch: number): Promise<void> {
    await this.#onFile(this.path, async () => {
      for (const name of await this.#ports.files.list(this.path)) {
        const number = parseTokenName(name);
        if (number !== undefined && number < epoch)
          await unlinkIfThere(this.#ports.files, this.#pathOf(number));
      }
    });
  }

  /** What stands in a token file that is held; undefined for a token of another boot. */
  look({ path, file }: HeldToken): Answer<Token | undefined> {
    return this.#onFile(path, () => this.#readOwn(file));
  }

  /** Writes a token of this boot; `clocks` are those of now unless the host has owned the log before. */
  async write(
    { path, file }: HeldToken,
    {
      token,
      isBusy,
      clocks = this.clocksNow(),
    }: Pick<Token, 'token' | 'isBusy'> & { clocks?: Clocks | undefined },
  ): Promise<void> {
    const { bootId } = this.#ports;
    await this.#onFile(path, () => writeToken(file, { token, bootId, isBusy, clocks }));
  }

  /** Writes that something has begun, or has ended, in the epoch. */
  mark({ path, file }: HeldToken, isBusy: boolean): Answer<void> {
    const { bootId } = this.#ports;
    return this.#onFile(path, () => writeMark(file, bootId, isBusy));
  }

  /** Gives the lock back, once. */
  release(held: HeldToken): Answer<void> {
    if (!held.isHeld) return;
    held.isHeld = false;
    return held.file.close();
  }

  /**
   * Gives the lock back and keeps the file. For an epoch of which this process has the log open: as long as the name of
   * the log stands for that one, no other file becomes the token's.
   */
  keep(held: HeldToken): Answer<KeptToken | undefined> {
    assert(held.isHeld, 'a token that is kept was held');
    try {
      held.file.unlock();
    } catch {
      // Closing gives it back where unlocking fails.
      return after(this.release(held), () => undefined);
    }
    held.isHeld = false;
    this.#keptMs = this.#ports.clock.monotonicMs();
    return held;
  }

  /** A lock that is asked for by polling is not given to whoever has waited for longest. */
  #letOthers(): Answer<void> {
    const { clock, wait } = this.#ports;
    const nowMs = clock.monotonicMs();
    if (nowMs - this.#freeMs <= FREE_EVERY_MS) return;
    const free = (): void => {
      this.#freeMs = clock.monotonicMs();
    };
    return nowMs - this.#keptMs < FREE_MS ? wait(FREE_MS).then(free) : free();
  }

  /** Locks a file that was kept, and closes it where it cannot. Throws 'log-busy' at the deadline. */
  lockKept({ epoch, path, file }: KeptToken, deadlineMs: number): Answer<HeldToken> {
    return after(this.#letOthers(), () =>
      this.#onFile(path, () => this.#lockOpen(file, epoch, path, deadlineMs)),
    );
  }
}
