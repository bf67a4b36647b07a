import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Uid } from '../../src/base/ids.ts';
import { bundleProgram } from '../support/bundle.ts';
import { findViolations } from './history/check.ts';
import { HistoryRun } from './history/run.ts';

const POOL = { first: 70_000 as Uid, last: 70_499 as Uid };
const EACH = 5000;

let root = '';
let run: HistoryRun | undefined;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'xce-history-'));
});
afterEach(() => {
  run?.kill();
  rmSync(root, { recursive: true, force: true });
});

describe('5,000 grants and 5,000 releases by 8 processes that are killed, stopped and overtaken at any time', () => {
  test.each([
    ['of one host', 1, ['a', 'a', 'a', 'a', 'a', 'a', 'a', 'a']],
    ['of two hosts', 2, ['a', 'a', 'a', 'a', 'b', 'b', 'b', 'b']],
  ])(
    '%s: whatever anybody was told is true, and no uid has two holders',
    { timeout: 240_000 },
    async (_, seed, hosts) => {
      const program = await bundleProgram(new URL('./history/process.ts', import.meta.url), root);
      run = new HistoryRun(root, program, { seed, hosts, each: EACH, pool: POOL });
      const evidence = await run.run();
      expect(findViolations(evidence).slice(0, 20)).toEqual([]);
      const { killed, outlived } = run.trouble;
      expect(killed).toBeGreaterThan(5);
      expect(outlived).toBeGreaterThan(5);
      const kinds = new Set(evidence.calls.map(({ outcome }) => outcome.kind));
      expect(kinds).toEqual(new Set(['acknowledged', 'denied', 'unknown']));
      const freed = evidence.records
        .flatMap(({ events }) => events)
        .filter(({ kind }) => kind === 'free').length;
      expect(freed).toBeGreaterThanOrEqual(EACH);
      // Every uid has had many holders.
      expect(freed).toBeGreaterThan(5 * (POOL.last - POOL.first));
    },
  );
});
