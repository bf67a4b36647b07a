/**
 * Bytes of events and snapshot records. Whole numbers are unsigned LEB128 of at most 53 bits in their shortest
 * form, texts are UTF-8 with their length in bytes before them, optional values have a byte 0 or 1 before them.
 * Every value has exactly one encoding, so equal states have equal bytes.
 */
import { assert, XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** The same bytes with the methods of a Buffer. */
export const asBuffer = (bytes: Uint8Array): Buffer =>
  bytes instanceof Buffer ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);

const isAscii = (bytes: Uint8Array, start: number, end: number): boolean => {
  for (let index = start; index < end; index += 1) if ((bytes[index] ?? 0x80) >= 0x80) return false;
  return true;
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

/**
 * Texts that occur again and again, kept once. It starts anew when it is full, so that a log of ever new texts
 * cannot make it grow.
 */
export class WordTable<Word extends string> {
  readonly #words = new Map<string, Word>();

  keep(text: string, make: (text: string) => Word): Word {
    const known = this.#words.get(text);
    if (known !== undefined) return known;
    const word = make(text);
    if (this.#words.size >= LIMITS.nodesMax) this.#words.clear();
    this.#words.set(text, word);
    return word;
  }
}

const words = new WordTable<string>();

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
  readonly #bytes: Buffer;
  #offset = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = asBuffer(bytes);
  }

  corrupt(problem: string): XceError {
    return new XceError('log-corrupt', `a record of the lease log does not decode: ${problem}`, {
      at: `byte ${this.#offset} of the record`,
    });
  }

  byte(): number {
    const value = this.#bytes[this.#offset];
    if (value === undefined) throw this.corrupt('it ends too early');
    this.#offset += 1;
    return value;
  }

  whole(max: number, min = 0): number {
    let value = 0;
    let scale = 1;
    for (let count = 0; count < 8; count += 1) {
      const next = this.byte();
      value += (next % 0x80) * scale;
      if (next < 0x80) {
        if (next === 0 && count > 0) throw this.corrupt('a number is not in its shortest form');
        if (value < min || value > max) throw this.corrupt(`a number is not between ${min} and ${max}`);
        return value;
      }
      scale *= 0x80;
    }
    throw this.corrupt('a number is too long');
  }

  text(bytesMax: number): string {
    const length = this.whole(bytesMax);
    const start = this.#offset;
    const end = start + length;
    if (end > this.#bytes.length) throw this.corrupt('a text ends too early');
    let value: string;
    if (isAscii(this.#bytes, start, end)) value = this.#bytes.toString('latin1', start, end);
    else {
      try {
        value = decoder.decode(this.#bytes.subarray(start, end));
      } catch {
        throw this.corrupt('a text is not UTF-8');
      }
    }
    this.#offset = end;
    return value;
  }

  /** A text that occurs in many records. */
  word(bytesMax: number): string {
    return words.keep(this.text(bytesMax), (text) => text);
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

  hex(byteCount: number): string {
    const end = this.#offset + byteCount;
    if (end > this.#bytes.length) throw this.corrupt('bytes end too early');
    const value = this.#bytes.toString('hex', this.#offset, end);
    this.#offset = end;
    return value;
  }

  optional<Value>(read: () => Value): Value | null {
    const flag = this.byte();
    if (flag > 1) throw this.corrupt('a flag is neither 0 nor 1');
    return flag === 1 ? read() : null;
  }

  list<Value>(countMax: number, read: () => Value): Value[] {
    const count = this.whole(countMax);
    const values: Value[] = [];
    for (let index = 0; index < count; index += 1) values.push(read());
    return values;
  }

  get isAtEnd(): boolean {
    return this.#offset === this.#bytes.length;
  }

  end(): void {
    if (!this.isAtEnd) throw this.corrupt('bytes follow its end');
  }
}
