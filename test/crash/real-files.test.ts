import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { localPlace, openRealLog } from './real-log.ts';
import { decideGrant, type Grants } from './world.ts';

const PROGRAM = fileURLToPath(new URL('./real-process.ts', import.meta.url));

let root = '';
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'xce-log-'));
  mkdirSync(join(root, 'log'));
});
afterEach(() => {
  rmSync(root, { recursive: true, force: true });
});

type Run = {
  /** Uids by name, as far as the process has said that they were acknowledged. */
  readonly acknowledged: Map<string, number>;
  readonly ended: Promise<string>;
  granted(count: number): Promise<void>;
  kill(): void;
};

/** Starts a controller; at its end `ended` is its last word, or 'killed'. */
const start = (host: string, prefix: string, count: number): Run => {
  const place = JSON.stringify(localPlace(root, host));
  const argv = ['--import', 'tsx', PROGRAM, place, prefix, String(count)];
  const child = spawn(process.execPath, argv, { stdio: ['ignore', 'pipe', 'inherit'] });
  const acknowledged = new Map<string, number>();
  let last = 'killed';
  let wake: () => void = () => undefined;
  createInterface(child.stdout).on('line', (line) => {
    const [by, uid] = line.split(' ');
    if (by !== undefined && uid !== undefined) acknowledged.set(by, Number(uid));
    else last = line;
    wake();
  });
  const ended = once(child, 'close').then(() => {
    wake();
    return last;
  });
  return {
    acknowledged,
    ended,
    granted: async (wanted) => {
      while (acknowledged.size < wanted && last === 'killed' && child.exitCode === null) {
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      }
    },
    kill: () => child.kill('SIGKILL'),
  };
};

/** Every acknowledged grant must stand in the state, under its uid, and no uid twice. */
const expectKept = (state: Grants, runs: readonly Run[]): void => {
  const all = runs.flatMap(({ acknowledged }) => [...acknowledged]);
  expect(new Set(all.map(([, uid]) => uid)).size).toBe(all.length);
  for (const [by, uid] of all) expect(state.get(uid)).toEqual({ by, isWhole: true });
};

describe('real processes on a real disk', () => {
  test('of one host share a log: both get all their grants, no uid twice', async () => {
    const log = openRealLog(localPlace(root, 'a'));
    await log.init();
    const runs = [start('a', 'p', 25), start('a', 'q', 25)];
    expect(await Promise.all(runs.map(({ ended }) => ended))).toEqual(['done', 'done']);
    const { state } = await log.read();
    expectKept(state, runs);
    expect(state.size).toBe(50);
    await log.close();
    expect(readdirSync(join(root, 'log'))).toEqual(['leases.wal.1']);
  });

  test('that are killed at any time lose nothing, and the next one goes on', async () => {
    const log = openRealLog(localPlace(root, 'a'));
    await log.init();
    const runs: Run[] = [];
    for (let round = 0; round < 2; round++) {
      const pair = [start('a', `p${round}`, 10_000), start('a', `q${round}`, 10_000)];
      runs.push(...pair);
      await Promise.all(pair.map((run) => run.granted(2 + round)));
      for (const run of pair) run.kill();
      expect(await Promise.all(pair.map(({ ended }) => ended))).toEqual(['killed', 'killed']);
      const { result } = await log.commit((state) => decideGrant(state, `after ${round}`));
      expect(result).toBeGreaterThan(0);
    }
    expectKept((await log.read()).state, runs);
    await log.close();
  });

  test('are fenced by another host that takes over, and what they were told counts', async () => {
    const first = openRealLog(localPlace(root, 'a'));
    await first.init();
    await first.close();
    const runs = [start('a', 'p', 10_000), start('a', 'q', 10_000)];
    await Promise.all(runs.map((run) => run.granted(3)));
    const other = openRealLog(localPlace(root, 'b'));
    expect((await other.takeover()).epoch).toBe(2);
    await other.commit((state) => decideGrant(state, 'b'));
    for (const end of await Promise.all(runs.map(({ ended }) => ended))) {
      expect(end).toMatch(/^log-(fenced|outcome-unknown)$/);
    }
    const { state } = await other.read();
    expectKept(state, runs);
    await other.close();
  });
});

test('a FIFO in place of the log, or of a token, is refused at once', async () => {
  const log = openRealLog(localPlace(root, 'a'));
  await log.init();
  const { execFileSync } = await import('node:child_process');
  const token = join(root, 'run/a/controller/epoch-1.token');
  const saved = readFileSync(token);
  expect(saved.toString()).toMatch(/^[0-9a-f]{32}\n[-0-9a-f]{36}\nidle\n$/);
  rmSync(token);
  execFileSync('/usr/bin/mkfifo', [token]);
  await expect(log.commit(() => ({ events: [], result: 0 }))).rejects.toMatchObject({ code: 'io' });
  const path = join(root, 'log/leases.wal.1');
  rmSync(path);
  execFileSync('/usr/bin/mkfifo', [path]);
  await expect(log.read()).rejects.toMatchObject({ code: 'log-corrupt' });
  await expect(log.takeover()).rejects.toMatchObject({ code: 'log-corrupt' });
  await log.close();
});
