import { describe, expect, test } from 'vitest';
import { servicesOf } from '../../../src/os/nsswitch.ts';

describe('the services of a database', () => {
  test('stand in their order, without actions and comments', () => {
    const text =
      'passwd:         files systemd\n group : files [SUCCESS=merge !UNAVAIL=return] systemd\tsss # x\nhosts: files dns\n';
    expect(servicesOf(text, 'passwd')).toEqual(['files', 'systemd']);
    expect(servicesOf(text, 'group')).toEqual(['files', 'systemd', 'sss']);
  });

  test('are those of every line of that name, since it is not for us to say which one counts', () => {
    expect(servicesOf('passwd: files sss\npasswd: files ldap\n', 'passwd')).toEqual(['files', 'sss', 'ldap']);
  });

  test.each([
    '',
    'passwd:',
    'passwd: # systemd',
    '#passwd: systemd',
    'shadow: systemd',
    'passwd_compat: systemd',
    'xpasswd: systemd',
  ])('are none in %j', (text) => {
    expect(servicesOf(text, 'passwd')).toEqual([]);
  });

  test('are whole words', () => {
    expect(servicesOf('passwd: files nosystemd', 'passwd')).toEqual(['files', 'nosystemd']);
  });
});
