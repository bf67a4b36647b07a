/**
 * How a server refuses a whole connection: SETTINGS, then GOAWAY with the error as debug data, written without
 * reading a byte of the peer.
 */
import { XceError } from '../base/errors.ts';
import { H2 } from '../os/http2.ts';
import type { Socket } from '../os/sockets.ts';
import { decodeWireError, encodeError } from './decode.ts';

const FRAME_HEADER_BYTES = 9;
const TYPE_SETTINGS = 4;
const TYPE_GOAWAY = 7;
/** RFC 9113 section 4.2: a receiver need not take more before it has said so. */
const PAYLOAD_BYTES_MAX = 16 << 10;
/** For the peer to read the refusal; after that the connection is cut. */
const LINGER_MS = 1000;

const encodeHttp2Frame = (type: number, payload: Uint8Array): Buffer => {
  const header = Buffer.alloc(FRAME_HEADER_BYTES);
  header.writeUIntBE(payload.length, 0, 3);
  header.writeUInt8(type, 3);
  return Buffer.concat([header, payload]);
};

export const encodeRefusal = (error: XceError): Buffer => {
  const document = encodeError(error);
  const fixed = Buffer.alloc(8);
  fixed.writeUInt32BE(H2.enhanceYourCalm, 4);
  const room = PAYLOAD_BYTES_MAX - fixed.length;
  const fits = document.length <= room ? document : encodeError(new XceError(error.code, ''));
  return Buffer.concat([
    encodeHttp2Frame(TYPE_SETTINGS, Buffer.alloc(0)),
    encodeHttp2Frame(TYPE_GOAWAY, Buffer.concat([fixed, fits])),
  ]);
};

/** Says why and closes. What the peer sends meanwhile is thrown away: unread bytes would turn the close into a reset. */
export const refuseConnection = (socket: Socket, error: XceError): void => {
  const timer = setTimeout(() => socket.destroy(), LINGER_MS);
  socket.once('close', () => clearTimeout(timer));
  // The peer may be gone already; it was refused in any case.
  socket.on('error', () => socket.destroy());
  socket.resume();
  socket.end(encodeRefusal(error));
};

/** The refusal in the debug data of a GOAWAY, or undefined when the server is merely going away. */
export const readRefusal = (code: number, debugData: Uint8Array | undefined): XceError | undefined => {
  if (code === H2.noError) return undefined;
  if (code === H2.enhanceYourCalm && debugData !== undefined && debugData.length > 0) {
    return decodeWireError(debugData);
  }
  return new XceError('protocol', `the worker ended the connection with HTTP/2 error ${code}`);
};
