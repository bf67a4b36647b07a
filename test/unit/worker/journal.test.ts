import { describe, expect, test } from 'vitest';
import { formatReport, formatServerReport } from '../../../src/worker/journal.ts';

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
