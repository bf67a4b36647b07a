/**
 * Inodes held by a descriptor. A name is looked up once, never through a link, and from then on every fact is
 * read and every change is made through that descriptor: whatever happens to the name meanwhile, the inode
 * that was judged is the inode that is changed. O_PATH descriptors open nothing: no fifo blocks, no device
 * wakes, no automount starts.
 *
 * Functions that take part in walks return a negative errno number instead of throwing.
 */
import { constants } from 'node:fs';
import { assert, XceError } from '../base/errors.ts';
import {
  AT_NO_AUTOMOUNT,
  AT_STATX_FORCE_SYNC,
  chmod,
  close,
  ERRNO,
  fchown,
  getdents,
  getxattr,
  listxattr,
  openat,
  removexattr,
  seek,
  setxattr,
  statx,
} from './libc.ts';
import { O_PATH } from './open-flags.ts';

/** One file name with the NUL that ends it for the kernel. */
declare const brand: unique symbol;
export type CName = Buffer & { readonly [brand]: 'CName' };

/** A component of a path: not empty, without slash and NUL. */
export const makeName = (bytes: Uint8Array): CName => {
  assert(
    bytes.length > 0 && !bytes.includes(0) && !bytes.includes(0x2f),
    'a file name has no slash and no NUL',
  );
  return Buffer.concat([bytes, Buffer.of(0)]) as CName;
};

/** The name without its NUL. */
export const nameBytes = (name: CName): Buffer => name.subarray(0, name.length - 1);

export const PARENT: CName = makeName(Buffer.from('..'));

export const INODE_KINDS = [
  'file',
  'directory',
  'symlink',
  'fifo',
  'socket',
  'character-device',
  'block-device',
] as const;
export type InodeKind = (typeof INODE_KINDS)[number];

/** statx(2) of one inode. */
export type InodeFacts = {
  readonly kind: InodeKind;
  /** Permission, setuid, setgid and sticky bits (07777). */
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly links: number;
  readonly inode: bigint;
  /** st_dev as major * 2^32 + minor. */
  readonly device: number;
  readonly mountId: number;
  /** Number of the device that a device node stands for, as major * 2^32 + minor. */
  readonly represents: number;
  readonly immutable: boolean;
  readonly appendOnly: boolean;
};

/** Extended attributes that give rights. */
export const CAPABILITY = 'security.capability';
export const ACCESS_ACL = 'system.posix_acl_access';
export const DEFAULT_ACL = 'system.posix_acl_default';
const ATTRIBUTES = [CAPABILITY, ACCESS_ACL, DEFAULT_ACL] as const;
export type AttributeName = (typeof ATTRIBUTES)[number];

/** One name of a directory. The name is a view of the block it was read into. */
export type Entry = {
  readonly name: CName;
  /** What the directory says the name is; undefined where the file system does not say. Only a hint. */
  readonly isDirectory: boolean | undefined;
};

/** What a walk needs of the kernel. Descriptors are numbers; results below zero are errnos. */
export type PinnedInodes = {
  /** Opens one name of a directory as O_PATH, a link as itself. */
  pin(directory: number, name: CName): number;
  /** A descriptor of the same directory that its names can be read from. */
  openDirectory(pin: number): number;
  /** `fresh` asks the server again where the client might have an older answer. ENOTSUP also where the kernel
   * gives no mount id or the file system no owner. */
  readFacts(pin: number, fresh: boolean): InodeFacts | number;
  chown(pin: number, uid: number, gid: number): number;
  /** Not for symbolic links, which have no mode of their own. */
  chmod(pin: number, mode: number): number;
  /** Which of the attributes the inode has. Asks for each by name unless `listed`. */
  findAttributes(pin: number, isDirectory: boolean, listed: boolean): readonly AttributeName[] | number;
  getAttribute(pin: number, name: AttributeName): Buffer | number;
  setAttribute(pin: number, name: AttributeName, value: Uint8Array): number;
  removeAttribute(pin: number, name: AttributeName): number;
  /** Fills a block with the next names of a directory; 0 at its end. */
  readBlock(directory: number, block: Buffer): number;
  /** Goes on after the position that `positionAfter` gave. */
  seek(directory: number, position: bigint): number;
  close(descriptor: number): void;
};

const { O_DIRECTORY, O_NOFOLLOW, O_RDONLY, O_NONBLOCK } = constants;
const O_CLOEXEC = 0o2000000;

/** struct statx (statx(2)): type, mode, nlink, uid, gid, ino and (since Linux 5.8) mount id. */
const STATX_NEEDED = 0x111f;
const STATX_ATTR_IMMUTABLE = 0x10;
const STATX_ATTR_APPEND = 0x20;
const TWO_32 = 0x1_0000_0000;

const KIND_OF: ReadonlyMap<number, InodeKind> = new Map([
  [constants.S_IFIFO, 'fifo'],
  [constants.S_IFCHR, 'character-device'],
  [constants.S_IFDIR, 'directory'],
  [constants.S_IFBLK, 'block-device'],
  [constants.S_IFREG, 'file'],
  [constants.S_IFLNK, 'symlink'],
  [constants.S_IFSOCK, 'socket'],
]);

/** One buffer each is enough: the calls are synchronous and a worker thread has its own module. */
const factsBuffer = Buffer.alloc(256);
const attributeBuffer = Buffer.alloc(64 << 10);

const readFacts = (pin: number, fresh: boolean): InodeFacts | number => {
  const flags = AT_NO_AUTOMOUNT | (fresh ? AT_STATX_FORCE_SYNC : 0);
  const result = statx(pin, flags, STATX_NEEDED, factsBuffer);
  if (result < 0) return result;
  if ((factsBuffer.readUInt32LE(0) & STATX_NEEDED) !== STATX_NEEDED) return -(ERRNO['ENOTSUP'] ?? 95);
  const attributes = factsBuffer.readUInt32LE(8);
  const mode = factsBuffer.readUInt16LE(28);
  const kind = KIND_OF.get(mode & constants.S_IFMT);
  assert(kind !== undefined, `statx gives a kind of file that exists, not mode ${mode.toString(8)}`);
  return {
    kind,
    mode: mode & 0o7777,
    uid: factsBuffer.readUInt32LE(20),
    gid: factsBuffer.readUInt32LE(24),
    links: factsBuffer.readUInt32LE(16),
    inode: factsBuffer.readBigUInt64LE(32),
    represents: factsBuffer.readUInt32LE(128) * TWO_32 + factsBuffer.readUInt32LE(132),
    device: factsBuffer.readUInt32LE(136) * TWO_32 + factsBuffer.readUInt32LE(140),
    mountId: Number(factsBuffer.readBigUInt64LE(144)),
    immutable: (attributes & STATX_ATTR_IMMUTABLE) !== 0,
    appendOnly: (attributes & STATX_ATTR_APPEND) !== 0,
  };
};

/** The magic link of a descriptor: following it reaches the pinned inode, whatever its names are now. */
const handle = (pin: number): string => `/proc/self/fd/${pin}`;

/** Answers of getxattr(2) that mean "this inode has none". */
const isAbsent = (errno: number): boolean =>
  errno === -(ERRNO['ENODATA'] ?? 0) || errno === -(ERRNO['ENOTSUP'] ?? 0);

const listAttributes = (pin: number): readonly AttributeName[] | number => {
  const length = listxattr(handle(pin), attributeBuffer);
  if (length <= 0) return length === 0 || isAbsent(length) ? [] : length;
  const list = `\0${attributeBuffer.toString('latin1', 0, length)}`;
  return ATTRIBUTES.filter((name) => list.includes(`\0${name}\0`));
};

const askForAttributes = (pin: number, isDirectory: boolean): readonly AttributeName[] | number => {
  const found: AttributeName[] = [];
  for (const name of isDirectory
    ? ([ACCESS_ACL, DEFAULT_ACL] as const)
    : ([CAPABILITY, ACCESS_ACL] as const)) {
    const length = getxattr(handle(pin), name, attributeBuffer);
    if (length >= 0) found.push(name);
    else if (!isAbsent(length)) return length;
  }
  return found;
};

/** The kernel's own doors. */
export const pinnedInodes: PinnedInodes = {
  pin: (directory, name) => openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC),
  openDirectory: (pin) => openat(pin, '.', O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC),
  readFacts,
  chown: fchown,
  chmod: (pin, mode) => chmod(handle(pin), mode),
  findAttributes: (pin, isDirectory, listed) =>
    listed ? listAttributes(pin) : askForAttributes(pin, isDirectory),
  getAttribute: (pin, name) => {
    const length = getxattr(handle(pin), name, attributeBuffer);
    return length < 0 ? length : Buffer.from(attributeBuffer.subarray(0, length));
  },
  setAttribute: (pin, name, value) => setxattr(handle(pin), name, value),
  removeAttribute: (pin, name) => removexattr(handle(pin), name),
  readBlock: getdents,
  seek,
  close: (descriptor) => {
    // O_PATH and directory descriptors have nothing to write back: an error here can only be a wrong number.
    const result = close(descriptor);
    assert(result === 0, `descriptor ${descriptor} was open`);
  },
};

/** Opens the root directory of this process as a pin. Throws XceError 'os'. */
export const pinSlash = (): number => {
  const fd = openat(-1, '/', O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw new XceError('os', 'cannot open /');
  return fd;
};

/** struct linux_dirent64 (getdents64(2)): d_ino 8, d_off 8, d_reclen 2, d_type 1, d_name. */
const NAME_AT = 19;
const DT_UNKNOWN = 0;
const DT_DIRECTORY = 4;

/** The names in a block that readBlock filled with `length` bytes, without `.` and `..`. */
export const decodeBlock = (block: Buffer, length: number): readonly Entry[] => {
  const entries: Entry[] = [];
  for (let at = 0; at < length; ) {
    const next = at + block.readUInt16LE(at + 16);
    const end = block.indexOf(0, at + NAME_AT);
    assert(
      next > at + NAME_AT && next <= length && end !== -1 && end < next,
      'getdents64 gives whole entries',
    );
    const name = block.subarray(at + NAME_AT, end + 1) as CName;
    const isDots =
      name[0] === 0x2e && (end === at + NAME_AT + 1 || (name[1] === 0x2e && end === at + NAME_AT + 2));
    const type = block[at + 18];
    if (!isDots) entries.push({ name, isDirectory: type === DT_UNKNOWN ? undefined : type === DT_DIRECTORY });
    at = next;
  }
  return entries;
};

/** Where reading goes on after the last entry of a block; a cookie of the file system, good for `seek` only. */
export const positionAfter = (block: Buffer, length: number): bigint => {
  let last = 0;
  for (let at = 0; at < length; at += block.readUInt16LE(at + 16)) last = at;
  return block.readBigInt64LE(last + 8);
};
