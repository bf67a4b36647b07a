/**
 * Makes bytes that somebody else chose (a file name, a command line, a raw value) safe to show on a terminal
 * and in a log line. The result is one line, contains no byte that moves a cursor, starts a control sequence,
 * hides text or turns its direction, and two different inputs never look the same: a backslash is doubled.
 */

const NAMED: ReadonlyMap<number, string> = new Map([
  [0x09, '\\t'],
  [0x0a, '\\n'],
  [0x0d, '\\r'],
  [0x5c, '\\\\'],
]);

/**
 * Everything that is not plainly visible: control, format (bidi, zero width), surrogate, private and unassigned
 * code points, blanks other than the space, default-ignorable fillers; and the backslash itself.
 */
const HIDDEN = /[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}\\]/gu;

const escapeCodePoint = (character: string): string => {
  if (character === ' ') return character;
  const code = character.codePointAt(0) ?? 0;
  const named = NAMED.get(code);
  if (named !== undefined) return named;
  return code < 0x80 ? `\\x${code.toString(16).padStart(2, '0')}` : `\\u{${code.toString(16)}}`;
};

/** Escapes text that is already decoded; lone surrogates become \u{d800} to \u{dfff}. */
export const escapeText = (text: string): string => text.replace(HIDDEN, escapeCodePoint);

const HIDDEN_IN_JSON = /[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;

const escapeUnits = (character: string): string =>
  Array.from({ length: character.length }, (_, at) => character.charCodeAt(at))
    .map((unit) => `\\u${unit.toString(16).padStart(4, '0')}`)
    .join('');

/** A value as one line of JSON that is safe on a terminal as well: it parses to the same value. */
export const formatJsonLine = (value: unknown): string =>
  `${JSON.stringify(value).replace(HIDDEN_IN_JSON, escapeUnits)}\n`;

const isContinuation = (byte: number | undefined): boolean => byte !== undefined && (byte & 0xc0) === 0x80;

/** Length in bytes of the well-formed UTF-8 sequence at `at` (Unicode 15, table 3-7), or 0 where there is none. */
const sequenceLength = (bytes: Uint8Array, at: number): number => {
  const first = bytes[at] ?? 0;
  const second = bytes[at + 1];
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4 || !isContinuation(second) || second === undefined) return 0;
  if (first < 0xe0) return 2;
  if (!isContinuation(bytes[at + 2])) return 0;
  if (first === 0xe0 && second < 0xa0) return 0;
  if (first === 0xed && second > 0x9f) return 0;
  if (first < 0xf0) return 3;
  if (first === 0xf0 && second < 0x90) return 0;
  if (first === 0xf4 && second > 0x8f) return 0;
  return isContinuation(bytes[at + 3]) ? 4 : 0;
};

/** Escapes raw bytes: well-formed UTF-8 as escapeText does, every other byte as \x80 to \xff. */
export const escapeBytes = (bytes: Uint8Array): string => {
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  const parts: string[] = [];
  let start = 0;
  let at = 0;
  const flush = (): void => {
    if (at > start) parts.push(escapeText(decoder.decode(bytes.subarray(start, at))));
  };
  while (at < bytes.length) {
    const length = sequenceLength(bytes, at);
    if (length > 0) {
      at += length;
      continue;
    }
    flush();
    parts.push(`\\x${(bytes[at] ?? 0).toString(16).padStart(2, '0')}`);
    at += 1;
    start = at;
  }
  flush();
  return parts.join('');
};

/** Quotes an escaped form of text for a message, cut after `charsMax` characters of the original. */
export const quoteText = (text: string, charsMax = 120): string => {
  const characters = Array.from(text.slice(0, 2 * charsMax + 2));
  const shown = escapeText(characters.slice(0, charsMax).join('')).replaceAll('"', '\\"');
  return characters.length > charsMax ? `"${shown}"…` : `"${shown}"`;
};
