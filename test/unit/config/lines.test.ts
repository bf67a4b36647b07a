import { describe, expect, test } from 'vitest';
import { createFaultList } from '../../../src/config/fault.ts';
import { compareWithIni, readLines } from '../../../src/config/lines.ts';
import { FILE, MINIMAL, refusalOf, withLine } from './sample.ts';

const RANGE = 'range = 70000-79999';

/** Line 4 of the minimal file is the pool's range. */
const refusedAtRange = (line: string): string => {
  const { code, message } = refusalOf(withLine(RANGE, line));
  expect(code).toBe('config-syntax');
  expect(message.startsWith(`${FILE}:4: `)).toBe(true);
  return message.slice(`${FILE}:4: `.length);
};

describe('lines that ini would read otherwise', () => {
  test.each([
    [
      `${RANGE} # ours`,
      '"range" = "70000-79999 # ours": the value would be cut at "#"; quote it, or put the comment on its own line',
    ],
    [
      `${RANGE};`,
      '"range" = "70000-79999;": the value would be cut at ";"; quote it, or put the comment on its own line',
    ],
    [`${RANGE}\\#`, '"range" = "70000-79999\\\\#": \\ stands in a value that is not in double quotes'],
    ['range = "70000-79999', '"range" = "\\"70000-79999": a quote is not closed'],
    ['range = "', '"range" = "\\"": a quote is not closed'],
    ['range = "70000-79999" x', '"range" = "\\"70000-79999\\" x": something follows the closing quote'],
    ['range = "70000-79999" # x', '"range" = "\\"70000-79999\\" # x": something follows the closing quote'],
    [
      "range = '70000-79999'",
      '"range" = "\'70000-79999\'": \' stands in a value that is not in double quotes',
    ],
    [
      'range = 70000-"79999"',
      '"range" = "70000-\\"79999\\"": " stands in a value that is not in double quotes',
    ],
    ['range = "\\x37"', '"range" = "\\"\\\\x37\\"": an escape is not one of JSON'],
    ['range = "7\\u0000"', '"range" = "\\"7\\\\u0000\\"": a control character is quoted'],
    [
      'range = 70000-79999\u00a0',
      '"range" = "70000-79999\\u{a0}": characters other than ASCII stand in a value that is not in double quotes',
    ],
    ['range', '"range" is neither a section nor "key = value"'],
    ['\u00a0# x', '"\\u{a0}# x" is neither a section nor "key = value"'],
    ['range : 70000-79999', '"range : 70000-79999" is neither a section nor "key = value"'],
    ['range[] = 70000-79999', 'unknown key "range[]" in [pool]; did you mean "range"?'],
    ['ra[nge = 70000-79999', 'unknown key "ra[nge" in [pool]; did you mean "range"?'],
    ['"range" = 70000-79999', 'unknown key "\\"range\\"" in [pool]; did you mean "range"?'],
    ['range\u200b = 70000-79999', 'unknown key "range\\u{200b}" in [pool]; did you mean "range"?'],
    ['Range = 70000-79999', 'unknown key "Range" in [pool]; did you mean "range"?'],
    [' = 70000-79999', 'unknown key "" in [pool]'],
    ['rnage = 70000-79999', 'unknown key "rnage" in [pool]; did you mean "range"?'],
    ['uid_min = 70000', 'unknown key "uid_min" in [pool]'],
    ['tmp_size = 1G', 'unknown key "tmp_size" in [pool]; it belongs to [sandbox]'],
    ['__proto__ = 1', 'unknown key "__proto__" in [pool]'],
    ['constructor = 1', 'unknown key "constructor" in [pool]'],
    ['hasOwnProperty = 1', 'unknown key "hasOwnProperty" in [pool]'],
    ['range = 70000-79999\u0007', 'there is a control character in "range = 70000-79999\\x07"'],
    ['# \u009b31m', 'there is a control character in "# \\u{9b}31m"'],
    ['range = 70000-79999\rx', 'a carriage return stands without a line feed behind it'],
  ])('%j is refused with its line', (line, reason) => {
    expect(refusedAtRange(line)).toBe(reason);
  });

  test('a key before the first section is refused', () => {
    expect(refusalOf(`range = 1-2\n${MINIMAL}`).message).toBe(
      `${FILE}:1: "range" stands before the first section`,
    );
  });

  test('the second of two equal keys does not win', () => {
    expect(refusalOf(withLine(RANGE, `${RANGE}\nrange = 80000-80009`)).message).toBe(
      `${FILE}:5: "range" is set in line 4 already`,
    );
  });
});

describe('section lines', () => {
  test.each([
    ['[pool]     ; workers', 'something follows the section in "[pool]     ; workers"'],
    ['[pool] x', 'something follows the section in "[pool] x"'],
    ['  [pool]', 'the section line "  [pool]" is indented'],
    ['\t[pool]', 'the section line "\\t[pool]" is indented'],
    ['[pool', '"[pool" is not a section line'],
    ['[[pool]]', '"[[pool]]" is not a section line'],
    ['[pool] = 1', 'something follows the section in "[pool] = 1"'],
    ['[]', 'unknown section ""'],
    ['[ pool ]', 'unknown section " pool "; did you mean "pool"?'],
    ['[Pool]', 'unknown section "Pool"; did you mean "pool"?'],
    ['["pool"]', 'unknown section "\\"pool\\""; did you mean "pool"?'],
    ['[pol]', 'unknown section "pol"; did you mean "pool"?'],
    ['[pool.x]', 'unknown section "pool.x"; did you mean "pool"?'],
    ['[__proto__]', 'unknown section "__proto__"'],
    ['[constructor.prototype]', 'unknown section "constructor.prototype"'],
    ['[toString]', 'unknown section "toString"'],
    ['[storage]', 'unknown section "storage"; write [storage NAME]'],
    [
      '[storage a.b]',
      '"a.b" is not a storage name (a lower-case letter, then lower-case letters, digits, - and _, at most 32)',
    ],
    [
      '[storage __proto__]',
      '"__proto__" is not a storage name (a lower-case letter, then lower-case letters, digits, - and _, at most 32)',
    ],
    ['[storage \ta]\nath = /a', 'unknown key "ath" in [storage \\ta]; did you mean "path"?'],
    [
      '[storage  a]',
      '" a" is not a storage name (a lower-case letter, then lower-case letters, digits, - and _, at most 32)',
    ],
  ])('%j is refused with its line', (line, reason) => {
    const { code, message } = refusalOf(withLine('[pool]', line));
    expect(code).toBe('config-syntax');
    expect(message).toContain(reason);
    expect(message).toMatch(/(:3: |line 3: )/);
  });

  test('a section that comes twice is refused, and names its first line', () => {
    expect(refusalOf(`${MINIMAL}[pool]\n`).message).toBe(
      `${FILE}:11: section "pool" stands in line 3 already`,
    );
  });

  test('nothing of a refused file reaches a prototype', () => {
    refusalOf('[__proto__]\nuid_min = 0\nallow_root = true\n[constructor.prototype]\nx = 1\n');
    expect(({} as Record<string, unknown>)['uid_min']).toBeUndefined();
    expect(({} as Record<string, unknown>)['x']).toBeUndefined();
  });

  test('a key of another section is refused where it stands (indented and commented sections)', () => {
    const { message } = refusalOf(
      '[lease]\ndirectory = /srv/a\n[nodes]     ; workers\n  [mpi]\nrange = 1-2\n',
    );
    expect(message).toContain('line 3: something follows the section');
    expect(message).toContain('line 4: the section line "  [mpi]" is indented');
  });
});

describe('bytes', () => {
  test.each([
    ['UTF-16 with a mark, little-endian', Buffer.from(`\ufeff${MINIMAL}`, 'utf16le')],
    ['UTF-16 with a mark, big-endian', Buffer.from(`\ufeff${MINIMAL}`, 'utf16le').swap16()],
    ['UTF-16 without a mark', Buffer.from(MINIMAL, 'utf16le')],
    ['a NUL byte in a value', Buffer.from(withLine(RANGE, 'range = 70000-79999\0'))],
  ])('%s is refused', (_claim, bytes) => {
    expect(refusalOf(bytes)).toEqual({
      code: 'config-syntax',
      message: `${FILE}: the file has NUL bytes or is UTF-16; it must be UTF-8`,
    });
  });

  test('lines that end with CR only are refused', () => {
    expect(refusalOf(MINIMAL.replaceAll('\n', '\r')).message).toBe(
      `${FILE}:1: a carriage return stands without a line feed behind it`,
    );
  });

  test('a line that is not UTF-8 is refused, also in a comment', () => {
    expect(
      refusalOf(Buffer.concat([Buffer.from('# a\n# \xff\n', 'latin1'), Buffer.from(MINIMAL)])).message,
    ).toBe(`${FILE}:2: the line is not UTF-8`);
  });

  test('a second byte order mark is refused', () => {
    expect(refusalOf(`\ufeff\ufeff${MINIMAL}`).message).toMatch(
      /:1: there is a control character in "\\u\{feff\}/,
    );
  });

  test('a file over the limit is refused', () => {
    expect(refusalOf(`#${'x'.repeat(1 << 20)}\n`).message).toBe(`${FILE}: the file is over 1048576 bytes`);
  });
});

describe('the comparison with ini', () => {
  const differences = (text: string, ours: string): readonly string[] => {
    const lines = createFaultList();
    const sections = readLines(Buffer.from(ours), lines);
    const faults = createFaultList();
    compareWithIni(Buffer.from(text), sections, faults);
    return faults.count === 0 ? [] : [faults.toError(FILE).message];
  };

  test('finds nothing where both read the same', () => {
    expect(differences(MINIMAL, MINIMAL)).toEqual([]);
  });

  test('finds a value, a key and a section that ini would read otherwise', () => {
    expect(differences('[a]\nb = 1 # c\n', '[a]\nb = 2\n')).toEqual([`${FILE}:2: "b" would be read as "1"`]);
    expect(differences('[a]\nb = 1\nc = 2\n', '[a]\nb = 1\n')).toEqual([
      `${FILE}:1: section "a" would be read with 2 keys`,
    ]);
    expect(differences('[a]\n[b]\n', '[a]\n')).toEqual([
      `${FILE}: the file would be read as the sections "a, b"`,
    ]);
    expect(differences('[a.b]\nc = 1\n', '[a.b]\nc = 1\n')).toHaveLength(1);
  });
});
