/**
 * Listening and connecting: Unix sockets, TCP under TLS 1.3, sockets passed by systemd. Nothing here knows the
 * protocol; errors carry codes and the errno.
 */
import { constants, type X509Certificate } from 'node:crypto';
import { chmodSync, chownSync, lstatSync, type Stats, unlinkSync } from 'node:fs';
import { createServer, isIP, connect as netConnect, type Server, type Socket } from 'node:net';
import { dirname } from 'node:path';
import {
  createSecureContext,
  createServer as createTlsServer,
  type DetailedPeerCertificate,
  type SecureContext,
  type TLSSocket,
  connect as tlsConnect,
} from 'node:tls';
import { errnoOf, XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import { Handshakes } from './handshakes.ts';
import { pause } from './watch.ts';

export type { Socket } from 'node:net';
export type { TLSSocket } from 'node:tls';

/** sun_path of unix(7), without its NUL. Longer names would be cut and another socket opened. */
const SOCKET_PATH_BYTES_MAX = 107;
/** The kernel caps it at net.core.somaxconn; a fan-out of a thousand callers overran Node's 511. */
const BACKLOG = 4096;
/** First descriptor of sd_listen_fds(3). */
const LISTEN_FDS_START = 3;
const LISTEN_FDS_MAX = 16;
const RETRY_MS_MIN = 5;
const RETRY_MS_MAX = 100;

export type UnixPlace =
  | {
      readonly path: string;
      readonly mode: number;
      /** Owner of the socket; root unless given. */
      readonly owner?: { readonly uid: number; readonly gid: number };
    }
  | { readonly fd: number };

export type TcpPlace = { readonly address: string; readonly port: number } | { readonly fd: number };

export type Listener = {
  /** Bound TCP port; 0 for a Unix socket. */
  readonly port: number;
  /** Stops listening, and ends connections that were not handed over yet. Resolves when no connection is left. */
  close(): Promise<void>;
};

export type TlsListener = Listener & {
  /** For every handshake from now on; connections that are up keep what they were made with. */
  renew(material: TlsMaterial): void;
};

const osError = (what: string, error: unknown): XceError =>
  new XceError('os', `${what}: ${errnoOf(error) ?? String(error)}`, { cause: error });

const startListening = (server: Server, place: object, what: string): Promise<void> =>
  new Promise((resolve, reject) => {
    const fail = (error: unknown): void => reject(osError(`cannot listen on ${what}`, error));
    server.once('error', fail);
    try {
      server.listen({ ...place, backlog: BACKLOG, exclusive: true }, () => {
        server.off('error', fail);
        resolve();
      });
    } catch (error) {
      fail(error);
    }
  });

const stopListening = (server: Server): Promise<void> =>
  new Promise((resolve) => {
    // The callback's error only says that the server was closed already.
    server.close(() => resolve());
  });

const statOrNothing = (path: string): Stats | undefined => {
  try {
    return lstatSync(path);
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw osError(`cannot look at ${path}`, error);
  }
};

/** A socket may only lie where nobody but root can rename or replace it. */
const requireRootDirectory = (path: string): void => {
  const directory = dirname(path);
  const facts = statOrNothing(directory);
  if (facts === undefined || !facts.isDirectory() || facts.uid !== 0 || (facts.mode & 0o022) !== 0) {
    throw new XceError(
      'config-unsafe',
      `${directory} must be a directory that belongs to root and that root alone may write`,
      { at: directory },
    );
  }
};

/** Resolves with the errno of a connect, or undefined when something answered. */
const probeSocket = (path: string): Promise<string | undefined> =>
  new Promise((resolve, reject) => {
    const socket = netConnect({ path });
    socket.once('connect', () => {
      socket.destroy();
      resolve(undefined);
    });
    socket.once('error', (error) => {
      const errno = errnoOf(error);
      if (errno === undefined) reject(error);
      else resolve(errno);
    });
  });

/** Removes a socket that a dead process left. Refuses everything that is not exactly that. */
const removeStaleSocket = async (path: string, ownerUid: number): Promise<void> => {
  const facts = statOrNothing(path);
  if (facts === undefined) return;
  if (!facts.isSocket() || (facts.uid !== 0 && facts.uid !== ownerUid)) {
    throw new XceError('sandbox-exists', `${path} exists and is not a socket of ours`, {
      at: path,
      unchanged: 'it was left as it is',
    });
  }
  const errno = await probeSocket(path);
  if (errno !== 'ECONNREFUSED') {
    throw new XceError('sandbox-exists', `another process listens on ${path}`, {
      at: path,
      unchanged: 'it was left as it is',
      ...(errno === undefined ? {} : { detail: { errno } }),
    });
  }
  unlinkSync(path);
};

/** Listens on a Unix socket and hands over each connection. */
export const listenUnix = async (
  place: UnixPlace,
  options: {
    readonly connectionsMax: number;
    readonly onSocket: (socket: Socket) => void;
    /** A connection over the bound was closed without a word. */
    readonly onDropped?: () => void;
  },
): Promise<Listener> => {
  const server = createServer({ allowHalfOpen: false }, options.onSocket);
  server.maxConnections = options.connectionsMax;
  if (options.onDropped !== undefined) server.on('drop', options.onDropped);
  if ('fd' in place) {
    await startListening(server, { fd: place.fd }, `descriptor ${place.fd}`);
    // Node knows an address of every TCP socket, and none of a Unix socket that it did not bind.
    if (server.address() !== null) {
      await stopListening(server);
      throw new XceError('os', `descriptor ${place.fd} is not a Unix socket`);
    }
  } else {
    const { path, mode, owner } = place;
    if (Buffer.byteLength(path) > SOCKET_PATH_BYTES_MAX) {
      throw new XceError('config-value', `${path} is over ${SOCKET_PATH_BYTES_MAX} bytes`, { at: path });
    }
    requireRootDirectory(path);
    await removeStaleSocket(path, owner?.uid ?? 0);
    await startListening(server, { path }, path);
    try {
      // Until here the socket has the umask's mode; a connection of that moment still has to pass SO_PEERCRED.
      chmodSync(path, mode);
      if (owner !== undefined) chownSync(path, owner.uid, owner.gid);
    } catch (error) {
      await stopListening(server);
      throw osError(`cannot set mode and owner of ${path}`, error);
    }
  }
  return { port: 0, close: () => stopListening(server) };
};

/** Certificate and key of this end, the only authority whose certificates count, and those of it that do not, in PEM. */
export type TlsMaterial = {
  readonly authorityPem: string;
  readonly revocationsPem: string;
  readonly certificatePem: string;
  readonly keyPem: string;
};

const TLS_POLICY = {
  minVersion: 'TLSv1.3',
  maxVersion: 'TLSv1.3',
  ecdhCurve: 'P-256:X25519',
  sigalgs: 'ecdsa_secp256r1_sha256',
} as const;

const ALPN = 'h2';

/** OpenSSL asks the list about every certificate it is shown, and trusts none when the list itself does not verify. */
const contextOptionsOf = ({ authorityPem, revocationsPem, certificatePem, keyPem }: TlsMaterial) => ({
  ...TLS_POLICY,
  ca: authorityPem,
  crl: revocationsPem,
  cert: certificatePem,
  key: keyPem,
  // A resumed session would skip the certificate: one that has run out or is revoked by now would still count.
  secureOptions: constants.SSL_OP_NO_TICKET,
});

// A context costs milliseconds; a fan-out to a thousand nodes needs one, not a thousand.
const clientContexts = new WeakMap<TlsMaterial, SecureContext>();

const clientContextOf = (material: TlsMaterial): SecureContext => {
  let context = clientContexts.get(material);
  if (context === undefined) {
    context = createSecureContext(contextOptionsOf(material));
    clientContexts.set(material, context);
  }
  return context;
};

/**
 * Listens on TCP and hands over each connection whose handshake is done. Whether the peer's certificate
 * verifies is NOT decided here: `onSocket` must look at `socket.authorized` before it reads anything, so that it
 * can tell the peer why it is refused.
 */
export const listenTls = async (
  place: TcpPlace,
  material: TlsMaterial,
  options: {
    readonly connectionsMax: number;
    readonly handshakeMs: number;
    readonly onSocket: (socket: TLSSocket) => void;
    /** A handshake that failed; `from` is the peer's address. */
    readonly onHandshakeFailed: (error: Error, from: string) => void;
    /** A connection over the bound was closed without a word. */
    readonly onDropped?: () => void;
  },
): Promise<TlsListener> => {
  const shaking = new Handshakes<Socket>(Math.ceil(options.connectionsMax / 2));
  const server = createTlsServer(
    {
      ...contextOptionsOf(material),
      requestCert: true,
      rejectUnauthorized: false,
      ALPNProtocols: [ALPN],
      handshakeTimeout: options.handshakeMs,
      noDelay: true,
    },
    (socket) => {
      shaking.remove(...endOf(socket));
      if (socket.alpnProtocol === ALPN) options.onSocket(socket);
      else {
        socket.destroy();
        options.onHandshakeFailed(new Error('the peer offers no ALPN'), addressOf(socket));
      }
    },
  );
  server.maxConnections = options.connectionsMax;
  if (options.onDropped !== undefined) server.on('drop', options.onDropped);
  server.on('connection', (socket: Socket) => {
    const [host, port] = endOf(socket);
    socket.once('close', () => shaking.remove(host, port, socket));
    shaking.add(host, port, socket)?.destroy();
  });
  server.on('tlsClientError', (error, socket) => {
    const from = addressOf(socket);
    socket.destroy();
    options.onHandshakeFailed(error, from);
  });
  if ('fd' in place) await startListening(server, { fd: place.fd }, `descriptor ${place.fd}`);
  else {
    await startListening(
      server,
      { host: place.address, port: place.port },
      `${place.address} port ${place.port}`,
    );
  }
  const bound = server.address();
  if (bound === null || typeof bound === 'string') {
    await stopListening(server);
    throw new XceError('os', 'the descriptor for TLS is not a TCP socket');
  }
  return {
    port: bound.port,
    renew: (renewed) => server.setSecureContext(contextOptionsOf(renewed)),
    close: () => {
      const stopped = stopListening(server);
      for (const socket of shaking.all()) socket.destroy();
      return stopped;
    },
  };
};

const endOf = (socket: Socket): readonly [host: string, port: number] => [
  socket.remoteAddress ?? '',
  socket.remotePort ?? 0,
];

/** Address and port of the peer of a TCP socket, as text for reports. */
export const addressOf = (socket: Socket): string =>
  socket.remoteAddress === undefined
    ? 'an unknown address'
    : `${socket.remoteAddress} port ${socket.remotePort ?? 0}`;

/**
 * The listening sockets that systemd passed to this process, by name (sd_listen_fds(3)); empty when there are
 * none. Takes the variables out of the environment, so that no child believes they are for it.
 * Throws 'config-value' when the names do not fit the sockets.
 */
export const adoptSockets = (environment: NodeJS.ProcessEnv): ReadonlyMap<string, number> => {
  const { LISTEN_PID: pid, LISTEN_FDS: count, LISTEN_FDNAMES: names } = environment;
  for (const name of ['LISTEN_PID', 'LISTEN_FDS', 'LISTEN_FDNAMES']) delete environment[name];
  if (pid !== String(process.pid) || count === undefined) return new Map();
  const refuse = (problem: string): XceError =>
    new XceError('config-value', `sockets passed by systemd: ${problem}`, { at: 'LISTEN_FDS' });
  const total = /^[1-9][0-9]?$/.test(count) ? Number(count) : 0;
  if (total < 1 || total > LISTEN_FDS_MAX) throw refuse(`LISTEN_FDS is not 1 to ${LISTEN_FDS_MAX}`);
  const list = (names ?? '').split(':');
  if (list.length !== total || list.includes('')) {
    throw refuse('LISTEN_FDNAMES does not name each of them (FileDescriptorName= in the socket unit)');
  }
  const adopted = new Map(list.map((name, index) => [name, LISTEN_FDS_START + index] as const));
  if (adopted.size !== total) throw refuse('LISTEN_FDNAMES names two alike');
  return adopted;
};

type ConnectLimits = { readonly timeoutMs: number; readonly signal?: AbortSignal };

const unreachable = (address: string, error: unknown): XceError => {
  const errno = errnoOf(error) ?? (error instanceof Error ? error.message : String(error));
  return new XceError('worker-unreachable', `cannot connect to ${address}: ${errno}`, {
    at: address,
    detail: { errno, address },
    cause: error,
  });
};

/** A name for which nothing gives an address; `why` is what the look-up came to. */
const unresolved = (
  code: 'worker-unreachable' | 'timeout',
  target: { readonly host: string; readonly port: number },
  why: string,
  cause?: unknown,
): XceError => {
  const address = `${target.host} port ${target.port}`;
  return new XceError(code, `cannot connect to ${address}: no address for that name here, ${why}`, {
    at: address,
    next: `getent ahosts ${target.host}`,
    detail: { address },
    ...(cause === undefined ? {} : { cause }),
  });
};

/** What getaddrinfo says (ENOTFOUND, EAI_AGAIN); undefined for an error that is none of its. */
const lookupFailureOf = (error: unknown): string | undefined =>
  error instanceof Error && 'syscall' in error && error.syscall === 'getaddrinfo' && 'code' in error
    ? String(error.code)
    : undefined;

const noConnection = (address: string, timeoutMs: number): XceError =>
  new XceError('timeout', `no connection to ${address} within ${timeoutMs} ms`, { at: address });

/** Settles with the socket once `event` comes, or destroys it and throws. */
const awaitConnected = <S extends Socket>(
  socket: S,
  event: 'connect' | 'secureConnect',
  address: string,
  { timeoutMs, signal }: ConnectLimits,
  describe: (error: unknown) => XceError,
  describeTimeout = (): XceError => noConnection(address, timeoutMs),
): Promise<S> =>
  new Promise((resolve, reject) => {
    const settle = (error: XceError | undefined): void => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', onAbort);
      socket.off(event, onConnected);
      socket.off('close', onClose);
      if (error === undefined) {
        socket.off('error', onError);
        resolve(socket);
      } else {
        // The error listener stays: a destroyed socket may still report what it was doing.
        socket.destroy();
        reject(error);
      }
    };
    const onConnected = (): void => settle(undefined);
    const onError = (error: unknown): void => settle(describe(error));
    const onClose = (): void => settle(unreachable(address, new Error('the connection was closed')));
    const onAbort = (): void => settle(new XceError('cancelled', `connecting to ${address} was given up`));
    const timer = setTimeout(() => settle(describeTimeout()), Math.min(timeoutMs, LIMITS.timerMsMax));
    socket.once(event, onConnected);
    socket.on('error', onError);
    socket.once('close', onClose);
    signal?.addEventListener('abort', onAbort, { once: true });
    if (signal?.aborted === true) onAbort();
  });

/**
 * Connects to a Unix socket. Throws 'worker-unreachable' (detail: errno, address), 'timeout' or 'cancelled'.
 * A full backlog (EAGAIN) cannot be awaited on a Unix socket; it is tried again until the deadline.
 */
export const connectUnixSocket = async (path: string, limits: ConnectLimits): Promise<Socket> => {
  if (Buffer.byteLength(path) > SOCKET_PATH_BYTES_MAX) {
    throw new XceError('config-value', `${path} is over ${SOCKET_PATH_BYTES_MAX} bytes`, { at: path });
  }
  const deadline = performance.now() + limits.timeoutMs;
  for (let retryMs = RETRY_MS_MIN; ; retryMs = Math.min(2 * retryMs, RETRY_MS_MAX)) {
    const leftMs = Math.max(1, deadline - performance.now());
    try {
      return await awaitConnected(
        netConnect({ path }),
        'connect',
        path,
        { ...limits, timeoutMs: leftMs },
        (error) => unreachable(path, error),
      );
    } catch (error) {
      const full = error instanceof XceError && errnoOf(error.facts.cause) === 'EAGAIN';
      if (!full || deadline - performance.now() <= retryMs) throw error;
      await pause(retryMs);
    }
  }
};

/** What OpenSSL says of a certificate that does not verify, for people. */
const CLOCK_REASONS: Readonly<Record<string, string>> = {
  CERT_HAS_EXPIRED: 'it has expired',
  CERT_NOT_YET_VALID: 'it is not valid yet',
};

/**
 * One line on why a certificate was refused. `reason` is a code of OpenSSL or Node; for the two that depend on
 * time, the clock is named, because it is wrong as often as the certificate.
 */
export const describeCertificateRefusal = (
  reason: string,
  certificate: X509Certificate | undefined,
): string => {
  const clock = CLOCK_REASONS[reason];
  if (clock === undefined) return reason;
  const dates =
    certificate === undefined ? '' : ` (valid from ${certificate.validFrom} to ${certificate.validTo})`;
  return `${clock}${dates}, or a clock is wrong: here it is ${new Date().toISOString()}`;
};

const describeTlsFailure = (address: string, error: unknown): XceError => {
  if (error instanceof XceError) return error;
  const code = error instanceof Error && 'code' in error ? String(error.code) : '';
  const errno = errnoOf(error);
  // EPROTO is how a failed record or an alert of the other side surfaces while writing.
  if (errno !== undefined && errno !== 'EPROTO') return unreachable(address, error);
  return new XceError(
    'tls',
    `no trust between this host and ${address}: ${describeCertificateRefusal(code === '' ? String(error) : code, undefined)}`,
    { at: address, detail: { reason: code, address }, cause: error },
  );
};

/**
 * Connects with mutual TLS 1.3. `judge` sees the certificate after it has verified against the authority, and
 * says what is wrong with it, or nothing. Throws 'worker-unreachable' (detail: errno, address), 'timeout',
 * 'cancelled', or 'tls' (detail: reason, address).
 */
export const connectTlsSocket = (
  target: { readonly address: string; readonly port: number },
  material: TlsMaterial,
  judge: (certificate: X509Certificate) => string | undefined,
  limits: ConnectLimits,
): Promise<TLSSocket> => {
  const address = `${target.address} port ${target.port}`;
  const refuse = (reason: string, text: string): XceError =>
    new XceError('tls', `the certificate at ${address} does not fit: ${text}`, {
      at: address,
      detail: { reason, address },
    });
  const socket: TLSSocket = tlsConnect({
    host: target.address,
    port: target.port,
    secureContext: clientContextOf(material),
    ALPNProtocols: [ALPN],
    // Said here, so that no variable of the environment can switch it off.
    rejectUnauthorized: true,
    checkServerIdentity: () => {
      const certificate = socket.getPeerX509Certificate();
      const refused = certificate === undefined ? 'there is none' : judge(certificate);
      return refused === undefined ? undefined : refuse('NAMES', refused);
    },
  });
  // Node asks for it before checkServerIdentity: an object of the whole chain, which costs as much as the handshake.
  socket.getPeerCertificate = () => ({}) as DetailedPeerCertificate;
  socket.setNoDelay(true);
  const named = { host: target.address, port: target.port };
  let isLookedUp = isIP(target.address) !== 0;
  socket.once('lookup', () => {
    isLookedUp = true;
  });
  return awaitConnected(
    socket,
    'secureConnect',
    address,
    limits,
    (error) => {
      const failure = lookupFailureOf(error);
      return failure === undefined
        ? describeTlsFailure(address, error)
        : unresolved('worker-unreachable', named, `the look-up says ${failure}`, error);
    },
    () =>
      isLookedUp
        ? noConnection(address, limits.timeoutMs)
        : unresolved('timeout', named, `the look-up has no answer within ${limits.timeoutMs} ms`),
  );
};
