/**
 * The D-Bus wire format (D-Bus Specification 0.43, "Type System", "Marshaling" and "Message Protocol"), little
 * endian as every host we run on, as far as a client of the service manager needs it. Pure.
 *
 * Values are plain: integers up to 32 bits are numbers, 64-bit ones bigints, strings, object paths and signatures
 * strings, arrays and structs arrays, dictionaries arrays of pairs. A variant is written as { signature, value }
 * and read as its bare value.
 */
import { XceError } from '../base/errors.ts';

export type DbusValue = number | bigint | string | boolean | Variant | readonly DbusValue[];
export type Variant = { readonly signature: string; readonly value: DbusValue };

export const variant = (signature: string, value: DbusValue): Variant => ({ signature, value });

/** The specification allows 128 MiB; a list of all units of a large host is under 4 MiB. */
export const MESSAGE_BYTES_MAX = 16 << 20;
const DEPTH_MAX = 32;
const SIGNATURE_CHARS_MAX = 255;

const fault = (what: string): XceError =>
  new XceError('systemd', `the system bus sent a message that is not one: ${what}`);

const alignmentOf = (type: string): number => {
  if ('xtd({'.includes(type)) return 8;
  if ('biuhsoa'.includes(type)) return 4;
  return 'nq'.includes(type) ? 2 : 1;
};

/** End of the single complete type that begins at `at`. */
const endOfType = (signature: string, at: number, depth = 0): number => {
  const type = signature[at];
  if (type === undefined || depth > DEPTH_MAX) throw fault('a signature is cut or too deep');
  if (type === 'a') return endOfType(signature, at + 1, depth + 1);
  const close = type === '(' ? ')' : type === '{' ? '}' : undefined;
  if (close === undefined) {
    if (!'ybnqiuxtdsogvh'.includes(type)) throw fault('a signature has an unknown type');
    return at + 1;
  }
  let inner = at + 1;
  while (signature[inner] !== close) inner = endOfType(signature, inner, depth + 1);
  if (inner === at + 1) throw fault('a struct is empty');
  return inner + 1;
};

/** The complete types of a signature, one after the other. */
export const splitSignature = (signature: string): readonly string[] => {
  if (signature.length > SIGNATURE_CHARS_MAX) throw fault('a signature is too long');
  const types: string[] = [];
  for (let at = 0; at < signature.length; ) {
    const end = endOfType(signature, at);
    types.push(signature.slice(at, end));
    at = end;
  }
  return types;
};

class Writer {
  readonly #parts: Buffer[] = [];
  #length = 0;

  #push(bytes: Buffer): void {
    this.#parts.push(bytes);
    this.#length += bytes.length;
  }

  align(to: number): void {
    const rest = this.#length % to;
    if (rest > 0) this.#push(Buffer.alloc(to - rest));
  }

  #number(size: number, write: (bytes: Buffer) => void): void {
    this.align(size);
    const bytes = Buffer.alloc(size);
    write(bytes);
    this.#push(bytes);
  }

  uint32(value: number): void {
    this.#number(4, (bytes) => bytes.writeUInt32LE(value));
  }

  byte(value: number): void {
    this.#push(Buffer.of(value));
  }

  #text(value: string): void {
    const bytes = Buffer.from(value, 'utf8');
    if (bytes.includes(0)) throw new XceError('bug', 'a D-Bus string has no NUL');
    this.uint32(bytes.length);
    this.#push(Buffer.concat([bytes, Buffer.alloc(1)]));
  }

  signature(value: string): void {
    this.#push(Buffer.concat([Buffer.of(value.length), Buffer.from(value, 'latin1'), Buffer.alloc(1)]));
  }

  value(type: string, value: DbusValue): void {
    const kind = type[0];
    if (kind === 'a') this.#array(type.slice(1), value);
    else if (kind === '(' || kind === '{') this.#struct(type.slice(1, -1), value);
    else if (kind === 'v') this.#variant(value);
    else if (typeof value === 'string') {
      if (kind === 's' || kind === 'o') this.#text(value);
      else if (kind === 'g') this.signature(value);
      else throw mismatch(type);
    } else if (typeof value === 'boolean' && kind === 'b') this.uint32(value ? 1 : 0);
    else if (typeof value === 'bigint' && kind === 't')
      this.#number(8, (bytes) => bytes.writeBigUInt64LE(value));
    else if (typeof value === 'bigint' && kind === 'x')
      this.#number(8, (bytes) => bytes.writeBigInt64LE(value));
    else if (typeof value === 'number' && (kind === 'u' || kind === 'h')) this.uint32(value);
    else if (typeof value === 'number' && kind === 'i') this.#number(4, (bytes) => bytes.writeInt32LE(value));
    else if (typeof value === 'number' && kind === 'y') this.byte(value);
    else throw mismatch(type);
  }

  #array(type: string, value: DbusValue): void {
    if (!Array.isArray(value)) throw mismatch(`a${type}`);
    // Elements are laid out apart; they begin at a multiple of 8 from the start here as well as there.
    this.uint32(0);
    const lengthPart = this.#parts.length - 1;
    this.align(alignmentOf(type[0] ?? ''));
    const start = this.#length;
    for (const element of value as readonly DbusValue[]) this.value(type, element);
    this.#parts[lengthPart]?.writeUInt32LE(this.#length - start);
  }

  #struct(signature: string, value: DbusValue): void {
    const types = splitSignature(signature);
    if (!Array.isArray(value) || value.length !== types.length) throw mismatch(`(${signature})`);
    this.align(8);
    types.forEach((type, index) => {
      this.value(type, (value as readonly DbusValue[])[index] ?? '');
    });
  }

  #variant(value: DbusValue): void {
    if (typeof value !== 'object' || !('signature' in value)) throw mismatch('v');
    this.signature(value.signature);
    this.value(value.signature, value.value);
  }

  bytes(): Buffer {
    return Buffer.concat(this.#parts);
  }
}

const mismatch = (type: string): XceError =>
  new XceError('bug', `a value does not fit the D-Bus type ${type}`);

class Reader {
  readonly #bytes: Buffer;
  #at: number;

  constructor(bytes: Buffer, at: number) {
    this.#bytes = bytes;
    this.#at = at;
  }

  align(to: number): void {
    const rest = this.#at % to;
    if (rest > 0) this.#take(to - rest);
  }

  #take(count: number): Buffer {
    const end = this.#at + count;
    if (end > this.#bytes.length) throw fault('it is cut');
    const bytes = this.#bytes.subarray(this.#at, end);
    this.#at = end;
    return bytes;
  }

  #number(size: number): Buffer {
    this.align(size);
    return this.#take(size);
  }

  uint32(): number {
    return this.#number(4).readUInt32LE();
  }

  byte(): number {
    return this.#take(1).readUInt8();
  }

  #text(length: number): string {
    const bytes = this.#take(length + 1);
    if (bytes[length] !== 0) throw fault('a string has no end');
    return bytes.toString('utf8', 0, length);
  }

  signature(): string {
    return this.#text(this.byte());
  }

  value(type: string, depth = 0): DbusValue {
    if (depth > 2 * DEPTH_MAX) throw fault('it is nested too deeply');
    switch (type[0]) {
      case 'y':
        return this.byte();
      case 'b':
        return this.uint32() !== 0;
      case 'n':
        return this.#number(2).readInt16LE();
      case 'q':
        return this.#number(2).readUInt16LE();
      case 'i':
        return this.#number(4).readInt32LE();
      case 'u':
      case 'h':
        return this.uint32();
      case 'x':
        return this.#number(8).readBigInt64LE();
      case 't':
        return this.#number(8).readBigUInt64LE();
      case 'd':
        return this.#number(8).readDoubleLE();
      case 's':
      case 'o':
        return this.#text(this.uint32());
      case 'g':
        return this.signature();
      case 'v': {
        const types = splitSignature(this.signature());
        if (types[0] === undefined || types.length !== 1) throw fault('a variant is not one value');
        return this.value(types[0], depth + 1);
      }
      case 'a':
        return this.#array(type.slice(1), depth);
      default: {
        this.align(8);
        return splitSignature(type.slice(1, -1)).map((inner) => this.value(inner, depth + 1));
      }
    }
  }

  #array(type: string, depth: number): readonly DbusValue[] {
    const length = this.uint32();
    this.align(alignmentOf(type[0] ?? ''));
    const end = this.#at + length;
    if (end > this.#bytes.length) throw fault('an array is cut');
    const values: DbusValue[] = [];
    while (this.#at < end) values.push(this.value(type, depth + 1));
    if (this.#at !== end) throw fault('an array ends within a value');
    return values;
  }
}

export type Call = {
  readonly destination: string;
  readonly path: string;
  readonly interface: string;
  readonly member: string;
  readonly signature: string;
  readonly body: readonly DbusValue[];
};

const METHOD_CALL = 1;
const TYPES = ['invalid', 'call', 'return', 'error', 'signal'] as const;
const PROTOCOL_VERSION = 1;
const LITTLE_ENDIAN = 0x6c;
const FIXED_HEADER_BYTES = 16;
const FIELDS_SIGNATURE = 'a(yv)';

/** Codes of header fields. */
const FIELD = {
  path: 1,
  interface: 2,
  member: 3,
  errorName: 4,
  replySerial: 5,
  destination: 6,
  sender: 7,
  signature: 8,
  unixFds: 9,
} as const;

/** A method call as bytes; `fds` is the number of descriptors that go with it. */
export const encodeCall = (call: Call, serial: number, fds: number): Buffer => {
  const body = new Writer();
  const types = splitSignature(call.signature);
  if (types.length !== call.body.length) throw mismatch(call.signature);
  types.forEach((type, index) => {
    body.value(type, call.body[index] ?? '');
  });
  const bodyBytes = body.bytes();
  const header = new Writer();
  for (const byte of [LITTLE_ENDIAN, METHOD_CALL, 0, PROTOCOL_VERSION]) header.byte(byte);
  header.uint32(bodyBytes.length);
  header.uint32(serial);
  const fields: DbusValue[] = [
    [FIELD.path, variant('o', call.path)],
    [FIELD.interface, variant('s', call.interface)],
    [FIELD.member, variant('s', call.member)],
    [FIELD.destination, variant('s', call.destination)],
  ];
  if (call.signature !== '') fields.push([FIELD.signature, variant('g', call.signature)]);
  if (fds > 0) fields.push([FIELD.unixFds, variant('u', fds)]);
  header.value(FIELDS_SIGNATURE, fields);
  header.align(8);
  const bytes = Buffer.concat([header.bytes(), bodyBytes]);
  if (bytes.length > MESSAGE_BYTES_MAX)
    throw new XceError('too-large', 'a message for the system bus is too long');
  return bytes;
};

export type Incoming = {
  readonly type: (typeof TYPES)[number];
  readonly replySerial: number | undefined;
  readonly path: string | undefined;
  readonly interface: string | undefined;
  readonly member: string | undefined;
  readonly errorName: string | undefined;
  readonly sender: string | undefined;
  readonly body: readonly DbusValue[];
};

/**
 * The length of the message that begins in `bytes`, or undefined while too few bytes are there to tell. Throws
 * XceError 'systemd' for what cannot become a message.
 */
export const messageLength = (bytes: Buffer): number | undefined => {
  if (bytes.length < FIXED_HEADER_BYTES) return undefined;
  if (bytes[0] !== LITTLE_ENDIAN || bytes[3] !== PROTOCOL_VERSION) throw fault('byte order or version');
  const fieldsLength = bytes.readUInt32LE(12);
  const bodyLength = bytes.readUInt32LE(4);
  const length = Math.ceil((FIXED_HEADER_BYTES + fieldsLength) / 8) * 8 + bodyLength;
  if (length > MESSAGE_BYTES_MAX) throw fault('it is too long');
  return length;
};

/** Reads one whole message. Throws XceError 'systemd'. */
export const decodeMessage = (bytes: Buffer): Incoming => {
  if (messageLength(bytes) !== bytes.length) throw fault('its length');
  const type = TYPES[bytes[1] ?? 0] ?? 'invalid';
  const header = new Reader(bytes, 12);
  const fields = new Map<number, DbusValue>();
  for (const field of header.value(FIELDS_SIGNATURE) as readonly (readonly [number, DbusValue])[]) {
    fields.set(field[0], field[1]);
  }
  header.align(8);
  const text = (code: number): string | undefined => {
    const value = fields.get(code);
    return typeof value === 'string' ? value : undefined;
  };
  const replySerial = fields.get(FIELD.replySerial);
  return {
    type,
    replySerial: typeof replySerial === 'number' ? replySerial : undefined,
    path: text(FIELD.path),
    interface: text(FIELD.interface),
    member: text(FIELD.member),
    errorName: text(FIELD.errorName),
    sender: text(FIELD.sender),
    body: splitSignature(text(FIELD.signature) ?? '').map((inner) => header.value(inner)),
  };
};
