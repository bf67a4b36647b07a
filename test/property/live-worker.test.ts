/**
 * A worker that runs is sent what no client would send: messages, frames and connections with something changed in them, on
 * its Unix socket and under TLS. It must not end, break a rule of its own or grow, and serves others as before.
 * XCE_FUZZ_LIVE_RUNS sets how many are sent.
 */
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect as connectNet, type Socket } from 'node:net';
import { connect as connectTlsRaw } from 'node:tls';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Attempt, Epoch, InstanceName, JobId, LeaseNumber, Uid } from '../../src/base/ids.ts';
import { createTicketSigner } from '../../src/lease/ticket.ts';
import { type Identity, loadTicketPrivateKey } from '../../src/pki/identity.ts';
import { connectTls, connectUnix } from '../../src/rpc/client.ts';
import { encodeFrame } from '../../src/rpc/frame.ts';
import { LIVE_NODE, LiveWorker, type MemoryUse } from '../support/live-process.ts';
import { mutate } from '../support/mutate.ts';
import { createRandom, DAEMON, REQUESTS, SPAWN, STEP } from '../unit/rpc/site.ts';

const runs = Number(process.env['XCE_FUZZ_LIVE_RUNS'] ?? 2000);
const T = { timeoutMs: 20_000 };
const TOGETHER = 12;
/** Little enough of them that the windows of HTTP/2 never close. */
const REQUESTS_PER_CONNECTION = 80;
const WAIT_MS = 3000;
const TIMES = { idleMs: 1000, pingMs: 500, pingTimeoutMs: 1500, requestMs: 1000, handshakeMs: 1000 };
/** What the garbage collector and the allocator may differ by between two looks at the same worker. */
const HEAP_BYTES_MAX = 8 << 20;
const RSS_BYTES_MAX = 48 << 20;

type Random = (below: number) => number;

let directory: string;
let worker: LiveWorker;
let identities: { readonly controller: Identity; readonly peer: Identity };
let ticket: string;

beforeAll(async () => {
  directory = mkdtempSync('/root/live-');
  // Node does not close a connection that nghttp2 has given up; the durations must end it.
  worker = await LiveWorker.start(directory, TIMES);
  identities = {
    controller: await worker.identity('controller', 'ctl'),
    peer: await worker.identity('worker', 'n2'),
  };
  const controller = await connectAs(identities.controller);
  const { nonce } = await controller.call('challenge', { purpose: 'ticket' }, T);
  const claims = {
    cluster: 'live',
    instance: 'main' as InstanceName,
    job: '42' as JobId,
    attempt: 0 as Attempt,
    lease: 7 as LeaseNumber,
    epoch: 1 as Epoch,
    uid: 70_007 as Uid,
    submitterUid: 1001,
    submitterGid: 1001,
    node: LIVE_NODE,
    nodes: [LIVE_NODE],
    nonce,
    ttlMs: 24 * 3600 * 1000,
    issuedWallMs: Date.now(),
    roots: [],
    workspace: null,
  };
  ticket = createTicketSigner(claims, loadTicketPrivateKey(worker.authority))(claims);
  await controller.call('prepare', { ticket }, T);
  controller.close();
}, 120_000);
afterAll(async () => {
  await worker?.end();
  rmSync(directory, { recursive: true });
});

const connectAs = (identity: Identity) =>
  connectTls({ address: '127.0.0.1', port: worker.port, identity, expectNode: LIVE_NODE }, T);

/** A connection whose peer is known to the worker: by the kernel, or by a certificate. */
const dial = (random: Random): Socket => {
  const who = [undefined, identities.controller, identities.peer][random(3)];
  const socket =
    who === undefined
      ? connectNet({ path: worker.socketPath })
      : connectTlsRaw({
          host: '127.0.0.1',
          port: worker.port,
          ca: who.authorityPem,
          cert: who.certificatePem,
          key: who.keyPem,
          ALPNProtocols: ['h2'],
          checkServerIdentity: () => undefined,
        });
  // The worker ends most of what comes here.
  socket.on('error', () => undefined);
  return socket;
};

/** Resolves when it has closed, or after a while; some are left half-open for that long. */
const finish = async (socket: Socket, random: Random): Promise<void> => {
  if (!socket.destroyed) {
    socket.resume();
    const closed = once(socket, 'close').catch(() => undefined);
    const timer = setTimeout(() => socket.destroy(), random(8) === 0 ? WAIT_MS : random(100));
    await closed;
    clearTimeout(timer);
  }
  socket.destroy();
};

const document = (value: unknown): Buffer => Buffer.from(JSON.stringify(value));
const step = (random: Random): Buffer => document({ ...STEP, ticket, step: `t${random(1 << 30)}` });
const UNARY = Object.entries(REQUESTS);

/** The body of a request of a verb, before anything is changed in it. */
const bodyOf = (random: Random): { readonly path: string; readonly body: Buffer } => {
  const pick = random(4);
  if (pick === 0) {
    const body = Buffer.concat([
      encodeFrame('head', step(random)),
      encodeFrame('stdin', Buffer.alloc(1 + random(300), 'x')),
      encodeFrame('control', document({ command: 'signal', signal: 15 })),
      encodeFrame('endOfStdin', Buffer.alloc(0)),
    ]);
    return { path: '/xce/1/step', body };
  }
  if (pick === 1) {
    const [verb, head] = random(2) === 0 ? ['spawn', SPAWN] : ['daemon', DAEMON];
    return { path: `/xce/1/${verb}`, body: encodeFrame('head', document(head)) };
  }
  const [verb = 'status', request = {}] = UNARY[random(UNARY.length)] ?? [];
  // Only the first ticket is good; a drain or stop of its lease would leave nothing to talk about.
  const own =
    verb === 'prepare' || verb === 'renew'
      ? { ticket }
      : { ...request, ...(verb === 'stop' ? { lease: 8 } : {}) };
  return {
    path: `/xce/1/${verb}`,
    body: document(verb === 'drain' ? { ...own, lease: 8, uid: 70_008 } : own),
  };
};

type Attack = (random: Random) => Promise<number>;

/** RFC 9113 section 6. */
const FRAME = { data: 0, headers: 1, reset: 3, settings: 4 } as const;
const GREETING = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 'latin1');

const http2Frame = (
  type: number,
  flags: number,
  stream: number,
  payload: Buffer,
  length = payload.length,
): Buffer => {
  const header = Buffer.alloc(9);
  header.writeUIntBE(length & 0xff_ffff, 0, 3);
  header.writeUInt8(type, 3);
  header.writeUInt8(flags, 4);
  header.writeUInt32BE(stream >>> 0, 5);
  return Buffer.concat([header, payload]);
};

/** Header fields as literals that no table remembers (RFC 7541 section 6.2.2). */
const literals = (fields: Readonly<Record<string, string>>): Buffer =>
  Buffer.concat(
    Object.entries(fields).map(([name, value]) =>
      Buffer.concat([
        Buffer.from([0, name.length]),
        Buffer.from(name),
        Buffer.from([value.length]),
        Buffer.from(value),
      ]),
    ),
  );

const randomBytes = (random: Random, length: number): Buffer =>
  Buffer.from(Array.from({ length }, () => random(256)));

/** Resolves when all of the streams have ended at the worker's side, or the connection has, or after a while. */
const answers = (socket: Socket, streams: Set<number>): Promise<void> =>
  new Promise((resolve) => {
    let held = Buffer.alloc(0);
    const timer = setTimeout(resolve, WAIT_MS);
    const settle = (): void => {
      clearTimeout(timer);
      resolve();
    };
    if (streams.size === 0 || socket.destroyed) settle();
    socket.once('close', settle);
    socket.on('data', (chunk: Buffer) => {
      held = Buffer.concat([held, chunk]);
      while (held.length >= 9 && held.length >= 9 + held.readUIntBE(0, 3)) {
        const [type, flags, stream] = [held.readUInt8(3), held.readUInt8(4), held.readUInt32BE(5)];
        const isLast =
          type === FRAME.reset || ((type === FRAME.data || type === FRAME.headers) && (flags & 1) === 1);
        if (isLast) streams.delete(stream);
        held = held.subarray(9 + held.readUIntBE(0, 3));
      }
      if (streams.size === 0) settle();
    });
  });

/** Requests in proper HTTP/2, with changed bodies and header fields, half-closed, left open or given up at any moment. */
const requests: Attack = async (random) => {
  const socket = dial(random);
  const count = 1 + random(REQUESTS_PER_CONNECTION);
  const waiting = new Set<number>();
  const bytes: Buffer[] = [GREETING, http2Frame(FRAME.settings, 0, 0, Buffer.alloc(0))];
  for (let index = 0; index < count; index += 1) {
    const stream = 2 * index + 1;
    const { path, body } = bodyOf(random);
    const odd = random(10);
    const shown = odd === 1 ? mutate(Buffer.from(path), random).toString('latin1').slice(0, 100) : path;
    const fields = {
      ':method': odd === 0 ? 'GET' : 'POST',
      ':scheme': 'http',
      ':path': shown,
      ...(odd === 2 ? { 'x-large': 'y'.repeat(random(120)) } : {}),
    };
    bytes.push(http2Frame(FRAME.headers, 4, stream, literals(fields)));
    const data = random(8) === 0 ? body : mutate(body, random);
    const how = random(5);
    bytes.push(http2Frame(FRAME.data, how <= 1 ? 1 : 0, stream, data));
    if (how === 2) bytes.push(http2Frame(FRAME.data, 1, stream, Buffer.alloc(0)));
    if (how === 3) bytes.push(http2Frame(FRAME.reset, 0, stream, Buffer.from([0, 0, 0, random(14)])));
    if (how < 3) waiting.add(stream);
  }
  const answered = answers(socket, waiting);
  socket.write(Buffer.concat(bytes));
  await answered;
  if (random(2) === 0) socket.end();
  await finish(socket, random);
  return count;
};

/** One frame of HTTP/2 with some of it wrong, or right in the wrong place. */
const oddFrame = (random: Random): Buffer => {
  const stream = [0, 1, 1, 3, 5, 2 * random(50) + 1, random(100), 0x7fff_ffff, 0xffff_ffff][random(9)] ?? 0;
  const { path, body } = bodyOf(random);
  const headers = literals({ ':method': 'POST', ':scheme': 'http', ':authority': 'x', ':path': path });
  switch (random(10)) {
    case 0:
      return http2Frame(random(16), random(256), stream, randomBytes(random, random(64)));
    case 1:
      return http2Frame(1, random(2) === 0 ? 4 : random(256), stream, mutate(headers, random));
    case 2:
      return http2Frame(1, 4, stream, headers);
    case 3:
      return http2Frame(1, 0, stream, headers.subarray(0, random(headers.length)));
    case 4:
      return http2Frame(0, random(10), stream, mutate(body, random));
    case 5:
      return http2Frame(3, 0, stream, randomBytes(random, 4));
    case 6:
      return http2Frame(8, 0, stream, randomBytes(random, 4));
    case 7:
      return http2Frame(4, random(2), random(4) === 0 ? stream : 0, randomBytes(random, 6 * random(6)));
    case 8:
      return http2Frame(6 + random(2), random(2), 0, randomBytes(random, 8));
    default:
      return http2Frame(random(10), random(256), stream, randomBytes(random, random(30)), random(0x1_0000));
  }
};

/** Frames of HTTP/2 in any order, cut into any pieces. */
const frames: Attack = async (random) => {
  const socket = dial(random);
  const count = 1 + random(30);
  const bytes = Buffer.concat([
    random(20) === 0 ? mutate(GREETING, random) : GREETING,
    http2Frame(4, 0, 0, Buffer.alloc(0)),
    ...Array.from({ length: count }, () => oddFrame(random)),
  ]);
  for (let at = 0; at < bytes.length && !socket.destroyed; ) {
    const size = 1 + random(random(3) === 0 ? 20 : 4000);
    socket.write(bytes.subarray(at, at + size));
    at += size;
  }
  if (random(2) === 0) socket.end();
  await finish(socket, random);
  return count;
};

/** Something else than TLS at the port of TLS, something else than HTTP/2 at the socket, or nothing. */
const junk: Attack = async (random) => {
  const socket =
    random(4) === 0 ? connectNet({ path: worker.socketPath }) : connectNet(worker.port, '127.0.0.1');
  socket.on('error', () => undefined);
  // The head of a ClientHello, and whatever follows.
  const hello = Buffer.concat([
    Buffer.from([0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]),
    randomBytes(random, 64),
  ]);
  if (random(5) > 0)
    socket.write(random(2) === 0 ? mutate(hello, random) : randomBytes(random, 1 + random(600)));
  if (random(3) === 0) socket.end();
  await finish(socket, random);
  return 1;
};

const ATTACKS: readonly Attack[] = [requests, requests, frames, frames, frames, junk];

const attackWith = async (count: number, random: Random): Promise<Map<string, number>> => {
  let sent = 0;
  const by = new Map<string, number>();
  const attacker = async (): Promise<void> => {
    while (sent < count) {
      const attack = ATTACKS[random(ATTACKS.length)] ?? junk;
      const done = await attack(random);
      sent += done;
      by.set(attack.name, (by.get(attack.name) ?? 0) + done);
    }
  };
  await Promise.all(Array.from({ length: TOGETHER }, attacker));
  return by;
};

/** A client that keeps to the page, on both kinds of sockets, with a step that echoes. */
const isServed = async (): Promise<void> => {
  const local = await connectUnix(worker.socketPath, T);
  expect((await local.call('status', {}, T)).sandboxes).toMatchObject([{ lease: 7, state: 'ready' }]);
  local.close();
  const controller = await connectAs(identities.controller);
  const head = { ...STEP, ticket, step: 'good' };
  const stream = await controller.stream('step', head, T);
  await stream.writeStdin(Buffer.from('through'));
  stream.endStdin();
  let stdout = '';
  for await (const frame of stream) if (frame.channel === 'stdout') stdout += frame.bytes.toString();
  expect(stdout).toBe('through');
  controller.close();
};

const megabytes = ({ rss, heapUsed }: MemoryUse): string =>
  `${(rss / 2 ** 20).toFixed(1)} MiB resident, ${(heapUsed / 2 ** 20).toFixed(1)} MiB heap`;

test(
  `${runs} changed messages, frames and connections leave a live worker as it was`,
  async () => {
    const random = createRandom(20_261_130);
    await attackWith(Math.ceil(runs / 4), random);
    await isServed();
    const warm = await worker.memory();
    const by = await attackWith(runs - Math.ceil(runs / 4), random);
    expect(worker.isAlive).toBe(true);
    expect(worker.bugs).toEqual([]);
    await isServed();
    // What the last ones have left open is ended by its durations.
    await expect
      .poll(async () => (await worker.memory()).heapUsed - warm.heapUsed, { timeout: 30_000, interval: 500 })
      .toBeLessThan(HEAP_BYTES_MAX);
    const end = await worker.memory();
    expect(end.rss - warm.rss).toBeLessThan(RSS_BYTES_MAX);
    // Something that is never refused, or never reaches the worker, would test nothing.
    expect(worker.lines).toBeGreaterThan(runs / 100);
    const kinds = [...by].map(([name, count]) => `${count} ${name}`).join(', ');
    console.log(`after ${Math.ceil(runs / 4)}: ${megabytes(warm)}; after ${kinds} more: ${megabytes(end)}`);
  },
  60_000 + 20 * runs,
);
