/** Real storage that falls silent in each call of a commit in turn, and does late what it was asked for. */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { XceError } from '../../src/base/errors.ts';
import { filesWithin, hasStuckCalls } from '../../src/os/log-deadline.ts';
import { type LogFiles, logFiles } from '../../src/os/log-files.ts';
import type { StoragePort } from '../../src/wal/storage.ts';
import { localPlace, openLogAt, openRealLog } from './real-log.ts';
import { decideGrant, grantMachine } from './world.ts';

/** Ample for a call on a busy machine: one that is late without being silent would say nothing. */
const TIMEOUT_MS = 150;
const CALLS_MAX = 100;

/** The storage as such is not in question. */
const FACTS = { type: 'ext4', source: '/dev/vda', path: '/' };
const PORT: StoragePort = { look: async () => FACTS, admit: async () => FACTS, probe: async () => FACTS };

let root = '';
beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'xce-silent-'));
});
afterAll(() => rmSync(root, { recursive: true }));

/** The files of a log; call number `silentAt` below its directory waits for the gate. A lock has no deadline. */
class Storage {
  readonly files: LogFiles;
  calls = 0;
  openGate = (): void => undefined;
  readonly #gate: Promise<void>;
  readonly #silentAt: number;

  constructor(directory: string, silentAt: number) {
    this.#silentAt = silentAt;
    this.#gate = new Promise((resolve) => {
      this.openGate = resolve;
    });
    const wrap = <T extends object>(target: T, isOnStorage: (words: readonly unknown[]) => boolean): T =>
      new Proxy(target, {
        get: (_, name) => {
          const call: unknown = Reflect.get(target, name);
          if (typeof call !== 'function' || name === 'tryLock' || name === 'unlock') return call;
          return async (...words: unknown[]) => {
            const isOn = isOnStorage(words);
            if (isOn) await this.#pass();
            const answer: unknown = await Reflect.apply(call, target, words);
            return isOn && name === 'open' ? wrap(answer as object, () => true) : answer;
          };
        },
      });
    this.files = wrap(logFiles, ([path]) => String(path).startsWith(directory));
  }

  async #pass(): Promise<void> {
    this.calls += 1;
    if (this.calls === this.#silentAt) await this.#gate;
  }
}

test('a commit says what became of it, whichever of its calls does not return', async () => {
  const outcomes = new Map<string, number>();
  for (let silentAt = 1; ; silentAt += 1) {
    expect(silentAt).toBeLessThan(CALLS_MAX);
    const place = localPlace(join(root, String(silentAt)), 'a');
    mkdirSync(place.directory, { recursive: true, mode: 0o700 });
    const maker = openRealLog(place, PORT);
    await maker.init();
    await maker.commit((state) => decideGrant(state, 'first'));
    await maker.close();

    const storage = new Storage(place.directory, silentAt);
    const files = filesWithin(TIMEOUT_MS, storage.files);
    const log = openLogAt(place, grantMachine, undefined, PORT, files, logFiles);
    const [commit] = await Promise.allSettled([log.commit((state) => decideGrant(state, 'second'))]);
    await log.close();
    if (storage.calls < silentAt) break;
    storage.openGate();
    await vi.waitUntil(() => !hasStuckCalls());

    const outcome =
      commit.status === 'fulfilled'
        ? 'acknowledged'
        : commit.reason instanceof XceError
          ? commit.reason.code
          : String(commit.reason);
    outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1);
    const after = openRealLog(place, PORT);
    const third = await after.commit((state) => decideGrant(state, 'third'));
    const { state } = await after.read();
    await after.close();
    const by = [...state.values()].map((grant) => grant.by);
    const what = `call ${silentAt}: ${outcome}`;
    expect(
      [...state.values()].every(({ isWhole }) => isWhole),
      what,
    ).toBe(true);
    expect(by, what).toContain('first');
    expect(state.get(third.result)?.by, what).toBe('third');
    if (outcome === 'acknowledged') expect(by, what).toContain('second');
    if (outcome === 'log-io') expect(by, what).not.toContain('second');
  }
  expect([...outcomes.keys()].sort()).toEqual(['acknowledged', 'log-io', 'log-outcome-unknown']);
});
