import { describe, expect, test } from 'vitest';
import { addressBytes, ownAddresses, ownInterface, resolveNames } from '../../../src/os/addresses.ts';

describe('the bytes of an address', () => {
  test.each([
    ['10.77.0.12', '0a4d000c'],
    ['::', '0'.repeat(32)],
    ['::1', `${'0'.repeat(31)}1`],
    ['fd00::1:2', 'fd000000000000000000000000010002'],
    ['2001:db8:1:2:3:4:5:6', '20010db8000100020003000400050006'],
    ['fe80::38ae:32ff:fe18:9021%eth0', 'fe8000000000000038ae32fffe189021'],
    ['::ffff:10.1.2.3', '00000000000000000000ffff0a010203'],
  ])('of %s are %s', (text, hex) => {
    expect(addressBytes(text).toString('hex')).toBe(hex);
  });
});

describe('the addresses of hosts', () => {
  test('of this one include the loopback address', () => {
    expect(ownAddresses()).toContain('127.0.0.1');
  });

  test('lead to the interface that has one of them, or that is named', () => {
    expect(ownInterface(['10.99.99.0/24', 'fd99::/64', '127.0.0.0/8'])).toBe('lo');
    expect(ownInterface(['lo'])).toBe('lo');
    expect(ownInterface(['10.99.99.0/24', 'none0'])).toBe(undefined);
    expect(ownInterface([])).toBe(undefined);
  });

  test('are found by name, each once, and a name without any is refused', async () => {
    expect(await resolveNames(['localhost', '127.0.0.1', 'localhost'])).toContain('127.0.0.1');
    await expect(resolveNames(['localhost', 'no..such..host'])).rejects.toMatchObject({
      code: 'sandbox-refused',
      message: expect.stringContaining('no..such..host'),
    });
  });
});
