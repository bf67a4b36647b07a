/** The lease log itself: making it, taking it over, checking it. */
import type { LogPosition } from '../wal/log.ts';
import type { Context } from './context.ts';
import { tellNotices } from './notices.ts';

export const initLeaseLog = (context: Context): Promise<LogPosition> => context.log.init();

export const takeOverLeaseLog = async (context: Context): Promise<LogPosition> => {
  const { notices, ...position } = await context.log.takeover();
  tellNotices(context, notices);
  return position;
};

export type LogVerification = LogPosition & {
  /** Bytes of an incomplete last record; they do not count. */
  readonly tornBytes: number;
  readonly leases: number;
};

/** Replays everything that counts, checking each byte; throws with the offset of what does not check. */
export const verifyLeaseLog = async (context: Context): Promise<LogVerification> => {
  const { epoch, token, host, sequence, tornBytes, state } = await context.log.read();
  return { epoch, token, host, sequence, tornBytes, leases: state.leases.size };
};
