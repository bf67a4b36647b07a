import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { escapeBytes, escapeText, formatJsonLine, quoteText } from '../../../src/base/escape.ts';

const bytes = (...values: number[]): Uint8Array => Uint8Array.from(values);
const utf8 = (text: string): Uint8Array => new TextEncoder().encode(text);

describe('escapeBytes', () => {
  test.each([
    ['plain text stays as it is', utf8('job/a b-c_1.txt'), 'job/a b-c_1.txt'],
    ['letters of other scripts stay', utf8('café 日本 ёж'), 'café 日本 ёж'],
    ['a newline does not end the line', utf8('a\nb'), 'a\\nb'],
    ['tab and carriage return are named', utf8('a\tb\rc'), 'a\\tb\\rc'],
    ['ESC cannot start a sequence', utf8('\x1b[2K\rok'), '\\x1b[2K\\rok'],
    ['a C1 control (CSI) is escaped', utf8('\u009b31m'), '\\u{9b}31m'],
    ['DEL and NUL are escaped', bytes(0x7f, 0), '\\x7f\\x00'],
    ['bidi overrides are escaped', utf8('a\u202eb\u2066c'), 'a\\u{202e}b\\u{2066}c'],
    ['zero-width characters are escaped', utf8('a\u200bb\ufeffc'), 'a\\u{200b}b\\u{feff}c'],
    ['line and paragraph separators are escaped', utf8('a\u2028b\u2029'), 'a\\u{2028}b\\u{2029}'],
    ['a no-break space does not pass for a space', utf8('a\u00a0b'), 'a\\u{a0}b'],
    ['a filler that prints nothing is escaped', utf8('a\u3164b'), 'a\\u{3164}b'],
    ['a backslash is doubled', utf8('a\\nb'), 'a\\\\nb'],
    ['bytes that are not UTF-8 are shown in hex', bytes(0xff, 0xfe, 0x41), '\\xff\\xfeA'],
    ['a cut sequence is shown in hex', bytes(0x41, 0xc3), 'A\\xc3'],
    ['an overlong slash is not a slash', bytes(0xc0, 0xaf), '\\xc0\\xaf'],
    ['an encoded surrogate is not UTF-8', bytes(0xed, 0xa0, 0x80), '\\xed\\xa0\\x80'],
    ['a code point over U+10FFFF is not UTF-8', bytes(0xf4, 0x90, 0x80, 0x80), '\\xf4\\x90\\x80\\x80'],
    ['a leading byte order mark is shown', bytes(0xef, 0xbb, 0xbf, 0x41), '\\u{feff}A'],
  ])('%s', (_claim, input, expected) => {
    expect(escapeBytes(input)).toBe(expected);
  });

  test('the result is one visible line, whatever the bytes', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 64 }), (input) => {
        expect(escapeBytes(input)).toMatch(/^[^\p{C}\p{Zl}\p{Zp}\u00a0]*$/u);
      }),
    );
  });

  test('different bytes never look the same', () => {
    const readBack = (text: string): Buffer =>
      Buffer.concat(
        (text.match(/\\x[0-9a-f]{2}|\\u\{[0-9a-f]+\}|\\[tnr\\]|[^\\]/gu) ?? []).map((part) => {
          if (part.startsWith('\\x')) return Buffer.from([Number.parseInt(part.slice(2), 16)]);
          if (part.startsWith('\\u'))
            return Buffer.from(String.fromCodePoint(Number.parseInt(part.slice(3, -1), 16)));
          const named = { '\\t': '\t', '\\n': '\n', '\\r': '\r', '\\\\': '\\' }[part];
          return Buffer.from(named ?? part);
        }),
      );
    fc.assert(
      fc.property(
        fc.oneof(
          fc.uint8Array({ maxLength: 64 }),
          fc.string({ unit: 'binary', maxLength: 32 }).map((text) => utf8(text)),
        ),
        (input) => {
          expect(readBack(escapeBytes(input))).toEqual(Buffer.from(input));
        },
      ),
    );
  });
});

describe('escapeText and quoteText', () => {
  test('a lone surrogate is shown by its number', () => {
    expect(escapeText('a\ud800b')).toBe('a\\u{d800}b');
  });

  test('quotes inside a quoted value cannot end it', () => {
    expect(quoteText('a"b')).toBe('"a\\"b"');
  });

  test('a long value is cut and says so, without cutting a character in two', () => {
    expect(quoteText('😀'.repeat(5), 3)).toBe('"😀😀😀"…');
    expect(quoteText('abc', 3)).toBe('"abc"');
  });
});

describe('formatJsonLine', () => {
  test.each([
    'plain',
    '\u001b[31m',
    '\u009b0m',
    'a\u202eb',
    'a\u2028b\nc',
    '\ud83d\ude00',
    '\u{e0041}',
    '\ud800',
    '\u007f',
  ])('is one visible line that parses to the same value: %j', (text) => {
    const line = formatJsonLine({ text });
    expect(JSON.parse(line)).toEqual({ text });
    expect(line.slice(0, -1)).toMatch(/^[^\p{C}\p{Zl}\p{Zp}]*$/u);
    expect(line.at(-1)).toBe('\n');
  });
});
