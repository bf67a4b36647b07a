/**
 * One connection to a worker, as its user sees it. Types only; client.ts makes them.
 */
import type { NodeName } from '../base/ids.ts';
import type { Identity } from '../pki/identity.ts';
import type { CertificateRole } from '../pki/names.ts';
import type { RequestOf, ResponseOf, StreamCommand, StreamEvent, StreamVerb, UnaryVerb } from './message.ts';
import type { RpcTimes } from './times.ts';

/** What a server sends inside a stream. Bytes come as they arrived; their borders mean nothing. */
export type ServerFrame =
  | { readonly channel: 'stdout' | 'stderr'; readonly bytes: Buffer }
  | { readonly channel: 'event'; readonly event: StreamEvent };

/**
 * The client's end of one stream. Iterate it (once): the loop's pace is the flow control, so a slow loop holds
 * the step's output back and costs no memory. The loop ends normally only after the event 'ended'; it throws
 * XceError with the server's code for an error frame, 'worker-unreachable' when the connection is lost,
 * 'cancelled' after cancel(), 'protocol' for anything the page does not allow.
 * Leaving the loop early cancels the stream.
 */
export type ClientStream = AsyncIterable<ServerFrame> & {
  /** Any length. Resolves when all of it is on its way; rejects once the stream has ended. Await it before the next. */
  writeStdin(bytes: Uint8Array): Promise<void>;
  /** No more stdin; output goes on. Idempotent. */
  endStdin(): void;
  /** Never waits behind stdin. Without effect once the stream has ended. */
  sendCommand(command: StreamCommand): void;
  /** Gives the stream up; the worker ends what it started for it. Idempotent. */
  cancel(): void;
};

export type CallOptions = {
  readonly timeoutMs: number;
  readonly signal?: AbortSignal;
};

export type RpcSession = {
  /** Node at the other end, as its certificate says; undefined on a unix socket. */
  readonly node: NodeName | undefined;
  /**
   * One request, one answer. Throws XceError: the worker's own code when it refused; 'timeout';
   * 'worker-unreachable' when the connection is lost before the answer (what the verb did is then unknown);
   * 'cancelled' when `signal` fired; 'protocol' or 'too-large' for an answer that is not one.
   */
  call<V extends UnaryVerb>(verb: V, request: RequestOf<V>, options: CallOptions): Promise<ResponseOf<V>>;
  /**
   * Opens a stream. Resolves when the server has accepted it (its first frame is on its way), within
   * `timeoutMs`; throws like call() when it has not.
   */
  stream<V extends StreamVerb>(verb: V, head: RequestOf<V>, options: CallOptions): Promise<ClientStream>;
  /** False from when the other end has begun to end the connection; what is open there goes on. */
  readonly takesRequests: boolean;
  /** Aborted once the connection is gone, whoever ended it; the reason is an XceError. */
  readonly closed: AbortSignal;
  /** Ends the connection; what is in flight fails with 'cancelled'. Idempotent. */
  close(): void;
};

export type ConnectOptions = CallOptions & {
  /** Deviations from RPC_TIMES, for tests. */
  readonly times?: Partial<Pick<RpcTimes, 'pingMs' | 'pingTimeoutMs'>>;
};

/**
 * connectTls and connectUnix of client.ts. Both throw 'worker-unreachable' (detail: errno, address), 'timeout',
 * 'cancelled', 'tls' (detail: reason), 'protocol', or what the server refused the peer with ('tls',
 * 'peer-unknown', 'peer-role', 'worker-busy').
 */
export type ConnectTls = (
  target: {
    readonly address: string;
    readonly port: number;
    readonly identity: Identity;
    /** The certificate at the other end must carry this name and this role, that of a worker unless given. */
    readonly expectNode: NodeName;
    readonly expectRole?: CertificateRole;
  },
  options: ConnectOptions,
) => Promise<RpcSession>;
export type ConnectUnix = (path: string, options: ConnectOptions) => Promise<RpcSession>;
