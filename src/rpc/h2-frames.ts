/**
 * Frames of HTTP/2 (RFC 9113), as far as a client of the worker protocol says and hears them. The field blocks need no
 * HPACK beyond its shape: the client allows the server no table (SETTINGS_HEADER_TABLE_SIZE 0), so that each block
 * stands for itself, and of an answer it wants to know nothing but whether its status is 200.
 */

/** Error codes of RFC 9113 section 7 that are used here. */
export const H2 = {
  noError: 0x0,
  internalError: 0x2,
  refusedStream: 0x7,
  cancel: 0x8,
  enhanceYourCalm: 0xb,
} as const;

export const H2_TYPE = {
  data: 0,
  headers: 1,
  priority: 2,
  reset: 3,
  settings: 4,
  pushPromise: 5,
  ping: 6,
  goAway: 7,
  windowUpdate: 8,
  continuation: 9,
} as const;

export const H2_FLAG = { endStream: 0x1, ack: 0x1, endHeaders: 0x4, padded: 0x8, priority: 0x20 } as const;

export const H2_SETTING = {
  headerTableSize: 1,
  enablePush: 2,
  streamsMax: 3,
  initialWindow: 4,
  frameSizeMax: 5,
  headerListSizeMax: 6,
} as const;

/** What a receiver must take before it has said otherwise (RFC 9113 section 6.5.2). */
export const H2_DEFAULT = { windowBytes: 65_535, frameBytesMax: 16_384 } as const;
export const H2_WINDOW_MAX = 2 ** 31 - 1;

const HEADER_BYTES = 9;
const SETTING_BYTES = 6;

export const encodeH2Header = (length: number, type: number, flags: number, stream: number): Buffer => {
  const header = Buffer.allocUnsafe(HEADER_BYTES);
  header.writeUIntBE(length, 0, 3);
  header[3] = type;
  header[4] = flags;
  header.writeUInt32BE(stream, 5);
  return header;
};

export const encodeH2Frame = (type: number, flags: number, stream: number, payload: Uint8Array): Buffer =>
  Buffer.concat([encodeH2Header(payload.length, type, flags, stream), payload]);

/** A frame whose payload is one number: WINDOW_UPDATE, RST_STREAM. */
export const encodeH2Number = (type: number, stream: number, value: number): Buffer => {
  const payload = Buffer.allocUnsafe(4);
  payload.writeUInt32BE(value, 0);
  return encodeH2Frame(type, 0, stream, payload);
};

export const encodeH2Settings = (settings: readonly (readonly [id: number, value: number])[]): Buffer => {
  const payload = Buffer.allocUnsafe(settings.length * SETTING_BYTES);
  settings.forEach(([id, value], index) => {
    payload.writeUInt16BE(id, index * SETTING_BYTES);
    payload.writeUInt32BE(value, index * SETTING_BYTES + 2);
  });
  return encodeH2Frame(H2_TYPE.settings, 0, 0, payload);
};

export const decodeH2Settings = (payload: Buffer): readonly (readonly [id: number, value: number])[] =>
  Array.from({ length: Math.floor(payload.length / SETTING_BYTES) }, (_, index) => [
    payload.readUInt16BE(index * SETTING_BYTES),
    payload.readUInt32BE(index * SETTING_BYTES + 2),
  ]);

/** Entries of the static table of RFC 7541, as the field blocks name them. */
const METHOD_POST = 0x83;
const SCHEME_HTTP = 0x86;
const STATUS_200 = 0x88;
/** `:status` and six more entries of that name. */
const STATUS_FIRST = 8;
const STATUS_LAST = 14;
/** Literal without indexing, whose name is an entry. */
const AUTHORITY_IS = 0x01;
const PATH_IS = 0x04;
/** A string of that length without Huffman; longer ones need more than one byte for it. */
const TEXT_BYTES_MAX = 126;

const encodeText = (text: string): Buffer => {
  const bytes = Buffer.from(text, 'latin1');
  if (bytes.length > TEXT_BYTES_MAX) throw new RangeError(`a field of ${bytes.length} bytes`);
  return Buffer.concat([Buffer.from([bytes.length]), bytes]);
};

/** The fields of a request: POST to a path. */
export const encodeRequestFields = (path: string): Buffer =>
  Buffer.concat([
    Buffer.from([METHOD_POST, SCHEME_HTTP, AUTHORITY_IS]),
    encodeText('xce'),
    Buffer.from([PATH_IS]),
    encodeText(path),
  ]);

/** `:status` and `200` as strings: in the Huffman code of RFC 7541, and plain. */
const STATUS_NAMES = [Buffer.from('85b8848d36a3', 'hex'), Buffer.from('\x07:status', 'latin1')];
const TEXTS_OF_200 = [Buffer.from('821001', 'hex'), Buffer.from('\x03200', 'latin1')];

const lengthOfPrefix = (bytes: Buffer, texts: readonly Buffer[]): number =>
  texts.find((text) => bytes.subarray(0, text.length).equals(text))?.length ?? 0;

/**
 * Whether the fields of an answer begin with `:status: 200`, as those of a good answer must; undefined for a block that
 * cannot be one without a table.
 */
export const isGoodStatus = (block: Buffer): boolean | undefined => {
  let at = 0;
  // The server takes note of the table that it may not have.
  while ((block[at] ?? 0) >> 5 === 1) {
    if (block[at] !== 0x20) return undefined;
    at += 1;
  }
  const first = block[at] ?? 0;
  if (first === STATUS_200) return true;
  if (first >= 0x80)
    return first <= (0x80 | STATUS_LAST) && first > (0x80 | STATUS_FIRST) ? false : undefined;
  // A literal, to be remembered (6 bits of index) or not (4 bits): nothing is remembered here.
  const index = first & (first >= 0x40 ? 0x3f : 0x0f);
  const nameLength = index === 0 ? lengthOfPrefix(block.subarray(at + 1), STATUS_NAMES) : 0;
  const isStatus = nameLength > 0 || (index >= STATUS_FIRST && index <= STATUS_LAST);
  return isStatus ? lengthOfPrefix(block.subarray(at + 1 + nameLength), TEXTS_OF_200) > 0 : undefined;
};

export type H2FrameSink = {
  /** A whole frame; DATA is one only where it is padded. Its bytes may share memory with the chunk. */
  frame(type: number, flags: number, stream: number, payload: Buffer): void;
  /** Some next bytes of DATA; `isEnd` with the last ones of the body. */
  data(stream: number, bytes: Buffer, isEnd: boolean): void;
};

/**
 * Cuts bytes into frames. Returns a function that takes the next bytes, and returns what is wrong with them; it must
 * not be called again then.
 */
export const createH2Reader = (sink: H2FrameSink): ((chunk: Buffer) => string | undefined) => {
  const header = Buffer.allocUnsafeSlow(HEADER_BYTES);
  let headerBytes = 0;
  let type = 0;
  let flags = 0;
  let stream = 0;
  let missing = 0;
  /** Of a frame that is not whole yet. */
  let pieces: Buffer[] = [];

  /** The header, once it is whole. */
  const takeHeader = (): string | undefined => {
    missing = header.readUIntBE(0, 3);
    type = header.readUInt8(3);
    flags = header.readUInt8(4);
    stream = header.readUInt32BE(5) & 0x7fff_ffff;
    return missing > H2_DEFAULT.frameBytesMax ? `a frame of ${missing} bytes` : undefined;
  };

  const takePayload = (piece: Buffer): void => {
    missing -= piece.length;
    if (type === H2_TYPE.data && (flags & H2_FLAG.padded) === 0) {
      sink.data(stream, piece, missing === 0 && (flags & H2_FLAG.endStream) !== 0);
      return;
    }
    if (missing > 0) {
      // A copy: a piece of a few bytes would pin the whole chunk it was cut from.
      pieces.push(Buffer.from(piece));
      return;
    }
    const payload = pieces.length === 0 ? piece : Buffer.concat([...pieces, piece]);
    pieces = [];
    sink.frame(type, flags, stream, payload);
  };

  return (chunk) => {
    for (let at = 0; at < chunk.length; ) {
      if (headerBytes < HEADER_BYTES) {
        const taken = chunk.copy(header, headerBytes, at, at + HEADER_BYTES - headerBytes);
        headerBytes += taken;
        at += taken;
        if (headerBytes < HEADER_BYTES) return undefined;
        const wrong = takeHeader();
        if (wrong !== undefined) return wrong;
        // Frames without payload are whole here.
        if (missing > 0) continue;
      }
      const piece = chunk.subarray(at, at + missing);
      at += piece.length;
      takePayload(piece);
      if (missing === 0) headerBytes = 0;
    }
    return undefined;
  };
};
