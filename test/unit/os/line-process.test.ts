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

  test('is killed when an answer is late or too long: no later question gets it', async () => {
    const late = await startLineProcess(['/bin/sh', '-c', 'read a; sleep 0.2; echo $a; read b; echo $b']);
    expect(await refusalOf(late.ask('one', 50))).toContain('gives no answer');
    expect(await refusalOf(late.ask('two', SECOND_MS))).toContain('has ended');
    const endless = await startLineProcess(['/bin/sh', '-c', 'read a; exec tr "\\n" . </dev/zero']);
    expect(await refusalOf(endless.ask('one', SECOND_MS))).toContain('gives no answer');
    expect(await refusalOf(endless.ask('two', SECOND_MS))).toContain('has ended');
  });

  test('that is not there cannot be started', async () => {
    expect(await refusalOf(startLineProcess(['/no/such/program']))).toMatch(/^os: cannot start .*ENOENT/);
  });
});
