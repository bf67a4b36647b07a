/**
 * HTTP/2 sessions over connections that exist already, with the bounds of the worker protocol.
 */
import {
  type ClientHttp2Session,
  connect,
  constants,
  performServerHandshake,
  type ServerHttp2Session,
} from 'node:http2';
import type { Socket } from 'node:net';

export type {
  ClientHttp2Session,
  ClientHttp2Stream,
  Http2Session,
  IncomingHttpHeaders,
  ServerHttp2Session,
  ServerHttp2Stream,
} from 'node:http2';

/** Error codes of RFC 9113 section 7 that are used here. */
export const H2 = {
  noError: constants.NGHTTP2_NO_ERROR,
  internalError: constants.NGHTTP2_INTERNAL_ERROR,
  refusedStream: constants.NGHTTP2_REFUSED_STREAM,
  cancel: constants.NGHTTP2_CANCEL,
  enhanceYourCalm: constants.NGHTTP2_ENHANCE_YOUR_CALM,
} as const;

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

/** The client's side of a connection. */
export const openHttp2 = (socket: Socket, bounds: SessionBounds): ClientHttp2Session =>
  connect('http://xce', {
    createConnection: () => socket,
    maxHeaderListPairs: bounds.headerPairsMax,
    maxSessionMemory: bounds.sessionMemoryMegabytesMax,
    maxReservedRemoteStreams: 0,
    settings: {
      enablePush: false,
      maxHeaderListSize: bounds.headerBytesMax,
      initialWindowSize: bounds.windowBytes,
    },
  });
