/**
 * The lines of a configuration file, refused wherever the `ini` package would read them otherwise than a person
 * does: it cuts values at `#` and `;`, turns a byte order mark, an indented section line or one with a comment
 * into a key, lets the last of repeated keys win, splits section names at dots, makes `true` of a bare key and
 * an array of `key[]`, and drops `__proto__` without a word (facts measured on ini 6 and 7).
 *
 * Accepted: UTF-8 with or without byte order mark, LF or CRLF; empty lines; lines whose first visible character
 * is `#` or `;` (comments); `[section]` from the first column on; `key = value`. A value stands as it is, or
 * in double quotes with the escapes of JSON. Nothing else.
 */
import { decode as decodeIni } from 'ini';
import { quoteText } from '../base/escape.ts';
import { LIMITS } from '../base/limits.ts';
import type { FaultList } from './fault.ts';

export type Entry = {
  readonly key: string;
  /** After quotes and blanks are taken off. */
  readonly value: string;
  readonly line: number;
};

export type Section = {
  readonly name: string;
  readonly line: number;
  readonly entries: readonly Entry[];
};

const BYTE_ORDER_MARK = Buffer.from([0xef, 0xbb, 0xbf]);

/** Bytes to lines of text; a fault for everything that is not plain UTF-8 with LF or CRLF. */
const readText = (bytes: Buffer, faults: FaultList): readonly string[] | undefined => {
  const wide = bytes.length >= 2 && [0xfeff, 0xfffe].includes(bytes.readUInt16BE(0));
  if (wide || bytes.includes(0)) {
    faults.add('config-syntax', 0, 'the file has NUL bytes or is UTF-16; it must be UTF-8');
    return undefined;
  }
  if (bytes.length > LIMITS.configBytesMax) {
    faults.add('config-syntax', 0, `the file is over ${LIMITS.configBytesMax} bytes`);
    return undefined;
  }
  const marked = bytes.subarray(0, 3).equals(BYTE_ORDER_MARK);
  const body = marked ? bytes.subarray(3) : bytes;
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  const before = faults.count;
  const raw = body.toString('latin1').split('\n');
  const lines = raw.map((piece, index) => {
    const ended = index < raw.length - 1 && piece.endsWith('\r') ? piece.slice(0, -1) : piece;
    let text: string;
    try {
      text = decoder.decode(Buffer.from(ended, 'latin1'));
    } catch {
      // The decoder has one reason to throw, and the fault says it.
      faults.add('config-syntax', index + 1, 'the line is not UTF-8');
      return '';
    }
    if (text.includes('\r')) {
      faults.add('config-syntax', index + 1, 'a carriage return stands without a line feed behind it');
    } else if (/[\p{Cc}\ufeff]/u.test(text.replaceAll('\t', ''))) {
      faults.add('config-syntax', index + 1, `there is a control character in ${quoteText(text)}`);
    }
    return text;
  });
  return faults.count === before ? lines : undefined;
};

/** The value of `key = value`, or why ini or a person could read it otherwise. */
const readValue = (text: string): { readonly value: string } | { readonly reason: string } => {
  if (text.startsWith('"')) {
    const closed = /^"(?:[^"\\]|\\.)*"/.exec(text)?.[0];
    if (closed === undefined) return { reason: 'a quote is not closed' };
    if (closed !== text) return { reason: 'something follows the closing quote' };
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch {
      // JSON.parse throws for one reason, an escape that JSON does not have.
      return { reason: 'an escape is not one of JSON' };
    }
    if (typeof value !== 'string' || /\p{Cc}/u.test(value))
      return { reason: 'a control character is quoted' };
    return { value };
  }
  const trap = /["'#;\\]/.exec(text)?.[0];
  if (trap === '#' || trap === ';')
    return { reason: `the value would be cut at "${trap}"; quote it, or put the comment on its own line` };
  if (trap !== undefined) return { reason: `${trap} stands in a value that is not in double quotes` };
  if (/[^\t\x20-\x7e]/.test(text))
    return { reason: 'characters other than ASCII stand in a value that is not in double quotes' };
  return { value: text };
};

const trimBlanks = (text: string): string => text.replace(/^[ \t]+|[ \t]+$/g, '');

const readSectionName = (text: string, line: number, faults: FaultList): string | undefined => {
  const name = /^\[([^[\]]*)\][ \t]*$/.exec(text)?.[1];
  if (name !== undefined) return name;
  const shown = quoteText(text);
  if (/^[ \t]/.test(text)) faults.add('config-syntax', line, `the section line ${shown} is indented`);
  else if (/^\[[^[\]]*\]/.test(text))
    faults.add('config-syntax', line, `something follows the section in ${shown}`);
  else faults.add('config-syntax', line, `${shown} is not a section line`);
  return undefined;
};

/**
 * Splits a file into sections and entries, in the order written. Faults are added to `faults`; what is returned
 * then is good enough only to look for further faults. Entries of a section line that was refused are dropped.
 */
export const readLines = (bytes: Buffer, faults: FaultList): readonly Section[] => {
  const lines = readText(bytes, faults);
  if (lines === undefined) return [];
  type OpenSection = { readonly name: string; readonly line: number; readonly entries: Entry[] };
  const sections = new Map<string, OpenSection>();
  let open: OpenSection | 'none' | 'refused' = 'none';
  lines.forEach((text, index) => {
    const line = index + 1;
    if (/^[ \t]*([#;]|$)/.test(text)) return;
    if (/^[ \t]*\[/.test(text)) {
      const name = readSectionName(text, line, faults);
      const earlier = name === undefined ? undefined : sections.get(name);
      open = 'refused';
      if (name === undefined) return;
      if (earlier !== undefined) {
        faults.add(
          'config-syntax',
          line,
          `section ${quoteText(name)} stands in line ${earlier.line} already`,
        );
        return;
      }
      open = { name, line, entries: [] };
      sections.set(name, open);
      return;
    }
    const equals = text.indexOf('=');
    if (equals === -1) {
      faults.add('config-syntax', line, `${quoteText(text)} is neither a section nor "key = value"`);
      return;
    }
    const key = trimBlanks(text.slice(0, equals));
    const written = trimBlanks(text.slice(equals + 1));
    const read = readValue(written);
    if (open === 'none') {
      faults.add('config-syntax', line, `${quoteText(key)} stands before the first section`);
      return;
    }
    if ('reason' in read) {
      faults.add('config-syntax', line, `${quoteText(key)} = ${quoteText(written)}: ${read.reason}`);
      return;
    }
    if (open === 'refused') return;
    const earlier = open.entries.find((entry) => entry.key === key);
    if (earlier === undefined) open.entries.push({ key, value: read.value, line });
    else faults.add('config-syntax', line, `${quoteText(key)} is set in line ${earlier.line} already`);
  });
  return [...sections.values()];
};

/**
 * Reads the same bytes with the `ini` package and adds a fault for every difference. With the rules above there
 * is none; this is what keeps it so when either side changes.
 */
export const compareWithIni = (bytes: Buffer, sections: readonly Section[], faults: FaultList): void => {
  const text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  const decoded: Record<string, unknown> = decodeIni(text);
  const names = Object.keys(decoded);
  if (names.length !== sections.length) {
    faults.add('config-syntax', 0, `the file would be read as the sections ${quoteText(names.join(', '))}`);
  }
  for (const { name, line, entries } of sections) {
    const found = Object.hasOwn(decoded, name) ? decoded[name] : undefined;
    const keys = typeof found === 'object' && found !== null ? Object.entries(found) : [];
    if (keys.length !== entries.length) {
      faults.add('config-syntax', line, `section ${quoteText(name)} would be read with ${keys.length} keys`);
    }
    for (const entry of entries) {
      const value: unknown = keys.find(([key]) => key === entry.key)?.[1];
      if (String(value) === entry.value) continue;
      faults.add(
        'config-syntax',
        entry.line,
        `${quoteText(entry.key)} would be read as ${quoteText(String(value))}`,
      );
    }
  }
};
