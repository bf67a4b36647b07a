import {
  chmodSync,
  chownSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { openOutputFile } from '../../../src/os/output-file.ts';

let directory: string;
beforeEach(() => {
  // Nothing below /tmp will do: everybody may write there.
  directory = mkdtempSync('/run/xce-output-');
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

const at = (name: string): string => join(directory, name);

const refusalOf = async (path: string, mode: 'new' | 'append' = 'new'): Promise<string> => {
  try {
    await openOutputFile(path, mode);
  } catch (error) {
    if (error instanceof XceError && error.code === 'output-file') return error.message;
    throw error;
  }
  throw new Error(`${path} was opened`);
};

describe('a file for output', () => {
  test('is made, gets every byte in order, and is as private as the umask says', async () => {
    const before = process.umask(0o027);
    try {
      const file = await openOutputFile(at('new'), 'new');
      await file.write(Buffer.from('one '));
      await file.write(Buffer.alloc(0));
      await file.write(Buffer.from('two'));
      await file.close();
    } finally {
      process.umask(before);
    }
    expect(readFileSync(at('new'), 'latin1')).toBe('one two');
    expect(statSync(at('new')).mode & 0o777).toBe(0o640);
  });

  test('that is there is left alone, or written to behind its end', async () => {
    writeFileSync(at('old'), 'old ');
    expect(await refusalOf(at('old'))).toMatch(/is there already/);
    expect(readFileSync(at('old'), 'latin1')).toBe('old ');
    const file = await openOutputFile(at('old'), 'append');
    await file.write(Buffer.from('new'));
    await file.close();
    expect(readFileSync(at('old'), 'latin1')).toBe('old new');
  });

  test('that is discarded is gone if it was made here, and stays if it was there', async () => {
    writeFileSync(at('old'), 'old');
    await (await openOutputFile(at('old'), 'append')).discard();
    await (await openOutputFile(at('new'), 'new')).discard();
    expect(readFileSync(at('old'), 'latin1')).toBe('old');
    expect(() => statSync(at('new'))).toThrow(/ENOENT/);
  });

  test('that was lost to a full disk is told to whoever writes', async () => {
    const file = await openOutputFile('/dev/full', 'append').catch((error: unknown) => error);
    expect(file).toMatchObject({ code: 'output-file', message: expect.stringMatching(/not a regular file/) });
  });

  test.each<[what: string, plant: () => string]>([
    [
      'a link to a file',
      () => {
        writeFileSync(at('target'), '');
        symlinkSync(at('target'), at('link'));
        return at('link');
      },
    ],
    [
      'a dangling link',
      () => {
        symlinkSync(at('none'), at('link'));
        return at('link');
      },
    ],
    [
      'a second name of a file',
      () => {
        writeFileSync(at('file'), '');
        linkSync(at('file'), at('other'));
        return at('other');
      },
    ],
    [
      "somebody's file",
      () => {
        writeFileSync(at('file'), '');
        chownSync(at('file'), 12_345, 0);
        return at('file');
      },
    ],
    ['a directory', () => directory],
    [
      'a name in a directory that others may write',
      () => {
        mkdirSync(at('shared'));
        chmodSync(at('shared'), 0o1777);
        return at('shared/file');
      },
    ],
    [
      "a name in somebody's directory",
      () => {
        mkdirSync(at('home'));
        chownSync(at('home'), 12_345, 0);
        return at('home/file');
      },
    ],
    [
      'a name behind a link',
      () => {
        mkdirSync(at('real'));
        symlinkSync(at('real'), at('link'));
        return at('link/file');
      },
    ],
    ['a name in no directory', () => at('none/file')],
  ])('is never %s', async (_, plant) => {
    const path = plant();
    await refusalOf(path, 'append');
    await refusalOf(path, 'new');
  });
});
