import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { openStateFiles } from '../../../src/os/state-files.ts';

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'xce-state-'));
});
afterEach(() => {
  rmSync(directory, { recursive: true });
});

const codeOf = (act: () => unknown): string => {
  try {
    act();
  } catch (error) {
    if (error instanceof XceError) return error.code;
    throw error;
  }
  return 'none';
};

describe('state files', () => {
  test('are made private, read back, replaced and removed', () => {
    const path = join(directory, 'new');
    const files = openStateFiles(path, 100);
    expect(statSync(path).mode & 0o7777).toBe(0o700);
    expect(files.read('7')).toBeUndefined();
    files.write('7', Buffer.from('one'));
    files.write('7', Buffer.from('two'));
    expect(files.read('7')?.toString()).toBe('two');
    expect(statSync(join(path, '7')).mode & 0o7777).toBe(0o600);
    expect(files.list()).toEqual(['7']);
    files.remove('7');
    files.remove('7');
    expect(files.list()).toEqual([]);
  });

  test('forget what a killed writer left half-way, and never take it for a file', () => {
    writeFileSync(join(directory, `7.new-${process.pid}`), 'half');
    const files = openStateFiles(directory, 100);
    expect(readdirSync(directory)).toEqual([]);
    files.write('7', Buffer.from('whole'));
    expect(files.read('7')?.toString()).toBe('whole');
  });

  test('refuse a directory that others may enter, or that is a link', () => {
    chmodSync(directory, 0o755);
    expect(codeOf(() => openStateFiles(directory, 100))).toBe('config-unsafe');
    chmodSync(directory, 0o700);
    const real = join(directory, 'real');
    mkdirSync(real, { mode: 0o700 });
    symlinkSync(real, join(directory, 'link'));
    expect(codeOf(() => openStateFiles(join(directory, 'link'), 100))).toBe('io');
  });

  test('refuse bytes over their limit, both ways', () => {
    const files = openStateFiles(directory, 4);
    expect(codeOf(() => files.write('7', Buffer.alloc(5)))).toBe('too-large');
    writeFileSync(join(directory, '8'), 'too long');
    expect(codeOf(() => files.read('8'))).toBe('too-large');
  });

  test.each(['../x', '.', '', 'a/b', 'x.new-1', '-x'])('have no name %j', (name) => {
    expect(codeOf(() => openStateFiles(directory, 4).write(name, Buffer.alloc(1)))).toBe('bug');
    expect(existsSync(join(directory, name.replaceAll('/', '_') || 'none'))).toBe(name === '.');
  });
});
