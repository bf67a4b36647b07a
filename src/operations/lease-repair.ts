/** Making a lease log whole again after a crash, and saying what can be done where it was more than a crash. */
import type { LogPosition } from '../wal/log.ts';
import type { Context } from './context.ts';
import { refuseProblems } from './lease-log.ts';
import { checkLeaseLog } from './lease-log-ports.ts';
import { tellNotices } from './notices.ts';

export type RepairResult = LogPosition & {
  /** False: nothing was wrong, and nothing was written. */
  readonly repaired: boolean;
  /** Whether this host may write to the log as it is now. */
  readonly owned: boolean;
  /** Files that ended in the middle: from the offset on none counts, and each stays as it is. */
  readonly kept: readonly { readonly path: string; readonly offset: number; readonly bytes: number }[];
};

/**
 * Takes the next epoch where the newest ended in an incomplete record or was never completed. Throws 'log-fenced' when
 * another controller owns the log, and the problem that the check found where bytes do not check: then nothing is
 * touched.
 */
export const repairLeaseLog = async (context: Context): Promise<RepairResult> => {
  const report = await checkLeaseLog(context.settings);
  refuseProblems(report);
  const { epochs, newest } = report;
  const broken = epochs.filter(
    ({ epoch, status, tornBytes }) =>
      newest !== null && (epoch === newest.epoch ? tornBytes > 0 : epoch > newest.epoch && status === 'void'),
  );
  if (newest !== null && broken.length === 0) {
    const { epoch, token, host, sequence } = newest;
    const owned = await context.log.owns(newest);
    return { epoch, token, host, sequence, repaired: false, owned, kept: [] };
  }
  // The way into the log is where everything that was left unfinished is dealt with; there is no second one.
  const { position, notices } = await context.log.commit(() => ({ events: [], result: undefined }));
  tellNotices(
    context,
    notices.filter(({ kind }) => kind !== 'torn-tail'),
  );
  return {
    ...position,
    repaired: true,
    owned: true,
    kept: broken.map(({ path, bytes, tornBytes }) => ({ path, offset: bytes, bytes: tornBytes })),
  };
};
