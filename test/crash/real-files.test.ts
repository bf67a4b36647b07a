import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { localPlace, openRealLog } from './real-log.ts';
import { findMissing, type RealRun, startController } from './real-run.ts';
import { decideGrant } from './world.ts';

let root = '';
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'xce-log-'));
  mkdirSync(join(root, 'log'));
});
afterEach(() => {
  rmSync(root, { recursive: true, force: true });
});

const start = (host: string, prefix: string, count: number): RealRun =>
  startController(localPlace(root, host), prefix, count);

describe('real processes on a real disk', () => {
  test('of one host share a log: both get all their grants, no uid twice', async () => {
    const log = openRealLog(localPlace(root, 'a'));
    await log.init();
    const runs = [start('a', 'p', 25), start('a', 'q', 25)];
    expect(await Promise.all(runs.map(({ ended }) => ended))).toEqual(['done', 'done']);
    const { state } = await log.read();
    expect(findMissing(state, runs)).toEqual([]);
    expect(state.size).toBe(50);
    await log.close();
    expect(readdirSync(join(root, 'log'))).toEqual(['leases.wal.1']);
  });

  test('that are killed at any time lose nothing, and the next one goes on', async () => {
    const log = openRealLog(localPlace(root, 'a'));
    await log.init();
    const runs: RealRun[] = [];
    for (let round = 0; round < 2; round++) {
      const pair = [start('a', `p${round}`, 10_000), start('a', `q${round}`, 10_000)];
      runs.push(...pair);
      await Promise.all(pair.map((run) => run.granted(2 + round)));
      for (const run of pair) run.signal('SIGKILL');
      expect(await Promise.all(pair.map(({ ended }) => ended))).toEqual(['killed', 'killed']);
      const { result } = await log.commit((state) => decideGrant(state, `after ${round}`));
      expect(result).toBeGreaterThan(0);
    }
    expect(findMissing((await log.read()).state, runs)).toEqual([]);
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
    expect(findMissing(state, runs)).toEqual([]);
    await other.close();
  });
});

test('a controller that was cut off while another took over writes not one byte when it is back', async () => {
  const cut = openRealLog(localPlace(root, 'a'));
  await cut.init();
  await cut.commit((state) => decideGrant(state, 'before'));
  const other = openRealLog(localPlace(root, 'b'));
  await other.takeover();
  await other.commit((state) => decideGrant(state, 'meanwhile'));
  // Its turn comes when the file below has been emptied, behind the commit.
  await other.read();
  const filesOf = () =>
    readdirSync(join(root, 'log')).map((name) => readFileSync(join(root, 'log', name), 'hex'));
  const before = filesOf();
  for (const call of [cut.commit((state) => decideGrant(state, 'late')), cut.compact()]) {
    await expect(call).rejects.toMatchObject({
      code: 'log-fenced',
      facts: { detail: { epoch: 2, owner: 'b' } },
    });
  }
  expect(filesOf()).toEqual(before);
  expect([...(await other.read()).state.values()].map(({ by }) => by)).toEqual(['before', 'meanwhile']);
  await cut.close();
  await other.close();
});

test('a FIFO in place of the log, or of a token, is refused at once', async () => {
  const log = openRealLog(localPlace(root, 'a'));
  await log.init();
  const token = join(root, 'run/a/controller/epoch-1.token');
  const saved = readFileSync(token);
  expect(saved.toString()).toMatch(/^[0-9a-f]{32}\n[-0-9a-f]{36}\nidle\n\d{15} \d{15}\n$/);
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
