/**
 * The server of the worker protocol: any number of listeners, one table of verbs.
 *
 * A connection is identified before a byte of HTTP/2 is read; a request is refused by its caller before its
 * body is. No request can end the process: what a handler throws becomes an answer and a report, and so does what
 * anything throws that it began and nobody awaits (os/scope.ts).
 */
import { messageOf, XceError } from '../base/errors.ts';
import type { LeaseNumber, Uid } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import {
  H2,
  type IncomingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
  type SessionBounds,
  serveHttp2,
} from '../os/http2.ts';
import { readPeerCredentials } from '../os/peer.ts';
import { runInScope } from '../os/scope.ts';
import { addressOf, type Listener, listenTls, listenUnix, type Socket } from '../os/sockets.ts';
import type { Identity } from '../pki/identity.ts';
import { type Budget, createBudget, type Hold } from './budget.ts';
import { certifyClient, requireStillValid } from './certificate.ts';
import { codeOf, decodeRequest, encodeDocument, isStreamVerb, isUnaryVerb } from './decode.ts';
import { createGatherer } from './frame.ts';
import { createKeepalive } from './keepalive.ts';
import { PROTOCOL, type StreamVerb, type UnaryVerb, type Verb } from './message.ts';
import { refuseConnection } from './refusal.ts';
import { openStream, respond, respondError, type StreamObserver } from './server-stream.ts';
import { RPC_TIMES, type RpcTimes } from './times.ts';
import {
  callerOf,
  describePeer,
  type ListenerKind,
  type Listening,
  type Peer,
  type RpcServer,
  type ServerMeter,
  type ServerOptions,
  type ServerReport,
  type StreamEntry,
  type Subject,
  type TcpPlace,
  type UnaryEntry,
  type UnixPlace,
} from './verbs.ts';

/** After a graceful end, how long the peer may take to close its side. */
const LINGER_MS = 1000;

const TRUSTED_BOUNDS: SessionBounds = {
  streamsMax: LIMITS.streamsPerConnectionMax,
  headerPairsMax: LIMITS.headerPairsMax,
  headerBytesMax: LIMITS.headerBytesMax,
  windowBytes: 256 << 10,
  sessionMemoryMegabytesMax: 32,
};

/** A job may open thousands of connections, one per node, but needs one stream on each. */
const SANDBOX_BOUNDS: SessionBounds = {
  ...TRUSTED_BOUNDS,
  streamsMax: LIMITS.streamsPerSandboxConnectionMax,
  windowBytes: 64 << 10,
  sessionMemoryMegabytesMax: 2,
};

/** A connection that is served: its session, and the socket below that outlives it while the peer lingers. */
type Served = {
  readonly session: ServerHttp2Session;
  readonly socket: Socket;
  /** Of the peer's certificate, where it has one. */
  readonly serial: string | undefined;
};

/** A listener and the connections it has taken. */
type Group = { readonly listener: Listener; readonly served: Set<Served> };

const cut = ({ session, socket }: Served): void => {
  session.destroy();
  socket.destroy();
};

/** What is known of a connection once its peer is. */
type Connection = {
  readonly peer: Peer;
  readonly bounds: SessionBounds;
  readonly budget: Budget;
  /** Of the peer's certificate, where it has one. */
  readonly serial?: string;
  /** Throws when the peer may no longer ask for anything. */
  readonly requireValid: () => void;
};

type Call = {
  readonly connection: Connection;
  readonly http: ServerHttp2Stream;
  readonly hold: Hold;
  readonly audit: Audit;
  readonly crash: Crash;
};

/** An error that something threw which a request had begun, and that nobody awaited: the request fails by it. */
class Crash {
  readonly noticed: Promise<never>;
  readonly #late: (error: unknown) => void;
  #reject: (error: unknown) => void = () => undefined;
  #isOpen = true;

  /** `late` is told of one that comes when the request has failed already, or is over. */
  constructor(late: (error: unknown) => void) {
    this.#late = late;
    this.noticed = new Promise((_, reject) => {
      this.#reject = reject;
    });
    // Most requests are over without one.
    this.noticed.catch(() => undefined);
  }

  notice(error: unknown): void {
    if (!this.#isOpen) {
      this.#late(error);
      return;
    }
    this.#isOpen = false;
    // Whatever its code, nobody meant it to get here.
    this.#reject(error instanceof XceError ? new XceError('bug', error.message, { cause: error }) : error);
  }

  close(): void {
    this.#isOpen = false;
  }
}

/** What one request asked for and whether it has happened, for the report that it leaves. */
class Audit {
  readonly #report: (subject: Subject) => void;
  #subject: Subject | undefined;
  #done = false;

  constructor(report: (subject: Subject) => void) {
    this.#report = report;
  }

  get subject(): Subject | undefined {
    return this.#subject;
  }

  get isDone(): boolean {
    return this.#done;
  }

  /** The request could be read. */
  about(subject: Subject | undefined): void {
    this.#subject = subject;
  }

  /** What was asked for has happened, or has been started. */
  done(): void {
    this.#done = true;
    if (this.#subject !== undefined) this.#report(this.#subject);
  }
}

const PATH = /^\/xce\/([1-9][0-9]{0,4})\/([a-z][a-z-]{0,31})$/;

/** The verb of a request. Throws 'protocol' or 'too-large'. */
const parseVerb = (headers: IncomingHttpHeaders): string => {
  // HTTP/2 bounds them too, but only once the client has acknowledged our settings.
  const headerBytes = Object.entries(headers).reduce(
    (sum, [name, value]) => sum + name.length + String(value).length,
    0,
  );
  if (headerBytes > LIMITS.headerBytesMax) {
    throw new XceError('too-large', `the header fields are over ${LIMITS.headerBytesMax} bytes`);
  }
  const [, major, verb] = PATH.exec(headers[':path'] ?? '') ?? [];
  if (headers[':method'] !== 'POST' || major === undefined || verb === undefined) {
    throw new XceError('protocol', 'the request is not POST /xce/MAJOR/VERB');
  }
  if (Number(major) !== PROTOCOL.major) {
    throw new XceError('protocol', `major version ${major} is not spoken here`, { detail: { ...PROTOCOL } });
  }
  return verb;
};

/** The whole body of a unary request. Throws 'too-large', 'timeout', 'cancelled' or 'worker-busy'. */
const readBody = (http: ServerHttp2Stream, hold: Hold, requestMs: number): Promise<Buffer> =>
  new Promise((resolve, reject) => {
    const body = createGatherer();
    const settle = (error: unknown): void => {
      clearTimeout(timer);
      http.off('data', onData);
      http.off('end', onEnd);
      http.off('aborted', onGone);
      http.off('close', onGone);
      if (error === undefined) resolve(body.take());
      else reject(error);
    };
    const onData = (chunk: Buffer): void => {
      if (body.length + chunk.length > LIMITS.messageBytesMax) {
        settle(new XceError('too-large', `the request is over ${LIMITS.messageBytesMax} bytes`));
        return;
      }
      try {
        body.push(chunk);
        hold.set(body.heldBytes);
      } catch (error) {
        settle(error);
      }
    };
    const onEnd = (): void => settle(undefined);
    const onGone = (): void => settle(new XceError('cancelled', 'the peer went away'));
    const timer = setTimeout(
      () => settle(new XceError('timeout', `the request did not come within ${requestMs} ms`)),
      requestMs,
    );
    http.on('data', onData);
    http.once('end', onEnd);
    http.once('aborted', onGone);
    http.once('close', onGone);
  });

const answerUnary = async <V extends UnaryVerb>(
  { connection, http, hold, audit }: Call,
  verb: V,
  entry: UnaryEntry<V>,
  times: RpcTimes,
): Promise<void> => {
  const request = decodeRequest(verb, await readBody(http, hold, times.requestMs));
  const gone = new AbortController();
  const onGone = (): void => gone.abort(new XceError('cancelled', 'the peer went away'));
  http.once('aborted', onGone);
  http.once('close', onGone);
  audit.about(entry.subject?.(connection.peer, request));
  const answer = await entry.answer(connection.peer, request, gone.signal);
  audit.done();
  respond(http, 200, encodeDocument(answer, `the answer to ${verb}`, LIMITS.messageBytesMax));
};

const serveStream = async <V extends StreamVerb>(
  { connection, http, hold, audit, crash }: Call,
  verb: V,
  entry: StreamEntry<V>,
  times: RpcTimes,
  meter: ServerMeter,
): Promise<void> => {
  const observer: StreamObserver = {
    hold: (bytes) => hold.set(bytes),
    started: () => audit.done(),
    bytes: (channel, count) => meter.bytes(channel, count),
  };
  const open = openStream(http, observer, times);
  crash.noticed.catch((error: unknown) => open.fail(error));
  const timer = setTimeout(
    () => open.fail(new XceError('timeout', `the head did not come within ${times.requestMs} ms`)),
    times.requestMs,
  );
  try {
    const head = decodeRequest(verb, await open.head.finally(() => clearTimeout(timer)));
    audit.about(entry.subject?.(connection.peer, head));
    await entry.serve(connection.peer, head, open.stream);
    open.complete();
  } catch (error) {
    open.refuse(error);
    throw error;
  }
};

const UNMETERED: ServerMeter = {
  request: () => undefined,
  open: () => undefined,
  connection: () => undefined,
  connectionRefused: () => undefined,
  bytes: () => undefined,
};

/** Makes a server with no listener yet. */
export const createServer = (options: ServerOptions): RpcServer => {
  const { table } = options;
  const times: RpcTimes = { ...RPC_TIMES, ...options.times };
  const meter = options.meter ?? UNMETERED;
  const trustedBudget = createBudget(LIMITS.requestsInFlightMax, LIMITS.requestBytesInAllMax);
  const groups = new Set<Group>();
  let closing = false;

  // A report that throws must not take the server down with it.
  const report = (entry: ServerReport): void => {
    try {
      options.report(entry);
    } catch (error) {
      process.emitWarning(`a report failed: ${messageOf(error)}`);
    }
  };

  const reportFailure = (peer: string, verb: string, audit: Audit, error: unknown): void => {
    const code = codeOf(error);
    const message = messageOf(error);
    if (code === 'bug') report({ what: 'bug', peer, verb, error, subject: audit.subject });
    else if (audit.isDone) report({ what: 'broken-off', peer, verb, code, message });
    else report({ what: 'refused', peer, verb, code, message, subject: audit.subject });
  };

  const runVerb = async (call: Call, verb: Verb): Promise<void> => {
    if (isUnaryVerb(verb)) {
      const entry = table[verb] as UnaryEntry<typeof verb> | undefined;
      if (entry !== undefined) await answerUnary(call, verb, entry, times);
    } else {
      const entry = table[verb] as StreamEntry<typeof verb> | undefined;
      if (entry !== undefined) await serveStream(call, verb, entry, times, meter);
    }
  };

  const handleRequest = async (
    connection: Connection,
    http: ServerHttp2Stream,
    headers: IncomingHttpHeaders,
  ): Promise<void> => {
    const who = describePeer(connection.peer);
    let verb = '-';
    let known: Verb | undefined;
    let hold: Hold | undefined;
    const audit = new Audit((subject) => report({ what: 'done', peer: who, verb, subject }));
    const reportBug = (error: unknown): void =>
      report({ what: 'bug', peer: who, verb, error, subject: audit.subject });
    const crash = new Crash(reportBug);
    meter.open(1);
    try {
      verb = parseVerb(headers);
      known = isUnaryVerb(verb) || isStreamVerb(verb) ? verb : undefined;
      const callers = known === undefined ? undefined : table[known]?.callers;
      if (known === undefined || callers === undefined) {
        throw new XceError('protocol', `there is no verb ${verb} here`);
      }
      if (!callers.includes(callerOf(connection.peer))) {
        throw new XceError('peer-role', `${who} may not use ${verb}`);
      }
      connection.requireValid();
      hold = connection.budget.hold();
      const call = { connection, http, hold, audit, crash };
      const run = runVerb.bind(undefined, call, known);
      await runInScope({ crashed: (error) => crash.notice(error) }, () =>
        Promise.race([run(), crash.noticed]),
      );
      meter.request(known, 'ok');
    } catch (error) {
      meter.request(known ?? '-', codeOf(error));
      reportFailure(who, verb, audit, error);
      respondError(http, error);
    } finally {
      crash.close();
      meter.open(-1);
      hold?.release();
    }
  };

  /** Runs one connection until it is closed. */
  const serveConnection = (
    socket: Socket,
    connection: Connection,
    kind: ListenerKind,
    group: Set<Served>,
  ): void => {
    let session: ServerHttp2Session;
    try {
      session = serveHttp2(socket, connection.bounds);
    } catch (error) {
      socket.destroy();
      throw error;
    }
    const served: Served = { session, socket, serial: connection.serial };
    group.add(served);
    meter.connection(kind, 1);
    let open = 0;
    let idle: NodeJS.Timeout | undefined;

    const endGracefully = (): void => {
      session.close();
      const timer = setTimeout(() => cut(served), LINGER_MS);
      session.once('close', () => clearTimeout(timer));
    };
    const armIdle = (ms: number): void => {
      idle = setTimeout(endGracefully, ms);
    };
    const keepalive = createKeepalive(session, times, () =>
      session.destroy(new Error(`no answer to a ping for ${times.pingTimeoutMs} ms`)),
    );

    session.on('stream', (http, headers) => {
      clearTimeout(idle);
      open += 1;
      keepalive.add();
      // Streams report their end by 'close'; an error without a listener would end the process.
      http.on('error', () => undefined);
      http.once('close', () => {
        open -= 1;
        keepalive.remove();
        if (open === 0 && !session.closed) armIdle(times.idleMs);
      });
      handleRequest(connection, http, headers).catch((error: unknown) => {
        report({ what: 'bug', peer: describePeer(connection.peer), verb: '-', error, subject: undefined });
        if (!http.closed) http.close(H2.internalError);
      });
    });
    session.on('error', (error) =>
      report({
        what: 'connection-failed',
        peer: describePeer(connection.peer),
        message: error.message,
      }),
    );
    session.once('close', () => {
      clearTimeout(idle);
      group.delete(served);
      meter.connection(kind, -1);
    });
    armIdle(times.idleMs);
    if (closing) endGracefully();
  };

  /** Identifies the peer of a new connection and serves it, or says why not. */
  const welcome = (
    socket: Socket,
    kind: ListenerKind,
    listener: string,
    describeFrom: () => string,
    group: Set<Served>,
    identify: () => Connection,
  ): void => {
    let connection: Connection;
    try {
      connection = identify();
    } catch (error) {
      const refusal =
        error instanceof XceError ? error : new XceError('peer-unknown', 'the peer could not be identified');
      meter.connectionRefused(kind, refusal.code);
      report({
        what: 'peer-refused',
        listener,
        from: describeFrom(),
        code: refusal.code,
        message: refusal.message,
      });
      refuseConnection(socket, refusal);
      return;
    }
    const crashed = (error: unknown): void => {
      report({ what: 'bug', peer: describePeer(connection.peer), verb: '-', error, subject: undefined });
      socket.destroy();
    };
    try {
      runInScope({ crashed }, () => serveConnection(socket, connection, kind, group));
    } catch (error) {
      crashed(error);
    }
  };

  /** Registers a listener and gives back how to end it and its connections. */
  const track = (group: Group): Listening => {
    groups.add(group);
    return {
      close() {
        groups.delete(group);
        const closed = group.listener.close();
        for (const served of group.served) cut(served);
        return closed;
      },
    };
  };

  const listenLocal = async (
    place: UnixPlace,
    owner: { readonly uid: number; readonly gid: number },
    kind: ListenerKind,
    name: string,
    identify: (pid: number, uid: number) => Connection,
  ): Promise<Listening> => {
    const served = new Set<Served>();
    const listener = await listenUnix('fd' in place ? place : { path: place.path, mode: 0o600, owner }, {
      connectionsMax: LIMITS.connectionsMax,
      onDropped: () => meter.connectionRefused(kind, 'worker-busy'),
      onSocket: (socket) => {
        let from = 'an unknown process';
        welcome(
          socket,
          kind,
          name,
          () => from,
          served,
          () => {
            const { pid, uid } = readPeerCredentials(socket);
            from = `pid ${pid}, uid ${uid}`;
            return identify(pid, uid);
          },
        );
      },
    });
    return track({ listener, served });
  };

  return {
    async listenTls(place: TcpPlace, identity: Identity) {
      const served = new Set<Served>();
      let revoked = identity.revokedSerials;
      const listener = await listenTls(place, identity, {
        connectionsMax: LIMITS.connectionsMax,
        handshakeMs: times.handshakeMs,
        onSocket: (socket) =>
          welcome(
            socket,
            'tls',
            'tls',
            () => addressOf(socket),
            served,
            () => {
              const certified = certifyClient(socket, identity.cluster, revoked);
              return {
                peer: { kind: 'certificate', role: certified.role, node: certified.node },
                bounds: TRUSTED_BOUNDS,
                budget: trustedBudget,
                serial: certified.serial,
                requireValid: () => requireStillValid(certified),
              };
            },
          ),
        onHandshakeFailed: (error, from) => {
          meter.connectionRefused('tls', 'tls');
          report({
            what: 'peer-refused',
            listener: 'tls',
            from,
            code: 'tls',
            message: error.message,
          });
        },
        onDropped: () => meter.connectionRefused('tls', 'worker-busy'),
      });
      return {
        ...track({ listener, served }),
        port: listener.port,
        renew(renewed) {
          listener.renew(renewed);
          revoked = renewed.revokedSerials;
          for (const each of served) if (each.serial !== undefined && revoked.has(each.serial)) cut(each);
        },
      };
    },

    listenRoot: (place: UnixPlace) =>
      listenLocal(place, { uid: 0, gid: 0 }, 'local', 'local', (pid, uid) => {
        if (uid !== 0) throw new XceError('peer-role', `uid ${uid} is not root`);
        return {
          peer: { kind: 'local-root', pid },
          bounds: TRUSTED_BOUNDS,
          budget: trustedBudget,
          requireValid: () => undefined,
        };
      }),

    listenSandbox(path: string, lease: LeaseNumber, uid: Uid) {
      const budget = createBudget(LIMITS.requestsInFlightMax, LIMITS.sandboxRequestBytesInAllMax);
      return listenLocal(
        { path },
        { uid, gid: uid },
        'sandbox',
        `sandbox of lease ${lease}`,
        (pid, peerUid) => {
          if (peerUid !== uid) throw new XceError('peer-role', `uid ${peerUid} is not that of the lease`);
          return {
            peer: { kind: 'sandbox', lease, uid, pid },
            bounds: SANDBOX_BOUNDS,
            budget,
            requireValid: () => undefined,
          };
        },
      );
    },

    async close(graceMs: number) {
      closing = true;
      const taken = [...groups];
      const closed = Promise.all(taken.map(({ listener }) => listener.close()));
      const forEachServed = (act: (served: Served) => void): void => {
        for (const { served } of taken) for (const each of served) act(each);
      };
      forEachServed(({ session }) => session.close());
      const timer = setTimeout(() => forEachServed(cut), graceMs);
      await closed;
      clearTimeout(timer);
    },
  };
};
