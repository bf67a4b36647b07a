/**
 * The client of the worker protocol. One connection each; reconnecting and repeating are the caller's affair.
 */
import { setMaxListeners } from 'node:events';
import { XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  H2,
  openHttp2,
  type SessionBounds,
} from '../os/http2.ts';
import { connectTlsSocket, connectUnixSocket, type Socket } from '../os/sockets.ts';
import { judgeServer } from './certificate.ts';
import { explainCut, openClientStream } from './client-stream.ts';
import { decodeResponse, decodeWireError, encodeDocument } from './decode.ts';
import { createGatherer } from './frame.ts';
import { createKeepalive } from './keepalive.ts';
import { PROTOCOL, type RequestOf, type ResponseOf, type StreamVerb, type UnaryVerb } from './message.ts';
import { readRefusal } from './refusal.ts';
import type {
  CallOptions,
  ClientStream,
  ConnectOptions,
  ConnectTls,
  ConnectUnix,
  RpcSession,
} from './session.ts';
import { RPC_TIMES } from './times.ts';

const CLIENT_BOUNDS: SessionBounds = {
  streamsMax: 0,
  headerPairsMax: LIMITS.headerPairsMax,
  headerBytesMax: LIMITS.headerBytesMax,
  windowBytes: 256 << 10,
  sessionMemoryMegabytesMax: 32,
};

/** What ends a request early: the caller's signal, a deadline, the loss of the connection. */
type Interruption = { readonly error: Promise<never>; dispose(): void };

const interruptionOf = (
  what: string,
  { timeoutMs, signal }: CallOptions,
  closed: AbortSignal,
): Interruption => {
  let interrupt: (error: XceError) => void = () => undefined;
  const error = new Promise<never>((_resolve, reject) => {
    interrupt = reject;
  });
  // Raced by the caller; a late interruption of a request that is done concerns nobody.
  error.catch(() => undefined);
  const timer = setTimeout(
    () => interrupt(new XceError('timeout', `no answer to ${what} within ${timeoutMs} ms`)),
    Math.min(timeoutMs, LIMITS.timerMsMax),
  );
  const onAbort = (): void => interrupt(new XceError('cancelled', `${what} was given up`));
  const onClosed = (): void => interrupt(closed.reason);
  signal?.addEventListener('abort', onAbort);
  closed.addEventListener('abort', onClosed);
  if (signal?.aborted === true) onAbort();
  if (closed.aborted) onClosed();
  return {
    error,
    dispose() {
      clearTimeout(timer);
      signal?.removeEventListener('abort', onAbort);
      closed.removeEventListener('abort', onClosed);
    },
  };
};

/** Status of the answer. Rejects, with whatever, when the stream is cut before. */
const awaitStatus = (http: ClientHttp2Stream): Promise<number> =>
  new Promise((resolve, reject) => {
    http.once('response', (headers) => resolve(headers[':status'] ?? 0));
    http.once('close', () => reject(new Error('no status')));
  });

/** All of an answer. Throws 'too-large'; rejects, with whatever, when it is cut. */
const readAnswer = (http: ClientHttp2Stream, what: string): Promise<Buffer> =>
  new Promise((resolve, reject) => {
    const body = createGatherer();
    http.on('data', (chunk: Buffer) => {
      if (body.length + chunk.length > LIMITS.messageBytesMax) {
        reject(new XceError('too-large', `the answer to ${what} is over ${LIMITS.messageBytesMax} bytes`));
        return;
      }
      body.push(chunk);
    });
    http.once('end', () => {
      if (http.rstCode === undefined || http.rstCode === H2.noError) resolve(body.take());
    });
    http.once('close', () => reject(new Error('no end')));
  });

/** Wraps a connection whose peer has been verified. */
const openSession = async (
  socket: Socket,
  node: RpcSession['node'],
  address: string,
  options: ConnectOptions,
): Promise<RpcSession> => {
  const closed = new AbortController();
  // One listener per open request; Node would warn from the eleventh on.
  setMaxListeners(0, closed.signal);
  const lose = (message: string, cause?: unknown): void => {
    if (closed.signal.aborted) return;
    const reason = cause instanceof Error && 'code' in cause ? String(cause.code) : '';
    if (reason.startsWith('ERR_SSL')) {
      closed.abort(
        new XceError('tls', `${address} ended the TLS connection: ${reason}`, {
          at: address,
          detail: { reason, address },
          cause,
        }),
      );
      return;
    }
    closed.abort(
      new XceError('worker-unreachable', `the connection to ${address} was lost: ${message}`, {
        at: address,
        detail: { address, ...(reason === '' ? {} : { errno: reason }) },
        ...(cause === undefined ? {} : { cause }),
      }),
    );
  };
  let http: ClientHttp2Session;
  try {
    http = openHttp2(socket, CLIENT_BOUNDS);
  } catch (error) {
    socket.destroy();
    throw error;
  }
  http.on('goaway', (code, _lastStreamId, debugData) => {
    const refusal = readRefusal(code, debugData);
    if (refusal !== undefined) closed.abort(refusal);
  });
  http.on('error', (error) => lose(error.message, error));
  http.on('close', () => lose('it was closed'));
  const times = { ...RPC_TIMES, ...options.times };
  const keepalive = createKeepalive(http, times, () => {
    lose(`no answer to a ping for ${times.pingTimeoutMs} ms`);
    http.destroy();
  });

  const takesRequests = (): boolean => !closed.signal.aborted && !http.closed && !http.destroyed;

  /** Opens a request, and sees to it that it does not outlive its interruption. */
  const request = (verb: string): ClientHttp2Stream => {
    closed.signal.throwIfAborted();
    if (!takesRequests()) {
      throw new XceError('worker-unreachable', `the worker at ${address} takes no more requests here`, {
        at: address,
        detail: { address },
      });
    }
    const stream = http.request({ ':method': 'POST', ':path': `/xce/${PROTOCOL.major}/${verb}` });
    // Errors of a stream are told by its 'close', its status and the session.
    stream.on('error', () => undefined);
    keepalive.add();
    stream.once('close', () => keepalive.remove());
    return stream;
  };

  /**
   * Awaits the answer to one request. `within` ends a wait early for the deadline, the caller's signal or the
   * loss of the connection; a failed request is reset, and a cut one explained. What was sent must not be held
   * meanwhile: the tickets of thousands of nodes are large together.
   */
  const exchange = async <T>(
    verb: string,
    stream: ClientHttp2Stream,
    callOptions: CallOptions,
    answer: (within: <W>(wait: Promise<W>) => Promise<W>) => Promise<T>,
  ): Promise<T> => {
    const limits = interruptionOf(verb, callOptions, closed.signal);
    try {
      return await answer((wait) => Promise.race([wait, limits.error]));
    } catch (error) {
      if (!stream.closed) stream.close(H2.cancel);
      throw error instanceof XceError ? error : await explainCut(stream, http, closed.signal);
    } finally {
      limits.dispose();
    }
  };

  const interruption = interruptionOf(`connecting to ${address}`, options, closed.signal);
  try {
    // The server's SETTINGS say that it has taken the connection; a refusal follows them at once.
    await Promise.race([
      interruption.error,
      new Promise<void>((resolve) => http.once('remoteSettings', () => setImmediate(resolve))),
    ]);
    closed.signal.throwIfAborted();
  } catch (error) {
    http.destroy();
    socket.destroy();
    throw error;
  } finally {
    interruption.dispose();
  }

  return {
    node,
    get takesRequests() {
      return takesRequests();
    },
    closed: closed.signal,
    async call<V extends UnaryVerb>(
      verb: V,
      message: RequestOf<V>,
      callOptions: CallOptions,
    ): Promise<ResponseOf<V>> {
      const body = encodeDocument(message, `the request ${verb}`, LIMITS.messageBytesMax);
      const stream = request(verb);
      stream.end(body);
      return exchange(verb, stream, callOptions, async (within) => {
        const [status, bytes] = await within(Promise.all([awaitStatus(stream), readAnswer(stream, verb)]));
        if (status !== 200) throw decodeWireError(bytes);
        return decodeResponse(verb, bytes);
      });
    },
    async stream<V extends StreamVerb>(
      verb: V,
      head: RequestOf<V>,
      callOptions: CallOptions,
    ): Promise<ClientStream> {
      const document = encodeDocument(head, `the head of ${verb}`, LIMITS.messageBytesMax);
      const stream = request(verb);
      const open = openClientStream(stream, document, closed.signal);
      return exchange(verb, stream, callOptions, async (within) => {
        const status = await within(awaitStatus(stream));
        if (status !== 200) throw decodeWireError(await within(readAnswer(stream, verb)));
        return open;
      });
    },
    close() {
      if (!closed.signal.aborted) {
        closed.abort(new XceError('cancelled', `the connection to ${address} was closed here`));
      }
      http.destroy();
    },
  };
};

export const connectTls: ConnectTls = async (target, options) => {
  const { address, port, identity, expectNode, expectRole = 'worker' } = target;
  const startedMs = performance.now();
  const socket = await connectTlsSocket(
    { address, port },
    identity,
    judgeServer(identity.cluster, expectNode, expectRole),
    options,
  );
  const leftMs = Math.max(1, options.timeoutMs - (performance.now() - startedMs));
  return openSession(socket, expectNode, `${address} port ${port}`, { ...options, timeoutMs: leftMs });
};

export const connectUnix: ConnectUnix = async (path, options) => {
  const startedMs = performance.now();
  const socket = await connectUnixSocket(path, options);
  const leftMs = Math.max(1, options.timeoutMs - (performance.now() - startedMs));
  return openSession(socket, undefined, path, { ...options, timeoutMs: leftMs });
};
