/**
 * Datagrams to sockets in the file system, which Node cannot send: the C library does.
 */
import { closeSync } from 'node:fs';
import koffi from 'koffi';
import { XceError } from '../base/errors.ts';
import { errnoName } from './libc.ts';

const libc = koffi.load('libc.so.6');

type Socket = (domain: number, type: number, protocol: number) => number;
const socket: Socket = libc.func('int socket(int domain, int type, int protocol)');

type SendTo = (
  fd: number,
  bytes: Uint8Array,
  length: number,
  flags: number,
  address: Uint8Array,
  addressLength: number,
) => number;
const sendTo: SendTo = libc.func(
  'long sendto(int fd, const uint8_t *bytes, size_t length, int flags, const uint8_t *address, uint32_t addressLength)',
);

const AF_UNIX = 1;
const SOCK_DGRAM = 2;
const SOCK_CLOEXEC = 0o2000000;
const MSG_DONTWAIT = 0x40;
const MSG_NOSIGNAL = 0x4000;
/** sizeof sun_path, unix(7). */
const SUN_PATH_BYTES = 108;

const encodeAddress = (path: string): Buffer => {
  const name = Buffer.from(path);
  if ((name[0] !== 0x2f && name[0] !== 0x40) || name.length >= SUN_PATH_BYTES) {
    throw new XceError(
      'config-value',
      `${path} is neither an absolute path nor an abstract name of a socket`,
    );
  }
  const address = Buffer.alloc(2 + name.length + (name[0] === 0x2f ? 1 : 0));
  address.writeUInt16LE(AF_UNIX, 0);
  name.copy(address, 2);
  if (name[0] === 0x40) address[2] = 0; // an abstract name begins with NUL
  return address;
};

/** Sends one datagram and never waits. Throws XceError 'os' (or 'config-value' for what is no address) when it was not taken. */
export const sendDatagram = (path: string, bytes: Uint8Array): void => {
  const address = encodeAddress(path);
  const fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw new XceError('os', `cannot open a socket: ${errnoName(koffi.errno())}`);
  try {
    if (sendTo(fd, bytes, bytes.length, MSG_DONTWAIT | MSG_NOSIGNAL, address, address.length) < 0) {
      throw new XceError('os', `cannot send to ${path}: ${errnoName(koffi.errno())}`);
    }
  } finally {
    closeSync(fd);
  }
};
