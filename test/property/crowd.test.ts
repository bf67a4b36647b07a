/**
 * Thousands of connections that say nothing: the worker holds as many local ones as it promises, and hundreds over TLS,
 * in little memory, and serves.
 */
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect as connectNet, type Socket } from 'node:net';
import { connect as connectTlsRaw } from 'node:tls';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { LIMITS } from '../../src/base/limits.ts';
import type { Identity } from '../../src/pki/identity.ts';
import { connectTls } from '../../src/rpc/client.ts';
import { LIVE_NODE, LiveWorker } from '../support/live-process.ts';

const T = { timeoutMs: 60_000 };
/** An eighth of what the limit allows, which would take minutes of handshakes. */
const TLS_CONNECTIONS = 512;
const TOGETHER = 32;
/** Of one connection at the worker, and of what all of them may leave behind. */
const TLS_BYTES_MAX = 160 << 10;
const LOCAL_BYTES_MAX = 48 << 10;
const LEFT_BYTES_MAX = 4 << 20;

let directory: string;
let worker: LiveWorker;
let identity: Identity;

beforeAll(async () => {
  directory = mkdtempSync('/root/crowd-');
  worker = await LiveWorker.start(directory, { idleMs: 600_000, pingMs: 600_000, handshakeMs: 60_000 });
  identity = await worker.identity('controller', 'ctl');
}, 120_000);
afterAll(async () => {
  await worker?.end();
  rmSync(directory, { recursive: true });
});

const openTls = async (): Promise<Socket> => {
  const socket = connectTlsRaw({
    host: '127.0.0.1',
    port: worker.port,
    ca: identity.authorityPem,
    cert: identity.certificatePem,
    key: identity.keyPem,
    ALPNProtocols: ['h2'],
    checkServerIdentity: () => undefined,
  });
  await once(socket, 'secureConnect');
  return socket;
};

const openLocal = async (): Promise<Socket> => {
  const socket = connectNet({ path: worker.socketPath });
  await once(socket, 'connect');
  return socket;
};

/** Opens so many, and resolves when the worker has spoken on each: it knows the peer then. */
const openMany = async (count: number, open: () => Promise<Socket>): Promise<readonly Socket[]> => {
  expect(count % TOGETHER).toBe(0);
  const sockets: Socket[] = [];
  const take = async (): Promise<void> => {
    for (let left = count / TOGETHER; left > 0; left -= 1) {
      const socket = await open();
      sockets.push(socket);
      await once(socket, 'data');
    }
  };
  await Promise.all(Array.from({ length: TOGETHER }, take));
  return sockets;
};

const closeAll = async (sockets: readonly Socket[]): Promise<void> => {
  await Promise.all(
    sockets.map((socket) => {
      const closed = once(socket, 'close');
      socket.destroy();
      return closed;
    }),
  );
};

/** What a fresh connection is told of the connections that there are, and of those that were refused. */
const countConnections = async (): Promise<Readonly<Record<string, number>>> => {
  const session = await connectTls(
    { address: '127.0.0.1', port: worker.port, identity, expectNode: LIVE_NODE },
    T,
  );
  try {
    const { families } = await session.call('metrics', {}, T);
    return Object.fromEntries(
      families
        .filter(({ name }) => /connections/.test(name))
        .flatMap(({ name, samples }) =>
          samples.map(({ labels, value }) => [[name, ...Object.values(labels)].join(' '), value]),
        ),
    );
  } finally {
    session.close();
  }
};

test('as many local ones as the limit allows are held beside 512 of TLS, the next is refused, and all leave nothing behind', async () => {
  await countConnections();
  const before = await worker.memory();
  const certified = await openMany(TLS_CONNECTIONS, openTls);
  const withTls = await worker.memory();
  const local = await openMany(LIMITS.connectionsMax, openLocal);
  const withAll = await worker.memory();
  expect((withTls.rss - before.rss) / certified.length).toBeLessThan(TLS_BYTES_MAX);
  expect((withAll.rss - withTls.rss) / local.length).toBeLessThan(LOCAL_BYTES_MAX);

  const refused = await openLocal();
  refused.resume();
  await once(refused, 'close');
  expect(refused.bytesRead).toBe(0);
  expect(await countConnections()).toMatchObject({
    'xce_worker_connections local': LIMITS.connectionsMax,
    'xce_worker_connections tls': certified.length + 1,
    'xce_worker_connections_refused_total local worker-busy': 1,
  });

  await closeAll([...local, ...certified]);
  const left = async (): Promise<number> => (await worker.memory()).heapUsed - before.heapUsed;
  await expect.poll(left, { timeout: 60_000 }).toBeLessThan(LEFT_BYTES_MAX);
  expect(await countConnections()).toMatchObject({
    'xce_worker_connections local': 0,
    'xce_worker_connections tls': 1,
  });
  expect(worker.bugs).toEqual([]);
}, 300_000);
