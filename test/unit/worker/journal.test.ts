import { describe, expect, test } from 'vitest';
import type { LeaseNumber, Uid } from '../../../src/base/ids.ts';
import { describePeer, type ServerReport } from '../../../src/rpc/verbs.ts';
import { formatReport, formatServerReport, JournalLimit } from '../../../src/worker/journal.ts';
import { FakeClock } from './fakes.ts';

describe('the journal', () => {
  test('gives each line its priority', () => {
    expect(formatReport({ level: 'fault', message: 'a' })).toBe('<3>a\n');
    expect(formatReport({ level: 'audit', message: 'a' })).toBe('<5>a\n');
    expect(formatReport({ level: 'notice', message: 'a' })).toBe('<6>a\n');
  });

  test('is one line a report whatever a job chose, with no control sequence', () => {
    const line = formatReport({ level: 'audit', message: 'x\n<0>forged\r\u001b[2J\u202e' });
    expect(line).toBe('<5>x\\n<0>forged\\r\\x1b[2J\\u{202e}\n');
  });

  test('cuts a line that is too long', () => {
    expect(formatReport({ level: 'audit', message: 'x'.repeat(100_000) }).length).toBeLessThan(2100);
  });

  test('says who was refused what', () => {
    expect(
      formatServerReport({
        what: 'refused',
        peer: 'controller ctl',
        verb: 'prepare',
        code: 'ticket-expired',
        message: 'over',
      }),
    ).toBe('<5>controller ctl: prepare: refused: ticket-expired: over\n');
    expect(formatServerReport({ what: 'bug', peer: 'p', verb: 'v', error: new Error('boom') })).toMatch(
      /^<3>p: v: bug: Error: boom\\n {4}at .*\n$/,
    );
  });
});

describe('a source that is refused in a loop', () => {
  const refused = (peer: string): ServerReport => ({
    what: 'refused',
    peer,
    verb: 'daemon',
    code: 'node-unknown',
    message: 'no',
  });

  test('gets twenty lines at once, then one a second that counts the others, and hides nobody else', () => {
    const clock = new FakeClock();
    const limit = new JournalLimit(clock);
    const lines = Array.from({ length: 1000 }, () => limit.take(refused('sandbox of lease 7')));
    expect(lines.filter((line) => line !== undefined)).toHaveLength(20);
    expect(limit.take(refused('sandbox of lease 8'))).toBeDefined();
    clock.advance(1000);
    expect(limit.take(refused('sandbox of lease 7'))).toMatch(/\(and 980 lines like it before\)\n$/);
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
    const bug: ServerReport = { what: 'bug', peer: 'p', verb: 'v', error: new Error('boom') };
    expect(Array.from({ length: 100 }, () => limit.take(bug)).every((line) => line !== undefined)).toBe(true);
  });
});
