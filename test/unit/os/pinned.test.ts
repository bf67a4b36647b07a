import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  closeSync,
  linkSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ERRNO, errnoName } from '../../../src/os/libc.ts';
import { mountIdOf } from '../../../src/os/mount-table.ts';
import {
  ACCESS_ACL,
  CAPABILITY,
  type CName,
  DEFAULT_ACL,
  decodeBlock,
  type InodeFacts,
  makeName,
  nameBytes,
  PARENT,
  pinSlash,
  pinnedInodes as pins,
  positionAfter,
} from '../../../src/os/pinned.ts';

let directory: string;
let fd: number;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'xce-pinned-'));
  fd = openSync(directory, 'r');
});
afterEach(() => {
  closeSync(fd);
  rmSync(directory, { recursive: true });
});

const name = (text: string): CName => makeName(Buffer.from(text, 'latin1'));
const at = (text: string): string => join(directory, text);
const factsOf = (pin: number): InodeFacts => {
  const facts = pins.readFacts(pin, true);
  if (typeof facts === 'number') throw new Error(errnoName(-facts));
  return facts;
};
const withPin = <T>(text: string, use: (pin: number) => T): T => {
  const pin = pins.pin(fd, name(text));
  if (pin < 0) throw new Error(errnoName(-pin));
  try {
    return use(pin);
  } finally {
    pins.close(pin);
  }
};

describe('a name', () => {
  test.each(['', 'a/b', 'a\0b', '/'])('is not %j', (text) => {
    expect(() => name(text)).toThrow(/no slash and no NUL/);
  });

  test('is any other bytes', () => {
    writeFileSync(Buffer.concat([Buffer.from(`${directory}/`), Buffer.from([0xff, 0x0a])]), '');
    expect(withPin('\xff\n', (pin) => factsOf(pin).kind)).toBe('file');
    expect(nameBytes(name('\xff\n'))).toEqual(Buffer.from([0xff, 0x0a]));
  });
});

describe('a pin', () => {
  test('gives the facts that lstat(2) gives, and the mount id of fdinfo', () => {
    writeFileSync(at('f'), '');
    chmodSync(at('f'), 0o4751);
    linkSync(at('f'), at('g'));
    const { ino, nlink, uid, gid } = lstatSync(at('f'), { bigint: true });
    withPin('f', (pin) => {
      expect(factsOf(pin)).toMatchObject({
        kind: 'file',
        mode: 0o4751,
        uid: Number(uid),
        gid: Number(gid),
        links: Number(nlink),
        inode: ino,
        mountId: mountIdOf(pin),
        immutable: false,
        appendOnly: false,
      });
    });
  });

  test('tells every kind, and opens nothing', () => {
    mkdirSync(at('directory'));
    writeFileSync(at('file'), '');
    symlinkSync('/etc', at('symlink'));
    execFileSync('/usr/bin/mkfifo', [at('fifo')]);
    execFileSync('/usr/bin/mknod', [at('character-device'), 'c', '5', '0']);
    execFileSync('/usr/bin/mknod', [at('block-device'), 'b', '7', '300']);
    for (const kind of ['directory', 'file', 'symlink', 'fifo', 'character-device', 'block-device']) {
      expect(withPin(kind, (pin) => factsOf(pin).kind)).toBe(kind);
    }
    expect(withPin('character-device', (pin) => factsOf(pin).represents)).toBe(5 * 2 ** 32);
  });

  test('stays with its inode when the name goes to another', () => {
    writeFileSync(at('f'), '');
    writeFileSync(at('other'), '');
    withPin('f', (pin) => {
      renameSync(at('f'), at('moved'));
      renameSync(at('other'), at('f'));
      expect(pins.chown(pin, 11, 12)).toBe(0);
      expect(pins.chmod(pin, 0o640)).toBe(0);
    });
    expect(lstatSync(at('moved'))).toMatchObject({ uid: 11, gid: 12, mode: 0o100640 });
    expect(lstatSync(at('f'))).toMatchObject({ uid: 0, gid: 0 });
  });

  test('stays with its inode when the name is removed', () => {
    writeFileSync(at('f'), '');
    withPin('f', (pin) => {
      unlinkSync(at('f'));
      expect(pins.chown(pin, 11, 12)).toBe(0);
      expect(factsOf(pin)).toMatchObject({ uid: 11, links: 0 });
    });
  });

  test('of a link changes the link and not what it points to', () => {
    writeFileSync(at('target'), '');
    symlinkSync('target', at('l'));
    withPin('l', (pin) => expect(pins.chown(pin, 11, 12)).toBe(0));
    expect(lstatSync(at('l'))).toMatchObject({ uid: 11, gid: 12 });
    expect(lstatSync(at('target'))).toMatchObject({ uid: 0, gid: 0 });
  });

  test('of a link to a directory cannot be entered', () => {
    symlinkSync('/etc', at('l'));
    withPin('l', (pin) => {
      expect(pins.openDirectory(pin)).toBe(-(ERRNO['ENOTDIR'] ?? 0));
      expect(pins.pin(pin, name('passwd'))).toBe(-(ERRNO['ENOTDIR'] ?? 0));
    });
  });

  test('of nothing is an errno', () => {
    expect(pins.pin(fd, name('nothing'))).toBe(-(ERRNO['ENOENT'] ?? 0));
    expect(errnoName(ERRNO['ENOENT'] ?? 0)).toBe('ENOENT');
    expect(errnoName(ERRNO['EAGAIN'] ?? 0)).toBe('EAGAIN');
    expect(errnoName(99_999)).toBe('E99999');
  });

  test('leads up as well', () => {
    mkdirSync(at('d'));
    withPin('d', (pin) => {
      const parent = pins.pin(pin, PARENT);
      expect(factsOf(parent).inode).toBe(lstatSync(directory, { bigint: true }).ino);
      pins.close(parent);
    });
  });

  test('that is closed twice is a bug', () => {
    const slash = pinSlash();
    expect(factsOf(slash).kind).toBe('directory');
    pins.close(slash);
    expect(() => pins.close(slash)).toThrow(/was open/);
  });
});

describe('attributes', () => {
  beforeEach(() => {
    writeFileSync(at('plain'), '');
    writeFileSync(at('f'), '');
    mkdirSync(at('d'));
    symlinkSync('f', at('l'));
    execFileSync('/usr/sbin/setcap', ['cap_net_raw+ep', at('f')]);
    execFileSync('/usr/bin/setfacl', ['-m', 'u:77:r', at('f'), at('d')]);
    execFileSync('/usr/bin/setfacl', ['-m', 'd:u:77:r', at('d')]);
  });

  test.each([true, false])('are found, listed or asked for by name (%s)', (listed) => {
    expect(withPin('plain', (pin) => pins.findAttributes(pin, false, listed))).toEqual([]);
    expect(withPin('f', (pin) => pins.findAttributes(pin, false, listed))).toEqual([CAPABILITY, ACCESS_ACL]);
    expect(withPin('d', (pin) => pins.findAttributes(pin, true, listed))).toEqual([ACCESS_ACL, DEFAULT_ACL]);
    expect(withPin('l', (pin) => pins.findAttributes(pin, false, listed))).toEqual([]);
  });

  test('are read, set and removed on the pinned inode', () => {
    withPin('f', (pin) => {
      renameSync(at('f'), at('moved'));
      renameSync(at('plain'), at('f'));
      const acl = pins.getAttribute(pin, ACCESS_ACL);
      if (typeof acl === 'number') throw new Error(errnoName(-acl));
      expect(acl.readUInt32LE(0)).toBe(2);
      expect(pins.removeAttribute(pin, ACCESS_ACL)).toBe(0);
      expect(pins.getAttribute(pin, ACCESS_ACL)).toBe(-(ERRNO['ENODATA'] ?? 0));
      expect(pins.setAttribute(pin, ACCESS_ACL, acl)).toBe(0);
      expect(pins.getAttribute(pin, ACCESS_ACL)).toEqual(acl);
      expect(pins.removeAttribute(pin, CAPABILITY)).toBe(0);
      expect(pins.removeAttribute(pin, CAPABILITY)).toBe(-(ERRNO['ENODATA'] ?? 0));
    });
    withPin('f', (pin) => expect(pins.findAttributes(pin, false, true)).toEqual([]));
  });
});

describe('reading a directory', () => {
  test('gives each name once, in blocks, and goes on from a position in another descriptor', () => {
    const names = Array.from({ length: 300 }, (_, index) => `name-${index}`);
    for (const text of names) writeFileSync(at(text), '');
    mkdirSync(at('.hidden'));
    mkdirSync(at('..x'));
    const block = Buffer.alloc(1024);
    const seen: string[] = [];
    const directories: string[] = [];
    let position = 0n;
    for (;;) {
      const pin = pins.pin(fd, name('.'));
      const reader = pins.openDirectory(pin);
      pins.close(pin);
      expect(pins.seek(reader, position)).toBe(0);
      const length = pins.readBlock(reader, block);
      pins.close(reader);
      if (length === 0) break;
      for (const entry of decodeBlock(block, length)) {
        const text = nameBytes(entry.name).toString();
        seen.push(text);
        if (entry.isDirectory !== false) directories.push(text);
      }
      position = positionAfter(block, length);
    }
    expect(seen.sort()).toEqual([...names, '.hidden', '..x'].sort());
    expect(directories.sort()).toEqual(['..x', '.hidden']);
  });

  test('of something else is an errno', () => {
    expect(pins.readBlock(999_999, Buffer.alloc(64))).toBe(-(ERRNO['EBADF'] ?? 0));
    writeFileSync(at('f'), '');
    const file = openSync(at('f'), 'r');
    expect(pins.readBlock(file, Buffer.alloc(64))).toBe(-(ERRNO['ENOTDIR'] ?? 0));
    closeSync(file);
  });
});
