import { describe, expect, test } from 'vitest';
import { LIMITS } from '../../../src/base/limits.ts';
import { parseEnvFile } from '../../../src/launch/env-file.ts';

const parse = (text: string) =>
  parseEnvFile(Buffer.from(text, 'latin1'), (name) => /^[A-Za-z_][A-Za-z0-9_]*$/.test(name));

const read = (text: string): readonly string[] =>
  (parse(text).variables ?? []).map(({ name, value }) => `${name}=${value.toString('latin1')}`);

describe('a file with variables', () => {
  test.each<[text: string, variables: readonly string[]]>([
    ['', []],
    ['A=1', ['A=1']],
    ['# a remark\n\nA=1\nB=\n', ['A=1', 'B=']],
    ['A= b c \nB==x=\nC=#no remark\nD=$A `x` \\n\n', ['A= b c ', 'B==x=', 'C=#no remark', 'D=$A `x` \\n']],
    ['A=\xff\xfe', ['A=\xff\xfe']],
    ['A=b"c"', ['A=b"c"']],
  ])('%j gives what stands in it, byte for byte', (text, variables) => {
    expect(parse(text).fault).toBe(undefined);
    expect(read(text)).toEqual(variables);
  });

  test.each<[text: string, line: number, reason: RegExp]>([
    ['A=1\nB', 2, /^B has no "="/],
    ['A=1\n\n#\nexport B=1\n', 4, /"export" is for a shell/],
    [' A=1', 1, /" A" is not the name of a variable/],
    ['A =1', 1, /"A " is not the name/],
    ['=1', 1, /"" is not the name/],
    ['1A=1', 1, /"1A" is not the name/],
    ['\xc3\xa9=1', 1, /is not the name/],
    [' # x', 1, /is not the name/],
    ['A="x"', 1, /begins with a quote/],
    ["A='", 1, /begins with a quote/],
    ['A=1\r\nB=2\r\n', 1, /CR LF/],
    ['A=1\nB=\0\n', 2, /a NUL byte/],
    ['A=1\nB=2\nA=3\n', 3, /^A stands in line 1 already$/],
  ])('%j is refused with its line', (text, line, reason) => {
    expect(parse(text).fault).toEqual({ line, reason: expect.stringMatching(reason) });
  });

  test('has no more variables than a step takes', () => {
    const lines = (count: number): string =>
      Array.from({ length: count }, (_, index) => `V${index}=`).join('\n');
    expect(read(lines(LIMITS.envCountMax))).toHaveLength(LIMITS.envCountMax);
    expect(parse(lines(LIMITS.envCountMax + 1)).fault).toMatchObject({ line: LIMITS.envCountMax + 1 });
  });
});
