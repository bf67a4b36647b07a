import { chmodSync, chownSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { readTrustedFile } from '../../../src/os/trusted-file.ts';

// Below /var/lib, because every parent of /tmp's files is writable by others.
describe.skipIf(process.geteuid?.() !== 0)('readTrustedFile', () => {
  let top = '';
  let file = '';
  beforeEach(() => {
    top = mkdtempSync('/var/lib/xce-test-');
    chmodSync(top, 0o755);
    mkdirSync(join(top, 'etc'), { mode: 0o755 });
    file = join(top, 'etc/x.ini');
    writeFileSync(file, 'text', { mode: 0o644 });
  });
  afterEach(() => {
    rmSync(top, { recursive: true });
  });

  const refusal = (path: string, bytesMax = 100): unknown => {
    try {
      return readTrustedFile(path, bytesMax);
    } catch (error) {
      return error instanceof Error && 'code' in error ? `${String(error.code)}: ${error.message}` : error;
    }
  };

  test('reads a file that only root can have written', () => {
    expect(readTrustedFile(file, 4)).toEqual(Buffer.from('text'));
  });

  test('a file that its group or others may write is refused', () => {
    for (const mode of [0o664, 0o646]) {
      chmodSync(file, mode);
      expect(refusal(file)).toBe(`config-unsafe: ${file} must belong to root and be writable by root alone`);
    }
  });

  test('a file of another user is refused', () => {
    chownSync(file, 65_533, 0);
    expect(refusal(file)).toMatch(/^config-unsafe: /);
  });

  test('a parent that others may write is refused, at any height and also with the sticky bit', () => {
    chmodSync(top, 0o1777);
    expect(refusal(file)).toBe(`config-unsafe: ${top} must belong to root and be writable by root alone`);
    chmodSync(top, 0o755);
    chmodSync(join(top, 'etc'), 0o775);
    expect(refusal(file)).toBe(`config-unsafe: ${top}/etc must belong to root and be writable by root alone`);
  });

  test('nobody is told to change the mode of a directory that others may need', () => {
    chmodSync(top, 0o1777);
    expect(() => readTrustedFile(file, 100)).toThrow(
      expect.objectContaining({
        facts: expect.objectContaining({ next: expect.not.stringMatching(/chmod|chown/) }),
      }),
    );
  });

  test('a parent of another user is refused', () => {
    chownSync(top, 65_533, 65_533);
    expect(refusal(file)).toMatch(/^config-unsafe: /);
  });

  test('links are not followed, neither as file nor as parent', () => {
    symlinkSync('x.ini', join(top, 'etc/link.ini'));
    expect(refusal(join(top, 'etc/link.ini'))).toBe(`io: cannot open ${top}/etc/link.ini: ELOOP`);
    symlinkSync('etc', join(top, 'conf'));
    expect(refusal(join(top, 'conf/x.ini'))).toBe(
      `config-unsafe: ${top}/conf is not a directory, or is reached through a link`,
    );
  });

  test('what is absent, too long, or not named in full is refused', () => {
    expect(refusal(join(top, 'none.ini'))).toBe(`io: cannot open ${top}/none.ini: ENOENT`);
    expect(refusal(join(top, 'none/x.ini'))).toBe(`io: cannot look at ${top}/none: ENOENT`);
    expect(refusal(file, 3)).toBe(`too-large: ${file} is over 3 bytes`);
    expect(refusal('etc/x.ini')).toMatch(/^io: .*not an absolute path/);
    expect(refusal(`${top}/etc/../etc/x.ini`)).toMatch(/^io: .*not an absolute path/);
    expect(refusal(`${file}/`)).toMatch(/^io: .*not an absolute path/);
  });
});
