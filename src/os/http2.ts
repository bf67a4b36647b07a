/**
 * The server's side of HTTP/2 over connections that exist already, with the bounds of the worker protocol.
 */
import { performServerHandshake, type ServerHttp2Session } from 'node:http2';
import type { Socket } from 'node:net';

export type {
  IncomingHttpHeaders,
  ServerHttp2Session,
  ServerHttp2Stream,
} from 'node:http2';

export type SessionBounds = {
  readonly streamsMax: number;
  readonly headerPairsMax: number;
  readonly headerBytesMax: number;
  /** Flow-control window of one stream towards us: what may wait here unread, per stream. */
  readonly windowBytes: number;
  /** Memory nghttp2 and Node may hold for the session beyond what streams buffer, in megabytes. */
  readonly sessionMemoryMegabytesMax: number;
};

/** The server's side of a connection whose peer is known. Streams come as 'stream' events. */
export const serveHttp2 = (socket: Socket, bounds: SessionBounds): ServerHttp2Session => {
  const options = {
    maxHeaderListPairs: bounds.headerPairsMax,
    maxSessionMemory: bounds.sessionMemoryMegabytesMax,
    // Known to Node, not to its types.
    maxSessionInvalidFrames: 16,
    maxSessionRejectedStreams: 16,
    maxOutstandingPings: 16,
    maxSettings: 16,
    settings: {
      enablePush: false,
      maxConcurrentStreams: bounds.streamsMax,
      maxHeaderListSize: bounds.headerBytesMax,
      initialWindowSize: bounds.windowBytes,
    },
  };
  return performServerHandshake(socket, options);
};
