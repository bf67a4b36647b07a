/** Pieces that have broken parsers elsewhere. */
const SPLICES = [
  'null',
  '[]',
  '{}',
  '""',
  '0',
  '-1',
  '1e999',
  '1e-7',
  '9007199254740993',
  '0x10',
  'true',
  '"\\ud800"',
  '\ufeff',
  '"__proto__":{"x":1},',
  '"constructor":1,',
  '{"a":',
  '[[[[[[[[',
  ',',
  ':',
  '"',
  '\\',
  '\0',
  '\x80',
  '\xff\xfe',
].map((text) => Buffer.from(text, 'latin1'));

/** One to four changes: a byte, a piece put in, left out, in another's place or twice, or the end cut off. */
export const mutate = (source: Buffer, random: (below: number) => number): Buffer => {
  let bytes = Buffer.from(source);
  for (let count = 1 + random(4); count > 0; count -= 1) {
    const at = random(bytes.length + 1);
    const splice = SPLICES[random(SPLICES.length)] ?? Buffer.alloc(0);
    switch (random(6)) {
      case 0:
        if (at < bytes.length) bytes.writeUInt8(random(256), at);
        break;
      case 1:
        bytes = Buffer.concat([bytes.subarray(0, at), splice, bytes.subarray(at)]);
        break;
      case 2:
        bytes = Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + random(8))]);
        break;
      case 3:
        bytes = Buffer.concat([bytes.subarray(0, at), splice, bytes.subarray(at + random(16))]);
        break;
      case 4:
        bytes = Buffer.concat([bytes, bytes.subarray(at, at + random(64))]);
        break;
      default:
        bytes = bytes.subarray(0, at);
    }
  }
  return bytes;
};
