/** The lease log itself: making it, taking it over, checking it. */
import { assert, XceError } from '../base/errors.ts';
import type { EpochReport, LogProblem } from '../wal/check.ts';
import type { LogPosition } from '../wal/log.ts';
import type { Context } from './context.ts';
import { checkLeaseLog } from './lease-log-ports.ts';
import { type ProbePeer, probeWithPeer } from './lease-probe.ts';
import { tellNotices } from './notices.ts';

/** Makes the log; with a peer after a probe of the storage together with it. */
export const initLeaseLog = async (
  context: Context,
  { peer, timeoutMs }: { readonly peer: ProbePeer | undefined; readonly timeoutMs: number },
): Promise<LogPosition> => {
  if (peer !== undefined) {
    await context.log.requireNone();
    await probeWithPeer(context, peer, timeoutMs);
  }
  return await context.log.init();
};

export const takeOverLeaseLog = async (context: Context): Promise<LogPosition> => {
  const { notices, ...position } = await context.log.takeover();
  tellNotices(context, notices);
  return position;
};

/** Makes a long log short: the owner goes on in the next epoch, which begins with the state as it is. */
export const compactLeaseLog = async (context: Context): Promise<LogPosition> => {
  const { notices, ...position } = await context.log.compact();
  tellNotices(context, notices);
  return position;
};

export type LogVerification = LogPosition & {
  /** Bytes of an incomplete last record; they do not count. */
  readonly tornBytes: number;
  readonly leases: number;
  /** Every epoch that is there, newest first. */
  readonly epochs: readonly EpochReport[];
};

/** Throws the first of the problems with its path and offset, and all of them in the detail. */
export const refuseProblems = (problems: readonly LogProblem[], next: string): void => {
  const [first] = problems;
  if (first === undefined) return;
  throw new XceError(first.code, first.message, {
    at: first.offset === null ? first.path : `${first.path}, offset ${first.offset}`,
    unchanged: 'the lease log',
    next,
    detail: { problems },
  });
};

/** Checks every byte of every epoch, and replays what counts; writes nothing anywhere. */
export const verifyLeaseLog = async (context: Context): Promise<LogVerification> => {
  const { epochs, problems, newest } = await checkLeaseLog(context.settings);
  refuseProblems(
    problems,
    'xce-sandbox lease repair; where bytes do not check it touches nothing and says what can be done',
  );
  assert(newest !== null, 'a log without problems has a newest complete epoch');
  const { state, ...position } = newest;
  return { ...position, leases: state.leases.size, epochs };
};
