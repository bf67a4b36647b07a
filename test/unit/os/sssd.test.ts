import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { findSssdDoubt } from '../../../src/os/sssd.ts';

const CONTROL = 5001;

let directory = '';
let server: Server | undefined;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'xce-sssd-'));
});
afterEach(async () => {
  await new Promise<void>((resolve) => (server === undefined ? resolve() : server.close(() => resolve())));
  server = undefined;
  rmSync(directory, { recursive: true });
});

const message = (command: number, status: number, ...words: readonly number[]): Buffer => {
  const bytes = Buffer.alloc(16 + 4 * words.length);
  [bytes.length, command, status, 0, ...words].forEach((word, index) => {
    bytes.writeUInt32LE(word, 4 * index);
  });
  return bytes;
};
const VERSION = message(1, 0, 1);
const found = (uid: number): Buffer => message(0x1a, 0, 1, 0, uid, uid);
const MISSING = message(0x1a, 0, 0, 0);

/** Listens as the NSS responder and gives one reply to each request, or nothing. Returns what was asked. */
const respond = async (...replies: readonly (Buffer | undefined)[]): Promise<readonly string[]> => {
  const asked: string[] = [];
  server = createServer((socket) => {
    socket.on('data', (bytes) => {
      asked.push(bytes.toString('hex'));
      const reply = replies[asked.length - 1];
      if (reply !== undefined) socket.write(reply);
    });
  });
  await new Promise<void>((resolve) => server?.listen(join(directory, 'nss'), resolve));
  return asked;
};

const ONE_DOMAIN = `echo '{"type":"ao","data":[["/org/freedesktop/sssd/infopipe/Domains/site"]]}'`;
/** A program in place of busctl: what it says to ListDomains and to IsOnline. */
const bus = (list: string, online: string): string => {
  const path = join(directory, 'busctl');
  writeFileSync(path, `#!/bin/sh\ncase "$*" in *ListDomains) ${list};; *IsOnline) ${online};; esac\n`);
  chmodSync(path, 0o755);
  return path;
};
const says = (state: boolean): string => `echo '{"type":"b","data":[${state}]}'`;

const ask = (busctl: string, timeoutMs = 5000): Promise<string | undefined> =>
  findSssdDoubt(CONTROL, () => timeoutMs, { nssSocket: join(directory, 'nss'), busctl });

describe('sssd is believed', () => {
  test('where it was sent to its server for the control and every domain is online', async () => {
    const asked = await respond(VERSION, found(CONTROL));
    expect(await ask(bus(ONE_DOMAIN, says(true)))).toBeUndefined();
    // The uid, little endian, and the flag that goes past sssd's cache.
    expect(asked).toEqual([
      '14000000010000000000000000000000' + '01000000',
      '180000001a0000000000000000000000' + '89130000' + '01000000',
    ]);
  });
});

describe('sssd is in doubt', () => {
  test.each<[string, readonly (Buffer | undefined)[], string]>([
    ['that does not find the control', [VERSION, MISSING], 'it does not find [directory] control_uid'],
    ['that finds somebody else', [VERSION, found(5002)], 'it does not find [directory] control_uid'],
    ['of another protocol', [message(1, 0, 2), found(CONTROL)], 'it speaks another protocol'],
    ['that answers an error', [VERSION, message(0x1a, 112)], 'it answered with errno 112'],
    ['that says too little', [VERSION, message(0x1a, 0)], 'it does not find [directory] control_uid'],
    ['that says too much', [Buffer.concat([VERSION, VERSION])], 'it does not speak the protocol'],
    [
      'that sends no protocol',
      [Buffer.from('HTTP/1.1 400 Bad Request\r\n')],
      'it does not speak the protocol',
    ],
    ['that is silent', [VERSION, undefined], 'no answer in time'],
  ])('%s', async (_claim, replies, why) => {
    await respond(...replies);
    expect(await ask(bus(ONE_DOMAIN, says(true)), 300)).toBe(why);
  });

  test('that hangs up', async () => {
    server = createServer((socket) => socket.destroy());
    await new Promise<void>((resolve) => server?.listen(join(directory, 'nss'), resolve));
    expect(await ask(bus(ONE_DOMAIN, says(true)))).toMatch(/^(it hung up|ECONNRESET|EPIPE)$/);
  });

  test('that is not there', async () => {
    expect(await ask(bus(ONE_DOMAIN, says(true)))).toBe('ENOENT');
  });

  const TWO_DOMAINS = `echo '{"type":"ao","data":[["/x/Domains/a","/x/Domains/b"]]}'`;
  test.each([
    [
      'one domain is offline',
      TWO_DOMAINS,
      `case "$*" in */b*) ${says(false)};; *) ${says(true)};; esac`,
      'domain "b" is offline',
    ],
    [
      'a domain gives no state',
      ONE_DOMAIN,
      'echo nothing',
      'domain "site" does not say whether it is online: answered "nothing\\n"',
    ],
    [
      'a state is no boolean',
      ONE_DOMAIN,
      `echo '{"type":"s","data":["true"]}'`,
      'domain "site" does not say whether it is online: answered ',
    ],
    ['there is no domain', `echo '{"type":"ao","data":[[]]}'`, says(true), 'it has 0 domains'],
    [
      'its bus interface is not there',
      'echo "Call failed: no such name" >&2; exit 1',
      says(true),
      'it does not say whether it is online (needs sssd-dbus): "Call failed: no such name"',
    ],
    [
      'the bus is silent',
      'exec sleep 60',
      says(true),
      'it does not say whether it is online (needs sssd-dbus): no answer in time',
    ],
  ])('where %s', async (_claim, list, online, why) => {
    await respond(VERSION, found(CONTROL));
    expect(await ask(bus(list, online), 1000)).toContain(why);
  });
});
