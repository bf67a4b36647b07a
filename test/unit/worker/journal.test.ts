import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import type { LeaseNumber, Uid } from '../../../src/base/ids.ts';
import { describePeer, type ServerReport } from '../../../src/rpc/verbs.ts';
import {
  AUDIT_MESSAGE_ID,
  encodeAudit,
  entryOfReport,
  entryOfServerReport,
  type JournalEntry,
  JournalLimit,
  lineOf,
} from '../../../src/worker/journal.ts';
import type { Report } from '../../../src/worker/ports.ts';
import { FakeClock } from './fakes.ts';

const lineOfReport = (report: Report): string => lineOf(entryOfReport(report));
const lineOfServerReport = (report: ServerReport): string => lineOf(entryOfServerReport(report));

/** The fields of a datagram, read as the journal reads them; throws for what is not framed. */
const fieldsOf = (datagram: Buffer): Record<string, string> => {
  const fields: Record<string, string> = {};
  for (let at = 0; at < datagram.length; ) {
    const end = datagram.indexOf('\n', at);
    const line = datagram.toString('latin1', at, end);
    const equals = line.indexOf('=');
    if (equals >= 0) {
      fields[line.slice(0, equals)] = line.slice(equals + 1);
      at = end + 1;
      continue;
    }
    const length = Number(datagram.readBigUInt64LE(end + 1));
    const from = end + 9;
    fields[line] = datagram.toString('utf8', from, from + length);
    if (datagram[from + length] !== 0x0a) throw new Error(`${line} does not end where it says`);
    at = from + length + 1;
  }
  return fields;
};

const datagramOf = (entry: JournalEntry): Buffer => {
  if (entry.audit === undefined) throw new Error('no audit');
  return encodeAudit(entry, entry.audit);
};

describe('the journal', () => {
  test('gives each line its priority', () => {
    expect(lineOfReport({ level: 'fault', message: 'a' })).toBe('<3>a\n');
    expect(lineOfReport({ level: 'notice', message: 'a' })).toBe('<6>a\n');
  });

  test('is one line a report whatever a job chose, with no control sequence', () => {
    const line = lineOfReport({ level: 'notice', message: 'x\n<0>forged\r\u001b[2J\u202e' });
    expect(line).toBe('<6>x\\n<0>forged\\r\\x1b[2J\\u{202e}\n');
  });

  test('cuts a line that is too long', () => {
    expect(lineOfReport({ level: 'notice', message: 'x'.repeat(100_000) }).length).toBeLessThan(2100);
  });

  test('says who was refused what', () => {
    expect(
      lineOfServerReport({
        what: 'refused',
        peer: 'controller ctl',
        verb: 'prepare',
        code: 'ticket-expired',
        message: 'over',
        subject: undefined,
      }),
    ).toBe('<5>controller ctl: prepare: refused: ticket-expired: over\n');
    expect(
      lineOfServerReport({ what: 'bug', peer: 'p', verb: 'v', error: new Error('boom'), subject: undefined }),
    ).toMatch(/^<3>p: v: bug: Error: boom\\n {4}at .*\n$/);
  });
});

describe('the audit', () => {
  const done: ServerReport = {
    what: 'done',
    peer: 'controller ctl',
    verb: 'step',
    subject: { act: 'start task t1 of lease 7', lease: 7, job: '42.1', uid: 70_001 },
  };

  test('has a field for each fact, and the same line as its message', () => {
    expect(fieldsOf(datagramOf(entryOfServerReport(done)))).toEqual({
      MESSAGE: 'controller ctl: start task t1 of lease 7: done',
      MESSAGE_ID: AUDIT_MESSAGE_ID,
      PRIORITY: '5',
      SYSLOG_IDENTIFIER: 'xce-sandbox-worker',
      XCE_CALLER: 'controller ctl',
      XCE_VERB: 'step',
      XCE_VERDICT: 'done',
      XCE_CODE: 'ok',
      XCE_LEASE: '7',
      XCE_JOB: '42.1',
      XCE_UID: '70001',
    });
  });

  test('says refused and why, or failed when a rule of ours was broken', () => {
    const refused = entryOfServerReport({ ...done, what: 'refused', code: 'ticket-nonce', message: 'old' });
    expect(refused.message).toBe('controller ctl: start task t1 of lease 7: refused: ticket-nonce: old');
    expect(fieldsOf(datagramOf(refused))).toMatchObject({ XCE_VERDICT: 'refused', XCE_CODE: 'ticket-nonce' });
    const failed = entryOfServerReport({ ...done, what: 'bug', error: new Error('boom') });
    expect(fieldsOf(datagramOf(failed))).toMatchObject({
      XCE_VERDICT: 'failed',
      XCE_CODE: 'bug',
      XCE_JOB: '42.1',
    });
  });

  test('names nothing that is not known, and nobody forges a field', () => {
    const hostile = 'x\nXCE_VERDICT=done\nPRIORITY=0\u202e\0ü';
    const entry = entryOfServerReport({
      what: 'refused',
      peer: hostile,
      verb: 'stop',
      code: 'peer-role',
      message: hostile,
      subject: { act: 'stop', job: hostile },
    });
    const fields = fieldsOf(datagramOf(entry));
    expect(fields).toMatchObject({
      XCE_CALLER: hostile,
      XCE_JOB: hostile,
      XCE_VERDICT: 'refused',
      PRIORITY: '5',
      MESSAGE: expect.stringContaining('x\\nXCE_VERDICT=done'),
    });
    expect(Object.keys(fields)).not.toContain('XCE_UID');
    expect(Object.keys(fields)).not.toContain('XCE_LEASE');
  });

  test('is found by the id that the page names', () => {
    const page = readFileSync(new URL('../../../man/xce-sandbox-worker.8', import.meta.url), 'utf8');
    expect(page).toContain(`MESSAGE_ID=${AUDIT_MESSAGE_ID}`);
  });

  test('is bounded, whatever a peer sent', () => {
    const subject = { act: 'x'.repeat(100_000), job: 'y'.repeat(100_000) };
    const entry = entryOfServerReport({ ...done, peer: 'z'.repeat(100_000), subject });
    expect(datagramOf(entry).length).toBeLessThan(8000);
  });
});

describe('a source that is refused in a loop', () => {
  const refused = (peer: string): ServerReport => ({
    what: 'refused',
    peer,
    verb: 'daemon',
    code: 'node-unknown',
    message: 'no',
    subject: undefined,
  });

  test('gets twenty lines at once, then one a second that counts the others, and hides nobody else', () => {
    const clock = new FakeClock();
    const limit = new JournalLimit(clock);
    const lines = Array.from({ length: 1000 }, () => limit.take(refused('sandbox of lease 7')));
    expect(lines.filter((line) => line !== undefined)).toHaveLength(20);
    expect(limit.take(refused('sandbox of lease 8'))).toBeDefined();
    clock.advance(1000);
    expect(limit.take(refused('sandbox of lease 7'))?.message).toMatch(/\(and 980 lines like it before\)$/);
    expect(limit.take(refused('sandbox of lease 7'))).toBeUndefined();
  });

  test('is one source, however many processes it forks', () => {
    const limit = new JournalLimit(new FakeClock());
    const peers = Array.from({ length: 1000 }, (_, pid) =>
      describePeer({ kind: 'sandbox', lease: 7 as LeaseNumber, uid: 70_001 as Uid, pid }),
    );
    expect(peers.map((peer) => limit.take(refused(peer))).filter(Boolean)).toHaveLength(20);
  });

  test('has no limit for faults of ours', () => {
    const limit = new JournalLimit(new FakeClock());
    const bug: ServerReport = {
      what: 'bug',
      peer: 'p',
      verb: 'v',
      error: new Error('boom'),
      subject: undefined,
    };
    expect(Array.from({ length: 100 }, () => limit.take(bug)).every((line) => line !== undefined)).toBe(true);
  });
});
