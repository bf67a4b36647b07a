/**
 * The worker's log. Plain reports are lines on stderr with a priority (sd-daemon(3)); the audit of privileged
 * actions goes to the journal with a field for each fact, in the journal's native protocol. This file owns every byte
 * that is written there; text that a job or a peer chose is escaped in lines, framed in fields, and bounded.
 */
import { stackOf } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import type { Clock } from '../os/clock.ts';
import type { ServerReport, Subject } from '../rpc/verbs.ts';
import type { Report } from './ports.ts';

const LINE_CHARS_MAX = 2000;
/** A line, and what is added when lines before it were dropped. */
const FIELD_CHARS_MAX = 2100;
/** syslog(3). */
const PRIORITY = { error: 3, warning: 4, notice: 5, info: 6 } as const;

const PRIORITY_OF: Readonly<Record<Report['level'], number>> = {
  fault: PRIORITY.error,
  notice: PRIORITY.info,
};

/** What `journalctl MESSAGE_ID=` finds the audit by. Never changes. */
export const AUDIT_MESSAGE_ID = 'f6abaa2d15b24dfd81bc6bd858f9da56';

/** Fields of an audit entry, in the order in which they are written; absent ones are not known. */
type AuditFields = {
  readonly XCE_CALLER: string;
  readonly XCE_VERB: string;
  readonly XCE_VERDICT: 'done' | 'refused' | 'failed';
  readonly XCE_CODE: string;
  readonly XCE_LEASE?: string;
  readonly XCE_JOB?: string;
  readonly XCE_UID?: string;
};

export type JournalEntry = {
  readonly priority: number;
  /** One line, escaped and bounded. */
  readonly message: string;
  /** Of an audit entry alone. */
  readonly audit?: AuditFields;
};

const entryOf = (priority: number, message: string, audit?: AuditFields): JournalEntry => {
  const shown = escapeText(message);
  const cut = shown.length > LINE_CHARS_MAX ? `${shown.slice(0, LINE_CHARS_MAX)}…` : shown;
  return { priority, message: cut, ...(audit === undefined ? {} : { audit }) };
};

const auditOf = (
  {
    peer,
    verb,
    subject,
  }: { readonly peer: string; readonly verb: string; readonly subject: Subject | undefined },
  XCE_VERDICT: AuditFields['XCE_VERDICT'],
  XCE_CODE: string,
): AuditFields => ({
  XCE_CALLER: peer,
  XCE_VERB: verb,
  XCE_VERDICT,
  XCE_CODE,
  ...(subject?.lease === undefined ? {} : { XCE_LEASE: String(subject.lease) }),
  ...(subject?.job === undefined ? {} : { XCE_JOB: subject.job }),
  ...(subject?.uid === undefined ? {} : { XCE_UID: String(subject.uid) }),
});

/** The entry as a line for stderr: all that there is where no journal reads. */
export const lineOf = ({ priority, message }: JournalEntry): string => `<${priority}>${message}\n`;

const PLAIN = /^[\x20-\x7e]*$/;

/** One field of the native protocol. Only printable ASCII is written as NAME=value; the rest has its length in front. */
const encodeField = (name: string, value: string): Buffer => {
  if (PLAIN.test(value)) return Buffer.from(`${name}=${value}\n`, 'latin1');
  const bytes = Buffer.from(value);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(bytes.length));
  return Buffer.concat([Buffer.from(`${name}\n`, 'latin1'), length, bytes, Buffer.from('\n')]);
};

/** The datagram for an audit entry (systemd's JOURNAL_NATIVE_PROTOCOL). */
export const encodeAudit = ({ priority, message }: JournalEntry, audit: AuditFields): Buffer => {
  const fields = Object.entries({
    MESSAGE: message,
    MESSAGE_ID: AUDIT_MESSAGE_ID,
    PRIORITY: String(priority),
    SYSLOG_IDENTIFIER: 'xce-sandbox-worker',
    ...audit,
  });
  return Buffer.concat(fields.map(([name, value]) => encodeField(name, value.slice(0, FIELD_CHARS_MAX))));
};

/** What one report of the worker says. */
export const entryOfReport = (report: Report): JournalEntry =>
  entryOf(PRIORITY_OF[report.level], report.message);

/** What one report of the protocol server says. */
export const entryOfServerReport = (report: ServerReport): JournalEntry => {
  switch (report.what) {
    case 'bug':
      return entryOf(
        PRIORITY.error,
        `${report.peer}: ${report.verb}: bug: ${stackOf(report.error)}`,
        auditOf(report, 'failed', 'bug'),
      );
    case 'peer-refused':
      return entryOf(
        PRIORITY.warning,
        `${report.listener}: ${report.from} was refused: ${report.code}: ${report.message}`,
      );
    case 'done':
      return entryOf(
        PRIORITY.notice,
        `${report.peer}: ${report.subject.act}: done`,
        auditOf(report, 'done', 'ok'),
      );
    case 'refused':
      return entryOf(
        PRIORITY.notice,
        `${report.peer}: ${report.subject?.act ?? report.verb}: refused: ${report.code}: ${report.message}`,
        auditOf(report, 'refused', report.code),
      );
    case 'broken-off':
      return entryOf(
        PRIORITY.info,
        `${report.peer}: ${report.verb}: broken off: ${report.code}: ${report.message}`,
      );
    case 'connection-failed':
      return entryOf(PRIORITY.info, `${report.peer}: connection failed: ${report.message}`);
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

  /** The entry to write, or undefined for none. */
  take(report: ServerReport): JournalEntry | undefined {
    const entry = entryOfServerReport(report);
    // What was done is bounded by what it cost to do it.
    if (report.what === 'bug' || report.what === 'done') return entry;
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
    if (dropped === 0) return entry;
    return { ...entry, message: `${entry.message} (and ${dropped} lines like it before)` };
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
