/**
 * The worker's log: lines on stderr with a priority for the journal (sd-daemon(3)). This file owns every byte
 * that is written there; text that a job or a peer chose is escaped, and a line is bounded.
 */
import { escapeText } from '../base/escape.ts';
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
