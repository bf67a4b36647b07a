/**
 * What is mounted where, from the kernel's own table. Names in the table are octal-escaped bytes (proc(5));
 * the file may change between two reads, so a look-up goes by the mount id of an open descriptor and never by
 * comparing paths.
 */
import { closeSync, constants, openSync, readFileSync } from 'node:fs';
import { errnoOf, XceError } from '../base/errors.ts';
import { O_PATH } from './open-flags.ts';

/** The kernel's own bound is 100,000 mounts (fs.mount-max). */
const TABLE_BYTES_MAX = 64 << 20;
/** A table that changes while it is read can miss an entry; a descriptor that is really mounted shows up soon. */
const TABLE_READS_MAX = 5;

/** One line of mountinfo. Names are text: UTF-8 where they are, else with each other byte as `\ooo`. */
export type MountEntry = {
  readonly mountId: number;
  readonly parentId: number;
  /** `major:minor`, as st_dev of files in it (not on every file system: btrfs subvolumes differ). */
  readonly device: string;
  /** Directory of the file system that is mounted; not `/` for a bind mount of a part. */
  readonly root: string;
  /** Mount point, seen from this process's root. */
  readonly path: string;
  readonly options: readonly string[];
  readonly type: string;
  readonly source: string;
  readonly superOptions: readonly string[];
};

/** The mount that a file lies in. */
export type MountPlace = {
  /** Mount point. */
  readonly path: string;
  /** Source; for a mount of a part followed by `[part]`, as findmnt(8) writes it. */
  readonly source: string;
  readonly type: string;
  /** `major:minor`; of network storage it is of this client alone. */
  readonly device: string;
  /** Options of this mount ('ro', 'nosuid', …). */
  readonly options: readonly string[];
  /** Options of the file system ('rw', 'vers=4.2', 'local_lock=none', …). */
  readonly superOptions: readonly string[];
  /** Number of this mount in this mount namespace, until it is unmounted. Means nothing elsewhere. */
  readonly mountId: number;
};

/** Text of an octal-escaped field, of which each character is one byte. What is not UTF-8 keeps an escape for each odd byte. */
const decodeField = (field: string): string => {
  // Nearly all of them: nothing is escaped.
  if (/^[\x20-\x5b\x5d-\x7e]*$/.test(field)) return field;
  const bytes = field.replaceAll(/\\([0-3][0-7]{2})/g, (_, octal: string) =>
    String.fromCharCode(Number.parseInt(octal, 8)),
  );
  const raw = Buffer.from(bytes, 'latin1');
  const text = raw.toString('utf8');
  if (Buffer.from(text, 'utf8').equals(raw)) return text;
  return bytes.replaceAll(
    /[^\x20-\x5b\x5d-\x7e]/g,
    (byte) => `\\${byte.charCodeAt(0).toString(8).padStart(3, '0')}`,
  );
};

/** One line, of which each character is one byte. */
const parseLine = (line: string): MountEntry | undefined => {
  const fields = line.split(' ');
  // Optional fields stand between the sixth field and a lone dash; the source may be empty.
  const dash = fields.indexOf('-', 6);
  const [mountId, parentId, device, root, path, options] = fields;
  const [type, source, superOptions] = dash === -1 ? [] : fields.slice(dash + 1);
  if (mountId === undefined || parentId === undefined || device === undefined || root === undefined)
    return undefined;
  if (path === undefined || options === undefined || type === undefined) return undefined;
  if (source === undefined || superOptions === undefined) return undefined;
  if (!/^\d{1,15}$/.test(mountId) || !/^\d{1,15}$/.test(parentId) || !/^\d+:\d+$/.test(device))
    return undefined;
  return {
    mountId: Number(mountId),
    parentId: Number(parentId),
    device,
    root: decodeField(root),
    path: decodeField(path),
    options: decodeField(options).split(','),
    type: decodeField(type),
    source: decodeField(source),
    superOptions: decodeField(superOptions).split(','),
  };
};

/** Reads a mountinfo table (proc(5)). Throws XceError 'os' for a line that is not one: a guess about mounts
 * would be a guess about whose files are walked. */
export const parseMountTable = (bytes: Buffer): readonly MountEntry[] => {
  const lines = bytes.toString('latin1').split('\n');
  if (lines.at(-1) === '') lines.pop();
  return lines.map((line) => {
    const entry = parseLine(line);
    if (entry !== undefined) return entry;
    throw new XceError(
      'os',
      `/proc/self/mountinfo has a line that cannot be read: ${JSON.stringify(line.slice(0, 200))}`,
    );
  });
};

/** Every mount that this process can see, in the order they were mounted. Throws XceError 'os'. */
export const readMountTable = (): readonly MountEntry[] => {
  let bytes: Buffer;
  try {
    bytes = readFileSync('/proc/self/mountinfo');
  } catch (error) {
    throw new XceError('os', `cannot read /proc/self/mountinfo: ${errnoOf(error)}`, { cause: error });
  }
  if (bytes.length > TABLE_BYTES_MAX) throw new XceError('os', 'the mount table is too large to be one');
  return parseMountTable(bytes);
};

/** Mount id of an open descriptor, O_PATH ones too (proc(5), fdinfo). Throws XceError 'os'. */
export const mountIdOf = (fd: number): number => {
  let text: string;
  try {
    text = readFileSync(`/proc/self/fdinfo/${fd}`, 'latin1');
  } catch (error) {
    throw new XceError('os', `cannot read the mount id of descriptor ${fd}: ${errnoOf(error)}`, {
      cause: error,
    });
  }
  const line = /^mnt_id:\s*(\d{1,15})$/m.exec(text);
  if (line?.[1] === undefined) throw new XceError('os', 'the kernel gives no mount id in fdinfo');
  return Number(line[1]);
};

const placeOfDescriptor = (fd: number): MountPlace => {
  const mountId = mountIdOf(fd);
  let entry: MountEntry | undefined;
  for (let reads = 0; entry === undefined && reads < TABLE_READS_MAX; reads += 1) {
    entry = readMountTable().find((candidate) => candidate.mountId === mountId);
  }
  if (entry === undefined) {
    throw new XceError('os', `mount ${mountId} is not in the mount table (unmounted, or outside this root)`);
  }
  return {
    path: entry.path,
    source: entry.root === '/' ? entry.source : `${entry.source}[${entry.root}]`,
    type: entry.type,
    device: entry.device,
    options: entry.options,
    superOptions: entry.superOptions,
    mountId,
  };
};

/**
 * Calls `look` with the mount in which an open descriptor or an absolute path lies, and with the descriptor, or one
 * (O_PATH) that is open for that long. A path is resolved as the kernel does, a link in its last component not
 * followed. Throws XceError 'os'.
 */
export const withPlace = <T>(
  file: string | Buffer | number,
  look: (place: MountPlace, fd: number) => T,
): T => {
  if (typeof file === 'number') return look(placeOfDescriptor(file), file);
  let fd: number;
  try {
    fd = openSync(file, O_PATH | constants.O_NOFOLLOW);
  } catch (error) {
    throw new XceError('os', `cannot open ${JSON.stringify(file.toString())}: ${errnoOf(error)}`, {
      at: file.toString(),
      cause: error,
    });
  }
  try {
    return look(placeOfDescriptor(fd), fd);
  } finally {
    closeSync(fd);
  }
};

/** The same place alone. Throws XceError 'os'. */
export const placeOf = (file: string | Buffer | number): MountPlace => withPlace(file, (place) => place);
