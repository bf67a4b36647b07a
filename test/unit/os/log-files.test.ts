import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  closeSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { tryLockFile, unlockFile } from '../../../src/os/lock.ts';
import { logFiles } from '../../../src/os/log-files.ts';

let directory = '';
const at = (name: string): string => join(directory, name);
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'xce-log-files-'));
});
afterEach(() => {
  rmSync(directory, { recursive: true, force: true });
});

describe('the files of the log', () => {
  test('are created once, appended at their end and read by position', async () => {
    const file = await logFiles.open(at('a'), 'create');
    await expect(logFiles.open(at('a'), 'create')).rejects.toMatchObject({ code: 'EEXIST' });
    expect(await file.append(Buffer.from('one '))).toBe(4);
    const other = await logFiles.open(at('a'), 'append');
    await other.append(Buffer.from('two '));
    await file.append(Buffer.from('three'));
    await file.sync();
    const into = Buffer.alloc(20);
    expect(await file.read(into, 4)).toBe(9);
    expect(into.toString('latin1', 0, 9)).toBe('two three');
    expect(await file.read(into, 13)).toBe(0);
    const facts = await file.facts();
    expect(facts).toMatchObject({ bytes: 13, isRegular: true, identity: await logFiles.identify(at('a')) });
    expect(Math.abs(facts.writtenMs - Date.now())).toBeLessThan(60_000);
    expect(statSync(at('a')).mode & 0o777).toBe(0o600);
    await file.close();
    await other.close();
  });

  test('are overwritten in place where they are tokens', async () => {
    const file = await logFiles.open(at('token'), 'token');
    await file.overwrite(Buffer.from('abcdef'), 0);
    await file.overwrite(Buffer.from('XY'), 2);
    await file.close();
    const again = await logFiles.open(at('token'), 'token');
    expect((await again.facts()).bytes).toBe(6);
    await again.close();
    expect(readFileSync(at('token'), 'latin1')).toBe('abXYef');
  });

  test('are never reached through a link, and a FIFO or directory does not hang', async () => {
    writeFileSync(at('real'), '');
    symlinkSync(at('real'), at('link'));
    execFileSync('/usr/bin/mkfifo', [at('fifo')]);
    mkdirSync(at('directory'));
    for (const purpose of ['read', 'append', 'token'] as const) {
      await expect(logFiles.open(at('link'), purpose)).rejects.toMatchObject({ code: 'ELOOP' });
      const fifo = await logFiles.open(at('fifo'), purpose);
      expect((await fifo.facts()).isRegular).toBe(false);
      await fifo.close();
    }
    await expect(logFiles.open(at('directory'), 'append')).rejects.toMatchObject({ code: 'EISDIR' });
    await expect(logFiles.open(at('none'), 'append')).rejects.toMatchObject({ code: 'ENOENT' });
  });

  test('are listed', async () => {
    for (const name of ['a', 'b', 'c', 'd']) writeFileSync(at(name), '');
    expect([...(await logFiles.list(directory))].sort()).toEqual(['a', 'b', 'c', 'd']);
    await expect(logFiles.list(at('none'))).rejects.toMatchObject({ code: 'ENOENT' });
    await expect(logFiles.list(at('a'))).rejects.toMatchObject({ code: 'ENOTDIR' });
  });

  test('are linked to a free name, renamed and removed', async () => {
    writeFileSync(at('a'), 'bytes');
    await logFiles.link(at('a'), at('b'));
    await expect(logFiles.link(at('a'), at('b'))).rejects.toMatchObject({ code: 'EEXIST' });
    expect(await logFiles.identify(at('b'))).toBe(await logFiles.identify(at('a')));
    await logFiles.rename(at('b'), at('c'));
    await logFiles.unlink(at('a'));
    await logFiles.syncDirectory(directory);
    await expect(logFiles.unlink(at('a'))).rejects.toMatchObject({ code: 'ENOENT' });
    expect(readFileSync(at('c'), 'latin1')).toBe('bytes');
  });

  test('have directories of the mode that is asked for', async () => {
    await logFiles.makeDirectory(at('x/y'), 0o711);
    await logFiles.makeDirectory(at('x/y/z'), 0o700);
    await logFiles.makeDirectory(at('x/y/z'), 0o700);
    expect(['x', 'x/y', 'x/y/z'].map((name) => statSync(at(name)).mode & 0o777)).toEqual([
      0o711, 0o711, 0o700,
    ]);
  });
});

describe('a lock', () => {
  test('belongs to one descriptor and survives the closing of another', () => {
    writeFileSync(at('lock'), '');
    const [first, second, third] = [0, 1, 2].map(() => openSync(at('lock'), 'r+'));
    if (first === undefined || second === undefined || third === undefined) throw new Error('not open');
    expect(tryLockFile(first)).toBe(true);
    expect(tryLockFile(first)).toBe(true);
    expect(tryLockFile(second)).toBe(false);
    closeSync(third);
    expect(tryLockFile(second)).toBe(false);
    unlockFile(first);
    expect(tryLockFile(second)).toBe(true);
    closeSync(second);
    expect(tryLockFile(first)).toBe(true);
    closeSync(first);
  });

  test('is kept from other processes, and free again when its process is killed', async () => {
    writeFileSync(at('lock'), '');
    const program = `
      const fs = require('node:fs');
      const { tryLock } = require('fs-native-extensions');
      fs.writeSync(1, tryLock(fs.openSync(process.argv[1], 'r+')) ? 'locked' : 'busy');
      setInterval(() => {}, 1000);`;
    const child = spawn(process.execPath, ['-e', program, at('lock')], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    try {
      const [word] = await once(child.stdout, 'data');
      expect(String(word)).toBe('locked');
      const fd = openSync(at('lock'), 'r+');
      expect(tryLockFile(fd)).toBe(false);
      const gone = once(child, 'close');
      child.kill('SIGKILL');
      await gone;
      expect(tryLockFile(fd)).toBe(true);
      closeSync(fd);
    } finally {
      child.kill('SIGKILL');
    }
  });

  test('that cannot be had fails with its errno', () => {
    writeFileSync(at('lock'), '');
    const readOnly = openSync(at('lock'), 'r');
    expect(() => tryLockFile(readOnly)).toThrow(expect.objectContaining({ code: 'EBADF' }));
    closeSync(readOnly);
  });
});
