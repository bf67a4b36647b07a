/** Durations in milliseconds, as the page names them. */
export type RpcTimes = {
  /** From accept to a finished TLS handshake. */
  readonly handshakeMs: number;
  /** From the end of the handshake, or of the last request, to the next request. */
  readonly idleMs: number;
  /** From the headers of a request to the last byte of its body, or of its head frame. */
  readonly requestMs: number;
  /** From the last byte of a stream that has ended to the half-close of the client. */
  readonly halfCloseMs: number;
  /** Between two pings while a request is open. */
  readonly pingMs: number;
  /** Without an answer to a ping, the connection is lost. */
  readonly pingTimeoutMs: number;
};

/** The durations of the page. */
export const RPC_TIMES: RpcTimes = {
  handshakeMs: 30_000,
  idleMs: 60_000,
  requestMs: 30_000,
  halfCloseMs: 3_600_000,
  pingMs: 5000,
  pingTimeoutMs: 15_000,
};
