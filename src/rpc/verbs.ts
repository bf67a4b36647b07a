/**
 * What a server of the worker protocol is given and what it gives to its verbs: who the peer is, the literal
 * table verb -> callers -> handler, and a stream as a handler sees it.
 */
import type { Readable } from 'node:stream';
import type { ErrorCode } from '../base/errors.ts';
import type { LeaseNumber, NodeName, Uid } from '../base/ids.ts';
import type { Identity } from '../pki/identity.ts';
import type { CertificateRole } from '../pki/names.ts';
import type {
  RequestOf,
  ResponseOf,
  StreamCommand,
  StreamEvent,
  StreamVerb,
  UnaryVerb,
  Verb,
} from './message.ts';
import type { RpcTimes } from './times.ts';

/** Who is at the other end, as proven by a certificate of the cluster or by the kernel. */
export type Peer =
  | { readonly kind: 'certificate'; readonly role: CertificateRole; readonly node: NodeName }
  | { readonly kind: 'local-root'; readonly pid: number }
  | { readonly kind: 'sandbox'; readonly lease: LeaseNumber; readonly uid: Uid; readonly pid: number };

/** A word per kind of peer; verbs list those that may call them. */
export type Caller = CertificateRole | 'local-root' | 'sandbox';

export const callerOf = (peer: Peer): Caller => (peer.kind === 'certificate' ? peer.role : peer.kind);

/** The peer in one printable word or two, for reports. */
export const describePeer = (peer: Peer): string => {
  switch (peer.kind) {
    case 'certificate':
      return `${peer.role} ${peer.node}`;
    case 'local-root':
      return `local root, pid ${peer.pid}`;
    case 'sandbox':
      return `sandbox of lease ${peer.lease}, uid ${peer.uid}, pid ${peer.pid}`;
  }
};

/**
 * One open stream, as a handler sees it.
 *
 * A handler that throws before its first frame is a refusal: status and WireError. After the first frame it
 * becomes an error frame, and the client's iteration throws that code. The first frame must be the event
 * 'started'. A handler that returns ends the stream and must have sent the event 'ended' as its last.
 */
export type ServerStream = {
  /**
   * Bytes of channel stdin; ends where the client said end-of-stdin or half-closed. At most
   * twice STREAM.stdinCreditBytes wait here: the client may send more only as they are read. Destroyed with
   * 'cancelled' when the peer goes away.
   */
  readonly stdin: Readable;
  /** Aborted, with an XceError 'cancelled' (or 'protocol') as reason, when the peer goes away before the handler is done. */
  readonly signal: AbortSignal;
  /**
   * Commands of the client, from the first on, one at a time: the next waits for the listener's promise. A
   * listener that throws fails the stream with its error.
   */
  onCommand(listener: (command: StreamCommand) => void | Promise<void>): void;
  /** Resolves when more may be sent; rejects with the reason of `signal` once the peer is gone. */
  sendEvent(event: StreamEvent): Promise<void>;
  /** Like sendEvent; any length, cut into frames here. Await it before the next: that is the flow control. */
  write(channel: 'stdout' | 'stderr', bytes: Uint8Array): Promise<void>;
  /**
   * Sends everything a Readable has, at the pace of the client. Resolves at its end; rejects with its error. When
   * the peer goes away it reads on and throws away, so that a process which is being ended is not stuck in
   * write(2), and rejects at the end of the Readable with the reason of `signal`.
   */
  pump(channel: 'stdout' | 'stderr', source: Readable): Promise<void>;
};

/** What a privileged request is about, as far as it is known: for the audit, decided by nobody. */
export type Subject = {
  /** What was asked for, in a few words. */
  readonly act: string;
  readonly lease?: number;
  readonly job?: string;
  readonly uid?: number;
};

export type UnaryEntry<V extends UnaryVerb> = {
  readonly callers: readonly Caller[];
  /** Verbs that have it are privileged: each use of them is reported, done or refused. */
  readonly subject?: (peer: Peer, request: RequestOf<V>) => Subject;
  /** `signal` is aborted when the caller goes away; verbs that must not stop half-way ignore it. */
  readonly answer: (peer: Peer, request: RequestOf<V>, signal: AbortSignal) => Promise<ResponseOf<V>>;
};

export type StreamEntry<V extends StreamVerb> = {
  readonly callers: readonly Caller[];
  readonly subject?: (peer: Peer, head: RequestOf<V>) => Subject;
  readonly serve: (peer: Peer, head: RequestOf<V>, stream: ServerStream) => Promise<void>;
};

/** The whole of what a server does. A verb that is not in the table is refused like one that does not exist. */
export type VerbTable = { readonly [V in UnaryVerb]?: UnaryEntry<V> } & {
  readonly [V in StreamVerb]?: StreamEntry<V>;
};

/** What a server tells the program that runs it; it never logs by itself. Messages may hold what a peer chose. */
export type ServerReport =
  /** A handler threw something else than an XceError, or broke a rule of the protocol. The peer saw only 'bug'. */
  | {
      readonly what: 'bug';
      readonly peer: string;
      readonly verb: string;
      readonly error: unknown;
      readonly subject: Subject | undefined;
    }
  /** A connection was refused before any verb. */
  | {
      readonly what: 'peer-refused';
      readonly listener: string;
      readonly from: string;
      readonly code: ErrorCode;
      readonly message: string;
    }
  /** A privileged verb was done; of a stream verb: what it asked for was started. */
  | { readonly what: 'done'; readonly peer: string; readonly verb: string; readonly subject: Subject }
  /** A verb was refused, by its callers, by the decoder or by its handler. */
  | {
      readonly what: 'refused';
      readonly peer: string;
      readonly verb: string;
      readonly code: ErrorCode;
      readonly message: string;
      /** Of a privileged verb whose request could be read. */
      readonly subject: Subject | undefined;
    }
  /** A stream that had started ended otherwise than it should; that it was started has been reported. */
  | {
      readonly what: 'broken-off';
      readonly peer: string;
      readonly verb: string;
      readonly code: ErrorCode;
      readonly message: string;
    }
  /** A connection ended by an error of its bytes or its transport. */
  | { readonly what: 'connection-failed'; readonly peer: string; readonly message: string };

/** Where a listener comes from: made here, or an open descriptor that systemd passed. */
export type UnixPlace = { readonly path: string } | { readonly fd: number };
export type TcpPlace = { readonly address: string; readonly port: number } | { readonly fd: number };

/** Stops taking connections and ends those that were taken. Idempotent. */
export type Listening = { close(): Promise<void> };

export type TlsListening = Listening & {
  readonly port: number;
  /**
   * Uses this identity for every connection from now on. Connections that are up stay up, but for those whose
   * certificate is among its revoked ones: what they ask for is ended with them.
   */
  renew(identity: Identity): void;
};

/** One server, one table, any number of listeners; made by createServer(options) of server.ts. */
export type RpcServer = {
  /** Mutual TLS 1.3; peers are certificates of the identity's cluster. Resolves with the bound port. */
  listenTls(place: TcpPlace, identity: Identity): Promise<TlsListening>;
  /** Unix socket, mode 0600, for root on this host. */
  listenRoot(place: UnixPlace): Promise<Listening>;
  /** Unix socket of one sandbox, mode 0600, owned by its uid, which alone may connect. */
  listenSandbox(path: string, lease: LeaseNumber, uid: Uid): Promise<Listening>;
  /** Closes the listeners, lets what is in flight finish for `graceMs`, then ends it. Idempotent. */
  close(graceMs: number): Promise<void>;
};

export type ListenerKind = 'tls' | 'local' | 'sandbox';

/** Told of everything that is worth counting. Must not throw. */
export type ServerMeter = {
  /** A request was answered, or its stream has ended. `verb` is '-' where there is none of that name. */
  request(verb: Verb | '-', code: ErrorCode | 'ok'): void;
  /** Requests that are open: one more, or one less. */
  open(change: 1 | -1): void;
  connection(listener: ListenerKind, change: 1 | -1): void;
  connectionRefused(listener: ListenerKind, code: ErrorCode): void;
  bytes(channel: 'stdin' | 'stdout' | 'stderr', count: number): void;
};

export type ServerOptions = {
  readonly table: VerbTable;
  readonly report: (report: ServerReport) => void;
  /** Nothing is counted without one. */
  readonly meter?: ServerMeter;
  /** Deviations from RPC_TIMES, for tests. */
  readonly times?: Partial<RpcTimes>;
};
