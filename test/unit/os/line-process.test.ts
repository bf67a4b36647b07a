import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { startLineProcess } from '../../../src/os/line-process.ts';

const SECOND_MS = 10_000;

const refusalOf = async (call: Promise<unknown>): Promise<string> => {
  const error = await call.catch((reason: unknown) => reason);
  return error instanceof XceError ? `${error.code}: ${error.message}` : `not refused: ${String(error)}`;
};

describe('a process that answers lines', () => {
  test('answers each with one', async () => {
    const process = await startLineProcess(['/bin/cat']);
    expect(await process.ask('one', SECOND_MS)).toBe('one');
    expect(await process.ask('two', SECOND_MS)).toBe('two');
    await process.kill();
  });

  test('is gone once it was killed, and says so to whoever asks', async () => {
    const child = await startLineProcess(['/bin/cat']);
    await child.kill();
    expect(() => process.kill(child.pid, 0)).toThrow('ESRCH');
    expect(await refusalOf(child.ask('one', SECOND_MS))).toMatch(/^os: process \d+ of ours has ended$/);
    await child.kill();
  });

  test('that ends or hangs instead of answering is an error', async () => {
    const ends = await startLineProcess(['/bin/sh', '-c', 'read line']);
    expect(await refusalOf(ends.ask('one', SECOND_MS))).toContain('has ended');
    const hangs = await startLineProcess(['/bin/sleep', '60']);
    expect(await refusalOf(hangs.ask('one', 50))).toContain('gives no answer');
    await hangs.kill();
  });

  test('that is not there cannot be started', async () => {
    expect(await refusalOf(startLineProcess(['/no/such/program']))).toMatch(/^os: cannot start .*ENOENT/);
  });
});
