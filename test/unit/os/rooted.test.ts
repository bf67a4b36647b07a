import {
  chmodSync,
  chownSync,
  closeSync,
  fstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { closeDirectory, ensureDirectory, openRooted } from '../../../src/os/rooted.ts';

let base: string;
beforeEach(() => {
  base = mkdtempSync(join(tmpdir(), 'rooted-'));
});
afterEach(() => {
  rmSync(base, { recursive: true, force: true });
});

const codeOf = (call: () => unknown): unknown => {
  try {
    call();
    return 'no error';
  } catch (error) {
    return error instanceof Error && 'code' in error ? error.code : error;
  }
};
const openFds = (): number => readdirSync('/proc/self/fd').length;
const isRoot = process.getuid?.() === 0;

// Owners can only be given by root.
describe.skipIf(!isRoot)('a directory reached from the root', () => {
  test('is the one of the path, and a sticky parent that all may write is fine', () => {
    const directory = openRooted(base, 'roots');
    expect(fstatSync(directory.fd).ino).toBe(statSync(base).ino);
    closeSync(directory.fd);
  });

  test('is refused through a link, a file, dots, or a parent that others may change', () => {
    mkdirSync(join(base, 'open/inner'), { recursive: true });
    mkdirSync(join(base, 'own/inner'), { recursive: true });
    chmodSync(join(base, 'open'), 0o777);
    chownSync(join(base, 'own'), 70_001, 70_001);
    symlinkSync(base, join(base, 'link'));
    writeFileSync(join(base, 'file'), '');
    const before = openFds();
    for (const path of [
      'link',
      'link/own',
      'file',
      'file/x',
      'none',
      'open/inner',
      'own/inner',
      './own',
      'own/../own',
    ]) {
      expect([path, codeOf(() => openRooted(`${base}/${path}`, 'anyones'))]).toEqual([
        path,
        'sandbox-refused',
      ]);
    }
    expect(codeOf(() => openRooted('relative', 'anyones'))).toBe('sandbox-refused');
    expect(openFds()).toBe(before);
  });

  test('may belong to somebody else itself only where that is said', () => {
    mkdirSync(join(base, 'own'));
    chownSync(join(base, 'own'), 70_001, 70_001);
    closeDirectory(openRooted(join(base, 'own'), 'anyones'));
    expect(codeOf(() => openRooted(join(base, 'own'), 'roots'))).toBe('sandbox-refused');
  });
});

describe.skipIf(!isRoot)('a directory made for a uid', () => {
  const owner = { uid: 70_001, gid: 70_001, mode: 0o700 };

  test('is made once, and taken by the next who wants it', () => {
    const parent = openRooted(base, 'roots');
    closeDirectory(ensureDirectory(parent, 'a', owner));
    writeFileSync(join(base, 'a/file'), '');
    closeDirectory(ensureDirectory(parent, 'a', owner));
    const facts = statSync(join(base, 'a'));
    expect([facts.uid, facts.gid, facts.mode & 0o7777]).toEqual([70_001, 70_001, 0o700]);
    expect(readdirSync(join(base, 'a'))).toEqual(['file']);
    closeDirectory(parent);
  });

  test('is taken over from root, as another host leaves it for a moment', () => {
    mkdirSync(join(base, 'a'), { mode: 0o700 });
    const parent = openRooted(base, 'roots');
    closeDirectory(ensureDirectory(parent, 'a', owner));
    expect(statSync(join(base, 'a')).uid).toBe(70_001);
    closeDirectory(parent);
  });

  test('keeps the mode that its owner has given it', () => {
    const parent = openRooted(base, 'roots');
    closeDirectory(ensureDirectory(parent, 'a', owner));
    chmodSync(join(base, 'a'), 0o755);
    closeDirectory(ensureDirectory(parent, 'a', owner));
    expect(statSync(join(base, 'a')).mode & 0o7777).toBe(0o755);
    closeDirectory(parent);
  });

  test('is refused where something else has the name, which stays as it is', () => {
    const parent = openRooted(base, 'roots');
    mkdirSync(join(base, 'other'));
    chownSync(join(base, 'other'), 1001, 1001);
    writeFileSync(join(base, 'file'), '');
    symlinkSync('/etc', join(base, 'link'));
    const before = openFds();
    for (const name of ['other', 'file', 'link']) {
      expect([name, codeOf(() => ensureDirectory(parent, name, owner))]).toEqual([name, 'sandbox-exists']);
    }
    expect(openFds()).toBe(before);
    expect(statSync(join(base, 'other')).uid).toBe(1001);
    expect(statSync('/etc').uid).toBe(0);
    closeDirectory(parent);
  });

  test('is made in the directory that was opened, whatever has its name now', () => {
    mkdirSync(join(base, 'real'));
    const parent = openRooted(join(base, 'real'), 'roots');
    renameSync(join(base, 'real'), join(base, 'moved'));
    symlinkSync('/etc', join(base, 'real'));
    closeDirectory(ensureDirectory(parent, 'a', owner));
    expect(statSync(join(base, 'moved/a')).uid).toBe(70_001);
    closeDirectory(parent);
  });
});
