/**
 * How a server refuses a whole connection: SETTINGS, then GOAWAY with the error as debug data, written without
 * reading a byte of the peer.
 */
import { XceError } from '../base/errors.ts';
import type { Socket } from '../os/sockets.ts';
import { decodeWireError, encodeError } from './decode.ts';
import { encodeH2Frame, encodeH2Settings, H2, H2_DEFAULT, H2_TYPE } from './h2-frames.ts';

/** For the peer to read the refusal; after that the connection is cut. */
const LINGER_MS = 1000;

export const encodeRefusal = (error: XceError): Buffer => {
  const document = encodeError(error);
  const fixed = Buffer.alloc(8);
  fixed.writeUInt32BE(H2.enhanceYourCalm, 4);
  const room = H2_DEFAULT.frameBytesMax - fixed.length;
  const fits = document.length <= room ? document : encodeError(new XceError(error.code, ''));
  return Buffer.concat([
    encodeH2Settings([]),
    encodeH2Frame(H2_TYPE.goAway, 0, 0, Buffer.concat([fixed, fits])),
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
