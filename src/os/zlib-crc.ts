/**
 * zlib's crc32, without the module of Node around it where that is possible: its streams take as long to load as a
 * short program takes for everything else.
 */
type Crc32 = (bytes: Uint8Array, crc: number) => number;

/** What node:zlib itself calls, by the door that Node keeps open for old programs; undefined where it is shut. */
const findBound = (): Crc32 | undefined => {
  const door: unknown = Reflect.get(process, 'binding');
  if (typeof door !== 'function') return undefined;
  try {
    const { crc32: found } = door('zlib') as { readonly crc32?: Crc32 };
    return typeof found === 'function' ? found : undefined;
  } catch {
    // The door leads nowhere, as it may do in a later Node.
    return undefined;
  }
};

/** CRC-32 (IEEE 802.3, as in gzip) of all the bytes, going on from `crc`. */
export const crc32: Crc32 = findBound() ?? process.getBuiltinModule('node:zlib').crc32;
