/** Making a lease log whole again after a crash, and saying what can be done where it was more than a crash. */
import type { EpochReport, LogProblem } from '../wal/check.ts';
import type { LogPosition } from '../wal/log.ts';
import type { Context } from './context.ts';
import { refuseProblems } from './lease-log.ts';
import { checkLeaseLog } from './lease-log-ports.ts';
import { tellNotices } from './notices.ts';

export type RepairResult = LogPosition & {
  /** False: nothing was wrong, and nothing was written. */
  readonly repaired: boolean;
  /** Files that ended in the middle: from the offset on none counts, and each stays as it is. */
  readonly kept: readonly { readonly path: string; readonly offset: number; readonly bytes: number }[];
};

const listEpochs = (epochs: readonly EpochReport[]): string =>
  epochs
    .map(({ epoch }) => epoch)
    .reverse()
    .join(', ');

/** Nobody can say what stood in bytes that do not check; what can be done is up to whoever has another copy of them. */
const adviseOnProblems = (
  directory: string,
  epochs: readonly EpochReport[],
  problems: readonly LogProblem[],
): string => {
  const bad = new Set(problems.flatMap(({ code, path }) => (code === 'log-rollback' ? [] : [path])));
  const whole = epochs.filter(({ path, status }) => status === 'complete' && !bad.has(path));
  const checks = whole.length === 0 ? 'no complete epoch checks' : `epochs that check: ${listEpochs(whole)}`;
  const copies = `cp -a ${directory} to a safe place`;
  const lost = bad.size === 0 ? `the newest state of ${directory}` : [...bad].join(', ');
  const restore = `bring back ${lost} from a snapshot or a replica of the storage`;
  return `stop allocating; ${copies}; ${restore}; xce-sandbox lease verify (${checks})`;
};

/**
 * Takes the next epoch where the newest ended in an incomplete record or was never completed. Throws 'log-fenced' when
 * another controller owns the log, and the problem that the check found where bytes do not check: then nothing is
 * touched.
 */
export const repairLeaseLog = async (context: Context): Promise<RepairResult> => {
  const { epochs, problems, newest } = await checkLeaseLog(context.settings);
  refuseProblems(problems, adviseOnProblems(context.settings.lease.directory, epochs, problems));
  const broken = epochs.filter(
    ({ epoch, status, tornBytes }) =>
      newest !== null && (epoch === newest.epoch ? tornBytes > 0 : epoch > newest.epoch && status === 'void'),
  );
  if (newest !== null && broken.length === 0) {
    const { epoch, token, host, sequence } = newest;
    return { epoch, token, host, sequence, repaired: false, kept: [] };
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
    kept: broken.map(({ path, bytes, tornBytes }) => ({ path, offset: bytes, bytes: tornBytes })),
  };
};
