import { chmodSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { collectEnvironment } from '../../../src/operations/environment.ts';

const own = new Map<string, Buffer>([
  ['LANG', Buffer.from('C')],
  ['EMPTY', Buffer.alloc(0)],
  ['RAW', Buffer.from([0xff, 0x3d, 0x0a])],
]);

const collect = (wanted: readonly string[], passEnvironment: readonly string[] = []): readonly string[] => {
  const context = { settings: { sandbox: { passEnvironment } } };
  return collectEnvironment(context, { files: [], variables: wanted }, own).map((bytes) =>
    bytes.toString('latin1'),
  );
};

const codeOf = (wanted: string): string => {
  try {
    collect([wanted]);
  } catch (error) {
    if (error instanceof XceError) return error.code;
    throw error;
  }
  return 'none';
};

describe("a step's environment", () => {
  test('has nothing that was not asked for', () => {
    expect(collect([])).toEqual([]);
  });

  test('has what the configuration passes on, where it is set, and what the caller gives', () => {
    expect(collect(['A=1', 'B='], ['LANG', 'NOT_SET', 'EMPTY'])).toEqual(['LANG=C', 'EMPTY=', 'A=1', 'B=']);
  });

  test('has each name once; the later one wins, and the caller over the configuration', () => {
    expect(collect(['A=1', 'LANG=de', 'A=2'], ['LANG'])).toEqual(['LANG=de', 'A=2']);
  });

  test('keeps values as they are, with equals signs, new lines and bytes that are no text', () => {
    expect(collect(['A==b=\n', 'U=ü', 'RAW'])).toEqual(['A==b=\n', 'U=\xc3\xbc', 'RAW=\xff=\n']);
  });

  test.each(['', '=x', '1A=x', 'A B=x', 'A-B', 'é=x', 'A\n=x', 'a\0=x'])('refuses the name in %j', (text) => {
    expect(codeOf(text)).toBe('usage');
  });

  test('refuses to pass on what is not set, and what the command line has mangled', () => {
    expect(codeOf('NOT_SET')).toBe('usage');
    expect(codeOf('A=\ufffd')).toBe('usage');
  });

  // Not below /tmp, where everybody may write.
  test.skipIf(process.geteuid?.() !== 0)(
    'has the variables of files in between, none from where others may write',
    () => {
      const directory = mkdtempSync('/var/lib/xce-env-');
      try {
        const [one, two] = [join(directory, 'one'), join(directory, 'two')];
        writeFileSync(one, 'LANG=file\nA=one\nB=one\n');
        writeFileSync(two, 'B=two\n1=\n');
        const context = { settings: { sandbox: { passEnvironment: ['LANG'] } } };
        const collected = collectEnvironment(context, { files: [one], variables: ['A=flag'] }, own);
        expect(collected.map(String)).toEqual(['LANG=file', 'A=flag', 'B=one']);
        expect(() => collectEnvironment(context, { files: [one, two], variables: [] }, own)).toThrow(
          /two line 2: "1" is not the name of a variable/,
        );
        const refusal = (file: string): unknown => {
          try {
            return collectEnvironment(context, { files: [file], variables: [] }, own);
          } catch (error) {
            return error instanceof XceError ? [error.code, error.facts.at] : error;
          }
        };
        const link = join(directory, 'link');
        symlinkSync(directory, link);
        expect(refusal(join(link, 'one'))).toEqual(['config-unsafe', link]);
        symlinkSync(one, join(directory, 'last'));
        expect(refusal(join(directory, 'last'))).toEqual(['io', join(directory, 'last')]);
        chmodSync(directory, 0o1777);
        expect(refusal(one)).toEqual(['config-unsafe', directory]);
      } finally {
        rmSync(directory, { recursive: true });
      }
    },
  );

  test('comes from the bytes that this process was started with', () => {
    const context = { settings: { sandbox: { passEnvironment: ['PATH'] } } };
    const collected = collectEnvironment(context, { files: [], variables: [] });
    expect(collected.map(String)).toEqual([`PATH=${process.env['PATH']}`]);
  });
});
