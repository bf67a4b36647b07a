import koffi from 'koffi';

/**
 * The C library, for the few system calls that Node has no door to. Every function here is synchronous and
 * returns a negative errno instead of throwing, so that a caller can classify it.
 */
const libc = koffi.load('libc.so.6');

/** Errno numbers of this machine by name. */
export const ERRNO: Readonly<Record<string, number>> = koffi.os.errno;

/** Name of an errno ('EPERM'), or 'E<number>' for one without a name here. */
export const errnoName = (errno: number): string => {
  for (const [name, value] of Object.entries(ERRNO)) if (value === errno) return name;
  return `E${errno}`;
};

type Fstatfs = (fd: number, buffer: Uint8Array) => number;
const fstatfs: Fstatfs = libc.func('int fstatfs(int fd, _Out_ uint8_t *buffer)');

/** struct statfs is 120 bytes on 64-bit Linux, f_fsid two 32-bit words at 56 (statfs(2)). */
const STATFS_BYTES = 256;
const FSID_AT = 56;

/** The file system id of an open descriptor (O_PATH will do) in hex, in the notation of `stat -f -c %i`; or a
 * negative errno. Zero where the file system has none (FUSE, NFS before it learnt to). */
export const readFsid = (fd: number): string | number => {
  const buffer = Buffer.alloc(STATFS_BYTES);
  if (fstatfs(fd, buffer) !== 0) return -koffi.errno();
  const high = BigInt(buffer.readUInt32LE(FSID_AT));
  const low = BigInt(buffer.readUInt32LE(FSID_AT + 4));
  return ((high << 32n) | low).toString(16);
};
