/**
 * The worker's log: lines on stderr with a priority for the journal (sd-daemon(3)). This file owns every byte
 * that is written there; text that a job or a peer chose is escaped, and a line is bounded.
 */
import { escapeText } from '../base/escape.ts';
import type { Clock } from '../os/clock.ts';
import type { ServerReport } from '../rpc/verbs.ts';
import type { Report } from './ports.ts';

const LINE_CHARS_MAX = 2000;
/** syslog(3). */
const PRIORITY = { error: 3, warning: 4, notice: 5, info: 6 } as const;

const PRIORITY_OF: Readonly<Record<Report['level'], number>> = {
  fault: PRIORITY.error,
  audit: PRIORITY.notice,
  notice: PRIORITY.info,
};

const formatLine = (priority: number, message: string): string => {
  const shown = escapeText(message);
  const cut = shown.length > LINE_CHARS_MAX ? `${shown.slice(0, LINE_CHARS_MAX)}…` : shown;
  return `<${priority}>${cut}\n`;
};

const stackOf = (error: unknown): string =>
  error instanceof Error ? (error.stack ?? error.message) : String(error);

/** One line for one report of the worker. */
export const formatReport = (report: Report): string => formatLine(PRIORITY_OF[report.level], report.message);

/** One line for one report of the protocol server. */
export const formatServerReport = (report: ServerReport): string => {
  switch (report.what) {
    case 'bug':
      return formatLine(PRIORITY.error, `${report.peer}: ${report.verb}: bug: ${stackOf(report.error)}`);
    case 'peer-refused':
      return formatLine(
        PRIORITY.warning,
        `${report.listener}: ${report.from} was refused: ${report.code}: ${report.message}`,
      );
    case 'refused':
      return formatLine(
        PRIORITY.notice,
        `${report.peer}: ${report.verb}: refused: ${report.code}: ${report.message}`,
      );
    case 'connection-failed':
      return formatLine(PRIORITY.info, `${report.peer}: connection failed: ${report.message}`);
  }
};

/** Lines about one source at once, and how often one more. The journal drops lines of the whole unit beyond its
 * own limit, so a job or a stranger that is refused in a loop must not be able to hide what others do. */
const BURST_LINES = 20;
const LINE_EVERY_MS = 1000;
const SOURCES_MAX = 4096;

/** The process within a peer (describePeer): a job has as many as it likes, and all are one source. */
const PROCESS = /, pid \d+$/;

type Bucket = { lines: number; atMs: number; dropped: number };

/** Decides which reports of the protocol server become lines; a dropped one is counted in the next that is not. */
export class JournalLimit {
  readonly #clock: Pick<Clock, 'monotonicMs'>;
  readonly #buckets = new Map<string, Bucket>();

  constructor(clock: Pick<Clock, 'monotonicMs'>) {
    this.#clock = clock;
  }

  /** The line to write, or undefined for none. */
  take(report: ServerReport): string | undefined {
    const line = formatServerReport(report);
    if (report.what === 'bug') return line;
    const source = report.what === 'peer-refused' ? report.listener : report.peer.replace(PROCESS, '');
    const nowMs = this.#clock.monotonicMs();
    const bucket = this.#bucketOf(source, nowMs);
    bucket.lines = Math.min(BURST_LINES, bucket.lines + (nowMs - bucket.atMs) / LINE_EVERY_MS);
    bucket.atMs = nowMs;
    if (bucket.lines < 1) {
      bucket.dropped += 1;
      return undefined;
    }
    bucket.lines -= 1;
    const { dropped } = bucket;
    bucket.dropped = 0;
    return dropped === 0 ? line : `${line.slice(0, -1)} (and ${dropped} lines like it before)\n`;
  }

  #bucketOf(source: string, nowMs: number): Bucket {
    const known = this.#buckets.get(source);
    if (known !== undefined) return known;
    const [oldest] = this.#buckets.keys();
    if (this.#buckets.size >= SOURCES_MAX && oldest !== undefined) this.#buckets.delete(oldest);
    const bucket: Bucket = { lines: BURST_LINES, atMs: nowMs, dropped: 0 };
    this.#buckets.set(source, bucket);
    return bucket;
  }
}
