/**
 * Who is at the other end of a Unix socket, as the kernel recorded it at connect(2).
 */
import type { Socket } from 'node:net';
import koffi from 'koffi';
import { XceError } from '../base/errors.ts';

export type PeerCredentials = { readonly pid: number; readonly uid: number; readonly gid: number };

// <asm-generic/socket.h>; the same on every architecture that Node's Linux packages exist for.
const SOL_SOCKET = 1;
const SO_PEERCRED = 17;
/** struct ucred: pid_t, uid_t, gid_t, 32 bits each. */
const UCRED_BYTES = 12;
/** What the kernel says for a socket that has no peer with credentials. */
const NO_ID = 0xffff_ffff;

const getsockopt = koffi
  .load(null)
  .func('int getsockopt(int, int, int, _Out_ uint8_t *, _Inout_ uint32_t *)');

/** Node keeps the descriptor of a socket in a field that its types do not name. */
const descriptorOf = (socket: Socket): number | undefined => {
  const handle: unknown = Reflect.get(socket, '_handle');
  if (typeof handle !== 'object' || handle === null) return undefined;
  const fd: unknown = Reflect.get(handle, 'fd');
  return typeof fd === 'number' && Number.isInteger(fd) && fd >= 0 ? fd : undefined;
};

/**
 * Reads the credentials of the peer of a connected Unix socket. Throws 'peer-unknown' for anything else than a
 * proper answer: a closed socket, another kind of socket, a peer that our pid or user namespace cannot see.
 */
export const readPeerCredentials = (socket: Socket): PeerCredentials => {
  const fd = descriptorOf(socket);
  if (fd === undefined) throw new XceError('peer-unknown', 'the socket of the peer is closed');
  const ucred = Buffer.alloc(UCRED_BYTES);
  const length = [UCRED_BYTES];
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, ucred, length) !== 0 || length[0] !== UCRED_BYTES) {
    throw new XceError('peer-unknown', 'SO_PEERCRED cannot be read');
  }
  const pid = ucred.readInt32LE(0);
  const uid = ucred.readUInt32LE(4);
  const gid = ucred.readUInt32LE(8);
  if (pid <= 0 || uid === NO_ID || gid === NO_ID) {
    throw new XceError('peer-unknown', 'SO_PEERCRED names no process');
  }
  return { pid, uid, gid };
};
