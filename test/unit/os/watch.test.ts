import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { waitUntil } from '../../../src/os/watch.ts';

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'watch-'));
});
afterEach(() => {
  rmSync(directory, { recursive: true, force: true });
});

describe('waiting for a change', () => {
  test('ends at once when there is nothing to wait for', async () => {
    expect(await waitUntil(directory, () => true, {})).toBe(true);
  });

  test('looks again after each change and not in between', async () => {
    const file = join(directory, 'a');
    let looks = 0;
    const waited = waitUntil(
      directory,
      () => {
        looks += 1;
        return existsSync(file);
      },
      { timeoutMs: 10_000 },
    );
    expect(looks).toBe(1);
    writeFileSync(file, '');
    expect(await waited).toBe(true);
    expect(looks).toBeLessThan(5);
  });

  test('ends when the directory vanishes', async () => {
    const waited = waitUntil(directory, () => !existsSync(directory), { timeoutMs: 10_000 });
    rmSync(directory, { recursive: true });
    expect(await waited).toBe(true);
  });

  test('says no when the time is over or the signal aborts first', async () => {
    expect(await waitUntil(directory, () => false, { timeoutMs: 10 })).toBe(false);
    const controller = new AbortController();
    const waited = waitUntil(directory, () => false, { signal: controller.signal });
    controller.abort();
    expect(await waited).toBe(false);
    expect(await waitUntil(directory, () => false, { signal: controller.signal })).toBe(false);
  });

  test('fails with what the look throws, and where there is nothing to watch', async () => {
    const broken = (): boolean => {
      throw new Error('broken look');
    };
    await expect(waitUntil(directory, broken, {})).rejects.toThrow('broken look');
    await expect(waitUntil(join(directory, 'none'), () => false, {})).rejects.toMatchObject({ code: 'os' });
    expect(await waitUntil(join(directory, 'none'), () => true, {})).toBe(true);
  });
});
