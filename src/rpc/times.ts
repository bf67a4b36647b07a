import type { RpcTimes } from './verbs.ts';

/** The durations of the page. */
export const RPC_TIMES: RpcTimes = {
  handshakeMs: 10_000,
  idleMs: 60_000,
  requestMs: 30_000,
  pingMs: 5000,
  pingTimeoutMs: 15_000,
};
