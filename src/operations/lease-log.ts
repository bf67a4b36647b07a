/** The lease log itself: making it, taking it over, checking it. */
import { formatDuration } from '../base/duration.ts';
import { assert, XceError } from '../base/errors.ts';
import type { EpochReport, LogProblem, LogReport, RecordTimes } from '../wal/check.ts';
import { describeTornTail } from '../wal/damage.ts';
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
  readonly clocks: ClockReport;
};

/** What the newest record shows of three clocks: of its writer, of the storage and of this host. */
export type ClockReport = {
  /** The storage's clock minus the writer's when it was written, milliseconds; null where nothing shows it. */
  readonly storageSkewMs: number | null;
  /** How long ago this host's clock says it was; 0 where it says that the record is yet to come. */
  readonly newestAgeMs: number;
  /** By how much at least this host's clock is behind the writer's. */
  readonly behindMs: number;
};

const reportClocks = ({ recordMs, storageMs }: RecordTimes, nowMs: number): ClockReport => ({
  storageSkewMs: storageMs === null ? null : storageMs - recordMs,
  newestAgeMs: Math.max(0, nowMs - recordMs),
  behindMs: Math.max(0, recordMs - nowMs),
});

const tellSkew = (context: Context, { storageSkewMs, behindMs }: ClockReport): void => {
  const { skewMs } = context.settings.lease;
  if (Math.max(Math.abs(storageSkewMs ?? 0), behindMs) <= skewMs) return;
  context.tell(
    `the clocks are further apart than [lease] skew allows (${formatDuration(skewMs)}): set them right; until then no host lets a lease of another one expire`,
  );
};

/** What is left whole, for whoever puts the log together again. */
const describeWhole = (epochs: readonly EpochReport[], problems: readonly LogProblem[]): string => {
  const bad = new Set(problems.map(({ path }) => path));
  const whole = epochs.filter(({ path, status }) => status === 'complete' && !bad.has(path));
  if (whole.length === 0) return 'no complete epoch checks';
  const numbers = whole.map(({ epoch }) => epoch).reverse();
  return `epochs that check: ${numbers.join(', ')}`;
};

/** Throws the first of the problems as every command says it, and all of them in the detail. */
export const refuseProblems = ({
  epochs,
  problems,
}: Pick<LogReport<unknown>, 'epochs' | 'problems'>): void => {
  const [first] = problems;
  if (first === undefined) return;
  throw new XceError(first.code, first.message, {
    at: first.offset === null ? first.path : `${first.path}:${first.offset}`,
    unchanged: `nothing was written to the lease log; ${describeWhole(epochs, problems)}`,
    next: first.next,
    detail: { problems },
  });
};

/** What a reader of the log hears as well. */
const tellTornTail = (context: Context, epochs: readonly EpochReport[]): void => {
  const [highest] = epochs;
  if (highest === undefined || highest.tornBytes === 0) return;
  const { path, bytes: offset, tornBytes: bytes } = highest;
  context.tell(describeTornTail({ path, offset, bytes }));
};

/** Checks every byte of every epoch, and replays what counts; writes nothing anywhere. */
export const verifyLeaseLog = async (context: Context): Promise<LogVerification> => {
  const report = await checkLeaseLog(context.settings);
  refuseProblems(report);
  const { epochs, newest } = report;
  tellTornTail(context, epochs);
  assert(newest !== null, 'a log without problems has a newest complete epoch');
  const { state, recordMs, storageMs, ...position } = newest;
  const clocks = reportClocks({ recordMs, storageMs }, context.clock.wallMs());
  tellSkew(context, clocks);
  return { ...position, leases: state.leases.size, epochs, clocks };
};
