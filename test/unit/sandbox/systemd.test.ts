import { describe, expect, test } from 'vitest';
import { asksSystemd } from '../../../src/sandbox/systemd/host.ts';
import { unitPath } from '../../../src/sandbox/systemd/systemd1.ts';

describe('nsswitch.conf', () => {
  test('asks systemd where its word stands for the database', () => {
    const text =
      'passwd:         files systemd\ngroup: files [SUCCESS=merge] systemd sss # x\nhosts: files dns\n';
    expect(asksSystemd(text, 'passwd')).toBe(true);
    expect(asksSystemd(text, 'group')).toBe(true);
  });

  test('does not where it is commented out, of another database, or part of a word', () => {
    for (const text of [
      '',
      'passwd: files # systemd',
      '#passwd: systemd',
      'shadow: systemd',
      'passwd: files nosystemd',
      'passwd_compat: systemd',
    ]) {
      expect(asksSystemd(text, 'passwd'), text).toBe(false);
    }
  });
});

test('the object path of a unit escapes every byte that is no letter, and a digit at the start', () => {
  expect(unitPath('xce-main-7.42.0.anchor.service')).toBe(
    '/org/freedesktop/systemd1/unit/xce_2dmain_2d7_2e42_2e0_2eanchor_2eservice',
  );
  expect(unitPath('9a_b.slice')).toBe('/org/freedesktop/systemd1/unit/_39a_5fb_2eslice');
});
