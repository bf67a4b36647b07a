/** Reading epochs: replayed from the top down, and held against what this host has seen. */
import { assert } from '../base/errors.ts';
import { damaged, emptiedOnTop, noneComplete } from './damage.ts';
import type { EpochDirectory } from './epoch-directory.ts';
import { onStorage } from './failure.ts';
import type { View } from './machine.ts';
import { findRollback, type Seen } from './memory.ts';
import { readAgain } from './read-again.ts';
import { Replay } from './replay.ts';

export class EpochReader<State, Event> {
  readonly #directory: EpochDirectory;
  readonly #view: View<State, Event>;
  readonly #wait: (milliseconds: number) => Promise<void>;

  constructor(
    directory: EpochDirectory,
    view: View<State, Event>,
    wait: (milliseconds: number) => Promise<void>,
  ) {
    this.#directory = directory;
    this.#view = view;
    this.#wait = wait;
  }

  /** A replay of an epoch's file from its start; it looks for what was seen, when that is of this epoch. */
  newReplay(epoch: number, seen: Seen | undefined): Replay<State, Event> {
    const { identity } = this.#directory;
    const file = { path: this.#directory.pathOf(epoch), epoch, identity };
    return new Replay(this.#view, file, seen?.epoch === epoch ? seen : undefined);
  }

  /**
   * Replays downwards from `from` to the first complete epoch, each file opened anew and fsynced. A file is emptied
   * only when one above it is complete: whoever meets one that is, or loses what it reads, must look from the top.
   */
  async #replayDown(from: number, seen: Seen | undefined): Promise<Replay<State, Event>> {
    for (let epoch = from; epoch >= 1; epoch--) {
      const path = this.#directory.pathOf(epoch);
      const file = await this.#directory.openExisting(epoch, 'read');
      try {
        await onStorage('fsync', path, () => file.sync());
        const replay = this.newReplay(epoch, seen);
        await onStorage('read', path, () => replay.advance(file));
        // Asked by name, because a client may have kept the size of a file that it has open.
        const bytes = await this.#directory.sizeOf(epoch);
        if (bytes === 0 || bytes < replay.position.offset + replay.tornBytes)
          throw emptiedOnTop(this.#directory.path, path);
        if (replay.complete !== undefined) return replay;
      } finally {
        await file.close();
      }
    }
    throw noneComplete(this.#directory.path);
  }

  /**
   * The newest complete epoch at or below the one that `chooseTop` gives, replayed. Looks again where a record does not
   * check: without a lock it may be on its way, and the file may have been emptied meanwhile. Throws 'log-corrupt',
   * 'log-version', 'log-foreign' or 'log-io'.
   */
  async replayNewest(
    chooseTop: () => Promise<number>,
    seen: Seen | undefined,
  ): Promise<{ readonly newest: number; readonly replay: Replay<State, Event> }> {
    const replayTop = async (): Promise<{ newest: number; replay: Replay<State, Event> }> => {
      const newest = await chooseTop();
      return { newest, replay: await this.#replayDown(newest, seen) };
    };
    return await readAgain(this.#wait, replayTop);
  }

  /** Throws 'log-rollback' when the log is not a later state of what this host has seen. */
  async checkSeen(newest: number, replay: Replay<State, Event>, seen: Seen | undefined): Promise<void> {
    if (seen === undefined) return;
    const { complete, epoch, markMet } = replay;
    assert(complete !== undefined, 'a base is complete');
    const header =
      epoch === seen.epoch || newest < seen.epoch
        ? replay.header
        : seen.epoch < epoch
          ? await this.#directory.supersededHeaderOf(seen.epoch)
          : await this.#directory.headerOf(seen.epoch);
    const problem = findRollback(seen, {
      newest,
      epoch,
      base: { epoch: complete.baseEpoch, sequence: complete.baseSequence, chain: complete.baseChain },
      markMet,
      tokenOfSeen: header?.token,
    });
    if (problem === undefined) return;
    const { path: directory } = this.#directory;
    throw damaged('rollback', `${directory}: ${problem}`, { directory }, { detail: { seen, newest } });
  }
}
