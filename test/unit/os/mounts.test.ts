import { execFileSync } from 'node:child_process';
import { closeSync, mkdirSync, mkdtempSync, openSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { mountIdOf, parseMountTable, readMountTable } from '../../../src/os/mount-table.ts';
import { mountOf, sameMount } from '../../../src/os/mounts.ts';

const line = (text: string): Buffer => Buffer.from(text, 'latin1');

describe('parseMountTable', () => {
  test('reads the optional fields away and the root of a bind mount out', () => {
    const [entry] = parseMountTable(
      line('36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:7 - ext3 /dev/root rw,errors=continue\n'),
    );
    expect(entry).toEqual({
      mountId: 36,
      parentId: 35,
      device: '98:0',
      root: '/mnt1',
      path: '/mnt2',
      options: ['rw', 'noatime'],
      type: 'ext3',
      source: '/dev/root',
      superOptions: ['rw', 'errors=continue'],
    });
  });

  test('decodes blanks, newlines and backslashes in names, and UTF-8', () => {
    const [entry] = parseMountTable(line('1 1 0:1 / /a\\040b\\012c\\134d\\303\\251 rw - tmpfs s\xc3\xa9 rw'));
    expect(entry?.path).toBe('/a b\nc\\dé');
    expect(entry?.source).toBe('sé');
  });

  test('keeps names that are not UTF-8 apart', () => {
    const [first, second] = parseMountTable(
      line('1 1 0:1 / /x\\377 rw - tmpfs s rw\n2 1 0:1 / /x\\376 rw - tmpfs s rw\n'),
    );
    expect(first?.path).toBe('/x\\377');
    expect(second?.path).toBe('/x\\376');
  });

  test('a source may be empty', () => {
    expect(parseMountTable(line('1 1 0:1 / /x rw -  tmpfs rw\n'))[0]?.type).toBe('');
    expect(parseMountTable(line('1 1 0:1 / /x rw - tmpfs  rw\n'))[0]?.source).toBe('');
  });

  test('a mount point named like the separator is no separator', () => {
    const [entry] = parseMountTable(line('1 1 0:1 / - rw - tmpfs s rw\n'));
    expect([entry?.path, entry?.type]).toEqual(['-', 'tmpfs']);
  });

  test.each([
    '',
    'x 1 0:1 / / rw - t s rw',
    '1 1 0:1 / / rw',
    '1 1 01 / / rw - t s rw',
    '1 1 0:1 / / rw - t s',
  ])('refuses %j', (text) => {
    expect(() => parseMountTable(line(`${text}\n`))).toThrow(/cannot be read/);
  });
});

describe('mountOf', () => {
  const cleanups: (() => void)[] = [];
  afterEach(() => {
    for (const cleanup of cleanups.splice(0).reverse()) cleanup();
  });

  const makeDirectory = (): string => {
    const directory = mkdtempSync(join(tmpdir(), 'xce-mounts-'));
    cleanups.push(() => rmSync(directory, { recursive: true }));
    return directory;
  };
  const mount = (...argv: string[]): void => {
    execFileSync('/usr/bin/mount', argv);
    cleanups.push(() => execFileSync('/usr/bin/umount', [argv[argv.length - 1] ?? '']));
  };

  test('gives type, source and the fsid that stat(1) prints, the same by path and by descriptor', () => {
    const facts = mountOf('/');
    const fd = openSync('/', 'r');
    try {
      expect(mountOf(fd)).toEqual(facts);
      expect(mountIdOf(fd)).toBe(facts.mountId);
    } finally {
      closeSync(fd);
    }
    expect(facts.path).toBe('/');
    expect(facts.fsid).toBe(
      execFileSync('/usr/bin/stat', ['-f', '-c', '%i', '/'], { encoding: 'utf8' }).trim(),
    );
    expect(readMountTable().some((entry) => entry.mountId === facts.mountId)).toBe(true);
  });

  test('tells a file system from the directory it hides, and finds odd mount points', () => {
    const directory = join(makeDirectory(), 'a b\n\\x');
    mkdirSync(directory);
    const before = mountOf(directory);
    mount('-t', 'tmpfs', 'my source', directory);
    const after = mountOf(directory);
    expect(after).toMatchObject({ path: directory, type: 'tmpfs', source: 'my source' });
    expect(sameMount(before, after)).toBe(false);
    expect(sameMount(after, mountOf(directory))).toBe(true);
  });

  test('tells a bind mount of a part from the whole, on the same file system', () => {
    const directory = makeDirectory();
    mkdirSync(join(directory, 'part'));
    mkdirSync(join(directory, 'at'));
    mount('--bind', join(directory, 'part'), join(directory, 'at'));
    const whole = mountOf(directory);
    const part = mountOf(join(directory, 'at'));
    expect(part.fsid).toBe(whole.fsid);
    expect(part.source).toContain('/part]');
    expect(sameMount(whole, part)).toBe(false);
  });

  test('does not follow a link in the last component', () => {
    const directory = makeDirectory();
    symlinkSync('/proc', join(directory, 'link'));
    expect(mountOf(join(directory, 'link')).type).not.toBe('proc');
  });

  test('says which path it could not open', () => {
    expect(() => mountOf('/nowhere-at-all')).toThrow(/nowhere-at-all.*ENOENT/);
  });
});
