import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { mustRun } from '../support/cluster/process.ts';
import { compileShim } from '../support/shim.ts';
import type { Report } from './faults/report.ts';

let root = '';
let shim = '';
beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'xce-faults-'));
  shim = compileShim(root);
});
afterAll(() => {
  rmSync(root, { recursive: true, force: true });
});

const PROGRAM = fileURLToPath(new URL('./faults/process.ts', import.meta.url));
const FAULTS_MS_MAX = 280_000;

const runOperation = async (name: string): Promise<Report> => {
  // In memory: what is asked here is what the program makes of an answer, and not what the disk does.
  const scratch = mkdtempSync('/dev/shm/xce-faults-');
  try {
    const { stdout } = await mustRun([process.execPath, '--import', 'tsx', PROGRAM, shim, scratch, name], {
      env: { PATH: process.env['PATH'], LD_PRELOAD: shim },
      timeoutMs: FAULTS_MS_MAX,
    });
    return JSON.parse(stdout.toString('utf8')) as Report;
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
};

describe('with any one call of the system answered by an error, and from any one on', () => {
  test.each([
    'allocate',
    'renew',
    'release',
    'compact',
    'takeover by the owner',
    'takeover by another host',
    'init',
  ])('%s says what is true, and the log can be used', { timeout: FAULTS_MS_MAX + 10_000 }, async (name) => {
    const { calls, faults, codes, problems } = await runOperation(name);
    expect(problems).toEqual([]);
    expect(calls).toBeGreaterThan(25);
    expect(faults).toBeGreaterThan(2 * calls);
    // An operation may end well in spite of an error; where there is no lock it must not.
    expect(Object.keys(codes)).toContain('done');
    if (name !== 'init') expect(codes['storage-unfit']).toBeGreaterThan(3);
  });
});
