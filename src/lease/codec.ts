/**
 * Bytes of events and snapshot records. Whole numbers are unsigned LEB128 of at most 53 bits in their shortest
 * form, texts are UTF-8 with their length in bytes before them, optional values have a byte 0 or 1 before them.
 * Every value has exactly one encoding, so equal states have equal bytes.
 */
import { Buffer } from 'node:buffer';
import { assert, XceError } from '../base/errors.ts';

const NO_BYTES = Buffer.alloc(0);
/** Stands for a byte behind the end; it ends a number. */
const NO_BYTE = -1;

const viewOf = ({ buffer, byteOffset, byteLength }: Uint8Array): DataView =>
  new DataView(buffer, byteOffset, byteLength);

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** The same bytes with the methods of a Buffer. */
export const asBuffer = (bytes: Uint8Array): Buffer =>
  bytes instanceof Buffer ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);

/** Whether all bytes of view[start, end) are below 0x80. */
const isAscii = (view: DataView, start: number, end: number): boolean => {
  let seen = 0;
  let at = start;
  for (; at + 4 <= end; at += 4) seen |= view.getInt32(at);
  for (; at < end; at += 1) seen |= view.getUint8(at);
  return (seen & 0x80808080) === 0;
};

/** Whether a text fits and comes back as it is; UTF-8 has no lone surrogates. */
export const isEncodable = (text: string, bytesMax: number): boolean => {
  const bytes = Buffer.from(text);
  return bytes.length <= bytesMax && bytes.toString() === text;
};

/** What a newer version wrote is refused as such; where it stands is for whoever reads the file to say. */
export const newerBytes = (what: string, version: number, known: number, kind: number): XceError =>
  new XceError(
    'log-version',
    version === known
      ? `${what} of kind ${kind}, which version ${known} does not have`
      : `${what} in version ${version}; this program reads version ${known}`,
    { next: 'install on this host the version that wrote the log' },
  );

/** Words of one hash share a set of so many places. */
const WORD_SETS_LOG2 = 12;
const SET_PLACES = 4;
const WORD_PLACES = SET_PLACES << WORD_SETS_LOG2;
/** Words differ at their ends (node names are numbered), so that the hash is that of these bytes of them. */
const WORD_END_BYTES = 4;

const hashOf = (view: DataView, start: number, end: number): number => {
  let hash = end - start;
  for (let at = Math.max(start, end - WORD_END_BYTES); at < end; at += 1)
    hash = Math.imul(hash ^ view.getUint8(at), 0x9e3779b1) ^ (hash >>> 15);
  return Math.imul(hash, 0x85ebca6b);
};

const isAt = (word: DataView, view: DataView, start: number, end: number): boolean => {
  const length = end - start;
  if (word.byteLength !== length) return false;
  let at = 0;
  for (; at + 4 <= length; at += 4) if (word.getInt32(at) !== view.getInt32(start + at)) return false;
  for (; at < length; at += 1) if (word.getUint8(at) !== view.getUint8(start + at)) return false;
  return true;
};

/**
 * Texts that occur again and again, and what follows from such bytes, kept once and found by their bytes. A new one
 * takes the place of another of its set: a log of ever new texts cannot make it grow.
 */
export class WordTable<Word> {
  readonly #hashes = new Int32Array(WORD_PLACES);
  readonly #bytes: (DataView | undefined)[] = new Array(WORD_PLACES);
  readonly #words: (Word | undefined)[] = new Array(WORD_PLACES);
  #turn = 0;

  /** The word that view[start, end) is, when it is known. */
  find(view: DataView, start: number, end: number): Word | undefined {
    const hash = hashOf(view, start, end);
    const first = (hash >>> (32 - WORD_SETS_LOG2)) * SET_PLACES;
    for (let place = first; place < first + SET_PLACES; place += 1) {
      if (this.#hashes[place] !== hash) continue;
      const known = this.#bytes[place];
      if (known !== undefined && isAt(known, view, start, end)) return this.#words[place];
    }
    return undefined;
  }

  keep(view: DataView, start: number, end: number, word: Word): Word {
    const hash = hashOf(view, start, end);
    this.#turn = (this.#turn + 1) % SET_PLACES;
    const place = (hash >>> (32 - WORD_SETS_LOG2)) * SET_PLACES + this.#turn;
    const from = view.byteOffset + start;
    this.#hashes[place] = hash;
    this.#bytes[place] = new DataView(view.buffer.slice(from, from + end - start));
    this.#words[place] = word;
    return word;
  }
}

export class ByteWriter {
  #buffer = Buffer.allocUnsafe(128);
  #length = 0;

  get length(): number {
    return this.#length;
  }

  #reserve(count: number): void {
    const needed = this.#length + count;
    if (needed <= this.#buffer.length) return;
    const larger = Buffer.allocUnsafe(Math.max(needed, this.#buffer.length * 2));
    this.#buffer.copy(larger, 0, 0, this.#length);
    this.#buffer = larger;
  }

  byte(value: number): this {
    this.#reserve(1);
    this.#buffer[this.#length] = value;
    this.#length += 1;
    return this;
  }

  whole(value: number): this {
    assert(Number.isSafeInteger(value) && value >= 0, 'an encoded number is a safe whole number');
    this.#reserve(8);
    let rest = value;
    while (rest >= 0x80) {
      this.#buffer[this.#length] = (rest % 0x80) + 0x80;
      this.#length += 1;
      rest = Math.floor(rest / 0x80);
    }
    this.#buffer[this.#length] = rest;
    this.#length += 1;
    return this;
  }

  /** Refuses a text that UTF-8 cannot carry (a lone surrogate): it would come back as another text. */
  text(value: string): this {
    const bytes = Buffer.byteLength(value);
    this.whole(bytes);
    this.#reserve(bytes);
    const written = this.#buffer.write(value, this.#length);
    assert(
      bytes === value.length || this.#buffer.toString('utf8', this.#length, this.#length + written) === value,
      'an encoded text is well-formed',
    );
    this.#length += written;
    return this;
  }

  /** Bytes of a length that both sides know, given as lower-case hex. */
  hex(value: string, byteCount: number): this {
    assert(
      value.length === byteCount * 2 && /^[0-9a-f]*$/.test(value),
      'encoded hex has its length and lower case',
    );
    this.#reserve(byteCount);
    this.#length += this.#buffer.write(value, this.#length, 'hex');
    return this;
  }

  optional<Value>(value: Value | null, write: (value: Value) => void): this {
    if (value === null) return this.byte(0);
    this.byte(1);
    write(value);
    return this;
  }

  list<Value>(values: { readonly length: number } & Iterable<Value>, write: (value: Value) => void): this {
    this.whole(values.length);
    for (const value of values) write(value);
    return this;
  }

  finish(): Uint8Array {
    return this.#buffer.subarray(0, this.#length);
  }
}

/** Reads what ByteWriter wrote; anything else throws XceError 'log-corrupt' and reads nothing past the end. */
export class ByteReader {
  #bytes: Buffer = NO_BYTES;
  #view: DataView = viewOf(NO_BYTES);
  #start = 0;
  #end = 0;
  #offset = 0;

  /** Of bytes[start, end). */
  constructor(bytes: Uint8Array, start: number, end: number) {
    this.open(bytes, start, end);
  }

  /** Reads bytes[start, end) from now on: a reader for each of a million records would cost as much as reading them. */
  open(bytes: Uint8Array, start: number, end: number): void {
    if (bytes !== this.#bytes) {
      this.#bytes = asBuffer(bytes);
      this.#view = viewOf(bytes);
    }
    this.#start = start;
    this.#end = end;
    this.#offset = start;
  }

  /** All that it was opened with. */
  get bytes(): Uint8Array {
    return this.#bytes;
  }
  get start(): number {
    return this.#start;
  }
  get end(): number {
    return this.#end;
  }
  get offset(): number {
    return this.#offset;
  }
  /** Reads again from an offset at which it was. */
  backTo(offset: number): void {
    this.#offset = offset;
  }

  corrupt(problem: string): XceError {
    return new XceError('log-corrupt', `a record of the lease log does not decode: ${problem}`, {
      at: `byte ${this.#offset - this.#start} of the record`,
    });
  }

  byte(): number {
    const at = this.#offset;
    if (at >= this.#end) throw this.corrupt('it ends too early');
    this.#offset = at + 1;
    return this.#bytes[at] as number;
  }

  whole(max: number, min = 0): number {
    const bytes = this.#bytes;
    const end = this.#end;
    let at = this.#offset;
    let next = at < end ? (bytes[at] as number) : NO_BYTE;
    let value = next & 0x7f;
    // 28 bits as an integer, which is faster, and what is above them.
    for (let shift = 7; next >= 0x80 && shift < 28; shift += 7) {
      at += 1;
      next = at < end ? (bytes[at] as number) : NO_BYTE;
      value |= (next & 0x7f) << shift;
    }
    if (next >= 0x80) {
      let high = 0;
      for (let shift = 0; next >= 0x80 && shift < 28; shift += 7) {
        at += 1;
        next = at < end ? (bytes[at] as number) : NO_BYTE;
        high |= (next & 0x7f) << shift;
      }
      value += high * 2 ** 28;
    }
    if (next === NO_BYTE) throw this.corrupt('it ends too early');
    if (next >= 0x80) throw this.corrupt('a number is too long');
    if (next === 0 && at > this.#offset) throw this.corrupt('a number is not in its shortest form');
    if (value < min || value > max) throw this.corrupt(`a number is not between ${min} and ${max}`);
    this.#offset = at + 1;
    return value;
  }

  /** Goes behind so many bytes, whatever they are, and gives the offset where they begin. */
  pass(byteCount: number): number {
    const start = this.#offset;
    if (start + byteCount > this.#end) throw this.corrupt('bytes end too early');
    this.#offset = start + byteCount;
    return start;
  }

  /** Goes behind a text and gives the offset where it begins; it ends at #offset. */
  passText(bytesMax: number): number {
    const length = this.whole(bytesMax);
    const start = this.#offset;
    if (start + length > this.#end) throw this.corrupt('a text ends too early');
    this.#offset = start + length;
    return start;
  }

  #decodeText(start: number, end: number): string {
    if (isAscii(this.#view, start, end)) return this.#bytes.toString('latin1', start, end);
    try {
      return decoder.decode(this.#bytes.subarray(start, end));
    } catch {
      throw this.corrupt('a text is not UTF-8');
    }
  }

  text(bytesMax: number): string {
    const start = this.passText(bytesMax);
    return this.#decodeText(start, this.#offset);
  }

  /** A text that occurs in many records; `make` checks it once. */
  word<Word extends string>(
    table: WordTable<Word>,
    bytesMax: number,
    make: (text: string, from: ByteReader) => Word,
  ): Word {
    const start = this.passText(bytesMax);
    const end = this.#offset;
    return (
      table.find(this.#view, start, end) ??
      table.keep(this.#view, start, end, make(this.#decodeText(start, end), this))
    );
  }

  /** A text that must be one of a kind; `parse` returns undefined for any other. */
  parsed<Value extends string>(
    bytesMax: number,
    parse: (text: string) => Value | undefined,
    kind: string,
  ): Value {
    const text = this.text(bytesMax);
    const value = parse(text);
    if (value === undefined || value !== text) throw this.corrupt(`a text is not a ${kind}`);
    return value;
  }

  /** Goes behind a text that `text` would give. */
  passChecked(bytesMax: number): void {
    const start = this.passText(bytesMax);
    if (!isAscii(this.#view, start, this.#offset)) this.#decodeText(start, this.#offset);
  }

  hex(byteCount: number): string {
    const start = this.pass(byteCount);
    return this.#bytes.toString('hex', start, this.#offset);
  }

  /** What occurs in many records: `pass` goes behind it, `read` reads it once. */
  known<Value>(
    table: WordTable<Value>,
    pass: (from: ByteReader) => void,
    read: (from: ByteReader) => Value,
  ): Value {
    const start = this.#offset;
    pass(this);
    const end = this.#offset;
    const known = table.find(this.#view, start, end);
    if (known !== undefined) return known;
    this.#offset = start;
    return table.keep(this.#view, start, end, read(this));
  }

  optional<Value>(read: (from: ByteReader) => Value): Value | null {
    const flag = this.byte();
    if (flag > 1) throw this.corrupt('a flag is neither 0 nor 1');
    return flag === 1 ? read(this) : null;
  }

  list<Value>(countMax: number, read: (from: ByteReader) => Value): Value[] {
    // As long as it will be: what grows by `push` has room for 16 more, and most lists have one member.
    const values = new Array<Value>(this.whole(countMax));
    for (let index = 0; index < values.length; index += 1) values[index] = read(this);
    return values;
  }

  get isAtEnd(): boolean {
    return this.#offset === this.#end;
  }

  /** Nothing may follow. */
  finish(): void {
    if (!this.isAtEnd) throw this.corrupt('bytes follow its end');
  }
}
