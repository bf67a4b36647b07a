import { closeSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import koffi from 'koffi';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { notifyServiceManager, readWatchdogMs } from '../../../src/os/service-manager.ts';

const libc = koffi.load('libc.so.6');
const socket = libc.func('int socket(int domain, int type, int protocol)');
const bind = libc.func('int bind(int fd, const uint8_t *address, uint32_t length)');
const recv = libc.func('long recv(int fd, _Out_ uint8_t *bytes, size_t length, int flags)');

const AF_UNIX = 1;
const SOCK_DGRAM = 2;
const MSG_DONTWAIT = 0x40;

let directory: string;
let fd: number | undefined;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'xce-notify-'));
});
afterEach(() => {
  if (fd !== undefined) closeSync(fd);
  fd = undefined;
  rmSync(directory, { recursive: true });
});

/** Binds a datagram socket; `name` as the kernel has it, an abstract one begins with NUL. */
const listen = (name: string): { receive(): string } => {
  const bound: number = socket(AF_UNIX, SOCK_DGRAM, 0);
  fd = bound;
  const address = Buffer.concat([Buffer.from([AF_UNIX, 0]), Buffer.from(name)]);
  expect(bind(bound, address, address.length)).toBe(0);
  return {
    receive: () => {
      const bytes = Buffer.alloc(4096);
      return bytes.toString('utf8', 0, recv(bound, bytes, bytes.length, MSG_DONTWAIT));
    },
  };
};

describe('the service manager', () => {
  test('is told at a path, and at an abstract name', () => {
    const path = join(directory, 'notify');
    const atPath = listen(`${path}\0`);
    notifyServiceManager({ NOTIFY_SOCKET: path }, ['READY=1', 'STATUS=up']);
    expect(atPath.receive()).toBe('READY=1\nSTATUS=up\n');
    if (fd !== undefined) closeSync(fd);
    const name = `xce-test-${process.pid}`;
    const atName = listen(`\0${name}`);
    notifyServiceManager({ NOTIFY_SOCKET: `@${name}` }, ['WATCHDOG=1']);
    expect(atName.receive()).toBe('WATCHDOG=1\n');
  });

  test('that is not there is no error; one that cannot be reached is', () => {
    notifyServiceManager({}, ['READY=1']);
    expect(() => notifyServiceManager({ NOTIFY_SOCKET: join(directory, 'none') }, ['READY=1'])).toThrow(
      XceError,
    );
    expect(() => notifyServiceManager({ NOTIFY_SOCKET: 'relative' }, ['READY=1'])).toThrow(XceError);
    expect(() => notifyServiceManager({ NOTIFY_SOCKET: `/${'x'.repeat(200)}` }, ['READY=1'])).toThrow(
      XceError,
    );
  });

  test('wants its watchdog fed only by the process it names', () => {
    expect(readWatchdogMs({ WATCHDOG_USEC: '60000000', WATCHDOG_PID: '7' }, 7)).toBe(60_000);
    expect(readWatchdogMs({ WATCHDOG_USEC: '60000000' }, 7)).toBe(60_000);
    expect(readWatchdogMs({ WATCHDOG_USEC: '60000000', WATCHDOG_PID: '8' }, 7)).toBeUndefined();
    expect(readWatchdogMs({ WATCHDOG_USEC: 'often' }, 7)).toBeUndefined();
    expect(readWatchdogMs({}, 7)).toBeUndefined();
  });
});
