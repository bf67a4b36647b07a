/**
 * What a daemon tells its service manager (sd_notify(3)), and how often it wants to hear (sd_watchdog_enabled(3)).
 * Node has no datagram sockets in the file system, so the C library sends them.
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

type Environment = Readonly<Record<string, string | undefined>>;

/** The interval in milliseconds within which the service manager wants to hear of this process, if it does. */
export const readWatchdogMs = (environment: Environment, pid: number): number | undefined => {
  const owner = environment['WATCHDOG_PID'];
  if (owner !== undefined && owner !== String(pid)) return undefined;
  const text = environment['WATCHDOG_USEC'] ?? '';
  if (!/^[1-9]\d{0,15}$/.test(text)) return undefined;
  return Math.max(1, Math.floor(Number(text) / 1000));
};

const encodeAddress = (path: string): Buffer => {
  const name = Buffer.from(path);
  if ((name[0] !== 0x2f && name[0] !== 0x40) || name.length >= SUN_PATH_BYTES) {
    throw new XceError('config-value', 'NOTIFY_SOCKET is neither an absolute path nor an abstract name');
  }
  const address = Buffer.alloc(2 + name.length + (name[0] === 0x2f ? 1 : 0));
  address.writeUInt16LE(AF_UNIX, 0);
  name.copy(address, 2);
  if (name[0] === 0x40) address[2] = 0; // an abstract name begins with NUL
  return address;
};

/** Sends assignments such as `READY=1` to the service manager. Without effect where there is none. Throws XceError 'os'. */
export const notifyServiceManager = (environment: Environment, assignments: readonly string[]): void => {
  const path = environment['NOTIFY_SOCKET'];
  if (path === undefined || path === '') return;
  const address = encodeAddress(path);
  const bytes = Buffer.from(`${assignments.join('\n')}\n`);
  const fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw new XceError('os', `cannot open a socket: ${errnoName(koffi.errno())}`);
  try {
    if (sendTo(fd, bytes, bytes.length, MSG_DONTWAIT | MSG_NOSIGNAL, address, address.length) < 0) {
      throw new XceError('os', `cannot notify the service manager: ${errnoName(koffi.errno())}`);
    }
  } finally {
    closeSync(fd);
  }
};
