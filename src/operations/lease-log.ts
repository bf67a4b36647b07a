/** The lease log itself: making it, taking it over, checking it. */
import { XceError } from '../base/errors.ts';
import type { EpochReport } from '../wal/check.ts';
import type { LogPosition } from '../wal/log.ts';
import type { Context } from './context.ts';
import { checkLeaseLog } from './lease-log-ports.ts';
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
  /** Every epoch that is there, newest first. */
  readonly epochs: readonly EpochReport[];
};

/**
 * Checks every byte of every epoch, and replays what counts. Throws the first problem with its path and offset,
 * and all of them in the detail.
 */
export const verifyLeaseLog = async (context: Context): Promise<LogVerification> => {
  const { epochs, problems } = await checkLeaseLog(context.settings);
  const [first] = problems;
  if (first !== undefined) {
    throw new XceError(first.code, first.message, {
      at: first.offset === null ? first.path : `${first.path}, offset ${first.offset}`,
      unchanged: 'the lease log',
      next: 'man xce-sandbox-log',
      detail: { problems },
    });
  }
  const { epoch, token, host, sequence, tornBytes, state } = await context.log.read();
  return { epoch, token, host, sequence, tornBytes, leases: state.leases.size, epochs };
};
