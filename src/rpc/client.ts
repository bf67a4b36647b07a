/**
 * The client of the worker protocol. One connection each; reconnecting and repeating are the caller's affair.
 */
import { XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import { connectTlsSocket, connectUnixSocket, type Socket } from '../os/sockets.ts';
import { judgeServer } from './certificate.ts';
import { explainCut, openClientStream } from './client-stream.ts';
import { decodeResponse, decodeWireError, encodeDocument } from './decode.ts';
import { createGatherer } from './frame.ts';
import { H2Client, type H2ClientBounds } from './h2-client.ts';
import { H2 } from './h2-frames.ts';
import type { H2Request } from './h2-request.ts';
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

const CLIENT_BOUNDS: H2ClientBounds = {
  headerBytesMax: LIMITS.headerBytesMax,
  windowBytes: 256 << 10,
};

/** All of an answer. Throws 'too-large'; rejects, with whatever, when it is cut. */
const readAnswer = async (request: H2Request, what: string): Promise<Buffer> => {
  const body = createGatherer();
  for (let bytes = await request.read(); bytes !== undefined; bytes = await request.read()) {
    if (body.length + bytes.length > LIMITS.messageBytesMax) {
      throw new XceError('too-large', `the answer to ${what} is over ${LIMITS.messageBytesMax} bytes`);
    }
    body.push(bytes);
  }
  return body.take();
};

/** Calls `end` once, when the deadline passes or the caller gives up. Returns what takes that back. */
const limit = (
  what: string,
  { timeoutMs, signal }: CallOptions,
  end: (error: XceError) => void,
): (() => void) => {
  const stop = (): void => {
    clearTimeout(timer);
    signal?.removeEventListener('abort', onAbort);
  };
  const onAbort = (): void => {
    stop();
    end(new XceError('cancelled', `${what} was given up`));
  };
  const timer = setTimeout(
    () => {
      stop();
      end(new XceError('timeout', `no answer to ${what} within ${timeoutMs} ms`));
    },
    Math.min(timeoutMs, LIMITS.timerMsMax),
  );
  signal?.addEventListener('abort', onAbort);
  if (signal?.aborted === true) onAbort();
  return stop;
};

/** Wraps a connection whose peer has been verified. */
const openSession = async (
  socket: Socket,
  node: RpcSession['node'],
  address: string,
  options: ConnectOptions,
): Promise<RpcSession> => {
  const closed = new AbortController();
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
  const times = { ...RPC_TIMES, ...options.times };
  let settle = (): void => undefined;
  const settled = new Promise<void>((resolve) => {
    settle = resolve;
  });
  const http = new H2Client(socket, CLIENT_BOUNDS, {
    onEstablished: settle,
    onGoAway: (code, debugData) => {
      const refusal = readRefusal(code, debugData);
      if (refusal !== undefined) closed.abort(refusal);
    },
    onRequestOver: () => keepalive.remove(),
    onLost: (message, cause) => {
      lose(message, cause);
      keepalive.stop();
      settle();
    },
  });
  const keepalive = createKeepalive(http, times, () => {
    lose(`no answer to a ping for ${times.pingTimeoutMs} ms`);
    http.destroy();
  });

  const takesRequests = (): boolean => !closed.signal.aborted && http.takesRequests;

  const open = (verb: string): H2Request => {
    closed.signal.throwIfAborted();
    if (!takesRequests()) {
      throw new XceError('worker-unreachable', `the worker at ${address} takes no more requests here`, {
        at: address,
        detail: { address },
      });
    }
    keepalive.add();
    return http.request(`/xce/${PROTOCOL.major}/${verb}`);
  };

  /**
   * Awaits the answer to a request, which the deadline or the caller's signal ends early; one that fails is reset.
   * What was sent must not be held meanwhile: thousands of tickets are large together.
   */
  const exchange = async <T>(
    verb: string,
    request: H2Request,
    callOptions: CallOptions,
    answer: () => Promise<T>,
  ): Promise<T> => {
    let early: XceError | undefined;
    const stopWaiting = limit(verb, callOptions, (error) => {
      early = error;
      request.reset(H2.cancel);
    });
    try {
      return await answer();
    } catch (error) {
      request.reset(H2.cancel);
      if (early !== undefined) throw early;
      throw error instanceof XceError ? error : explainCut(request, closed.signal);
    } finally {
      stopWaiting();
    }
  };

  // The server's SETTINGS say that it has taken the connection; a refusal comes with them.
  const stopWaiting = limit(`connecting to ${address}`, options, (error) => {
    closed.abort(error);
    http.destroy();
  });
  await settled;
  stopWaiting();
  if (closed.signal.aborted) http.destroy();
  closed.signal.throwIfAborted();

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
      const request = open(verb);
      request.write(body);
      request.end();
      return exchange(verb, request, callOptions, async () => {
        const isGood = await request.isGood();
        const bytes = await readAnswer(request, verb);
        if (!isGood) throw decodeWireError(bytes);
        return decodeResponse(verb, bytes);
      });
    },
    async stream<V extends StreamVerb>(
      verb: V,
      head: RequestOf<V>,
      callOptions: CallOptions,
    ): Promise<ClientStream> {
      const document = encodeDocument(head, `the head of ${verb}`, LIMITS.messageBytesMax);
      const request = open(verb);
      const stream = openClientStream(request, document, closed.signal);
      return exchange(verb, request, callOptions, async () => {
        if (!(await request.isGood())) throw decodeWireError(await readAnswer(request, verb));
        return stream;
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
