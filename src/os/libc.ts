import koffi from 'koffi';

/**
 * The C library, for the system calls that Node has no door to. Every function is synchronous and returns a
 * negative errno number instead of throwing, so that a caller with a million calls can classify failures.
 * Layouts are those of 64-bit little-endian Linux, which the package is built for.
 */
const libc = koffi.load('libc.so.6');

/** Errno numbers of this machine by name. */
export const ERRNO: Readonly<Record<string, number>> = koffi.os.errno;

const NAMES: ReadonlyMap<number, string> = new Map(
  // EWOULDBLOCK and EDEADLOCK share numbers with the names that people know.
  Object.entries(ERRNO)
    .filter(([name]) => name !== 'EWOULDBLOCK' && name !== 'EDEADLOCK' && name !== 'EOPNOTSUPP')
    .map(([name, value]) => [value, name]),
);

/** Name of an errno number ('EPERM'), or 'E<number>' for one without a name here. */
export const errnoName = (errno: number): string => NAMES.get(errno) ?? `E${errno}`;

/** open(2) AT_EMPTY_PATH: act on the descriptor itself. */
const AT_EMPTY_PATH = 0x1000;
/** statx(2): do not trigger an automount; ask the server even if the client has a cached answer. */
export const AT_NO_AUTOMOUNT = 0x800;
export const AT_STATX_FORCE_SYNC = 0x2000;

/** Bytes that C reads up to the first NUL; the caller sees to it that there is one. */
type CString = Uint8Array | string;

const call = {
  fstatfs: libc.func('int fstatfs(int fd, void *buffer)'),
  openat: libc.func('int openat(int directory, const void *name, int flags, int mode)'),
  close: libc.func('int close(int fd)'),
  statx: libc.func('int statx(int directory, const char *name, int flags, unsigned int mask, void *buffer)'),
  fchownat: libc.func(
    'int fchownat(int directory, const char *name, unsigned int uid, unsigned int gid, int flags)',
  ),
  chmod: libc.func('int chmod(const char *path, unsigned int mode)'),
  getdents64: libc.func('intptr_t getdents64(int fd, void *buffer, size_t bytes)'),
  lseek: libc.func('int64_t lseek(int fd, int64_t offset, int whence)'),
  listxattr: libc.func('intptr_t listxattr(const char *path, void *buffer, size_t bytes)'),
  getxattr: libc.func('intptr_t getxattr(const char *path, const char *name, void *buffer, size_t bytes)'),
  setxattr: libc.func(
    'int setxattr(const char *path, const char *name, const void *value, size_t bytes, int flags)',
  ),
  removexattr: libc.func('int removexattr(const char *path, const char *name)'),
} as const;

const outcome = (result: number): number => (result < 0 ? -koffi.errno() : result);

export const openat = (directory: number, name: CString, flags: number): number =>
  outcome(call.openat(directory, typeof name === 'string' ? Buffer.from(`${name}\0`) : name, flags, 0));

export const close = (fd: number): number => outcome(call.close(fd));

export const statx = (fd: number, flags: number, mask: number, buffer: Uint8Array): number =>
  outcome(call.statx(fd, '', AT_EMPTY_PATH | flags, mask, buffer));

export const fchown = (fd: number, uid: number, gid: number): number =>
  outcome(call.fchownat(fd, '', uid, gid, AT_EMPTY_PATH));

export const chmod = (path: string, mode: number): number => outcome(call.chmod(path, mode));

export const getdents = (fd: number, buffer: Uint8Array): number =>
  outcome(call.getdents64(fd, buffer, buffer.length));

/** Sets the position of a descriptor (SEEK_SET). */
export const seek = (fd: number, offset: bigint): number =>
  call.lseek(fd, offset, 0) < 0 ? -koffi.errno() : 0;

export const listxattr = (path: string, buffer: Uint8Array): number =>
  outcome(call.listxattr(path, buffer, buffer.length));

export const getxattr = (path: string, name: string, buffer: Uint8Array): number =>
  outcome(call.getxattr(path, name, buffer, buffer.length));

export const setxattr = (path: string, name: string, value: Uint8Array): number =>
  outcome(call.setxattr(path, name, value, value.length, 0));

export const removexattr = (path: string, name: string): number => outcome(call.removexattr(path, name));

/** struct statfs is 120 bytes, f_fsid two 32-bit words at 56 (statfs(2)). */
const STATFS_BYTES = 256;
const FSID_AT = 56;

/** The file system id of an open descriptor (O_PATH will do) in hex, in the notation of `stat -f -c %i`; or a
 * negative errno. '0' where the file system has none (FUSE, NFS). */
export const readFsid = (fd: number): string | number => {
  const buffer = Buffer.alloc(STATFS_BYTES);
  const result = outcome(call.fstatfs(fd, buffer));
  if (result < 0) return result;
  const high = BigInt(buffer.readUInt32LE(FSID_AT));
  const low = BigInt(buffer.readUInt32LE(FSID_AT + 4));
  return ((high << 32n) | low).toString(16);
};
