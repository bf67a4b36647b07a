import { describe, expect, test } from 'vitest';
import { runChild } from '../../../src/os/spawn.ts';

const shell = (script: string, timeoutMs = 10_000) => runChild('/bin/sh', ['-c', script], { timeoutMs });

describe('a child', () => {
  test('gives its status and both streams', async () => {
    expect(await shell('echo out; echo err >&2; exit 3')).toMatchObject({
      exitCode: 3,
      stdout: Buffer.from('out\n'),
      stderr: Buffer.from('err\n'),
      timedOut: false,
    });
  });

  test('sees nothing of our environment', async () => {
    process.env['LEAKED_TO_CHILDREN'] = '1';
    const { stdout } = await runChild('/usr/bin/env', [], { timeoutMs: 10_000 });
    expect(stdout.toString().split('\n').filter(Boolean).sort()).toEqual([
      'LANG=C.UTF-8',
      'LC_ALL=C.UTF-8',
      'PATH=/usr/sbin:/usr/bin:/sbin:/bin',
    ]);
  });

  test('that does not exist is a result and no exception', async () => {
    expect(await runChild('/usr/bin/no-such-program', [], { timeoutMs: 1000 })).toMatchObject({
      spawnErrno: 'ENOENT',
    });
  });

  test('that prints without end is ended at the bound', async () => {
    const { truncated, stdout } = await shell('exec cat /dev/zero');
    expect(truncated).toBe(true);
    expect(stdout.length).toBe(1 << 20);
  });

  test.each(['exec sleep 20', 'sleep 20', 'setsid sleep 20', 'trap "" TERM; sleep 20'])(
    'that is late is ended at its deadline: %s',
    async (script) => {
      const startMs = performance.now();
      expect(await shell(script, 200)).toMatchObject({ timedOut: true });
      expect(performance.now() - startMs).toBeLessThan(5000);
    },
  );
});
