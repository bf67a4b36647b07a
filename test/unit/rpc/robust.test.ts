import { once } from 'node:events';
import { chmodSync } from 'node:fs';
import {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  connect as connectHttp2,
  createServer as createHttp2Server,
  type Http2Server,
  type ServerHttp2Stream,
} from 'node:http2';
import { createServer as createNetServer, connect as netConnect, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { XceError } from '../../../src/base/errors.ts';
import { LIMITS } from '../../../src/base/limits.ts';
import { connectTlsSocket, listenTls } from '../../../src/os/sockets.ts';
import { connectTls, connectUnix } from '../../../src/rpc/client.ts';
import { decodeWireError } from '../../../src/rpc/decode.ts';
import { encodeFrame, encodeFrameHeader } from '../../../src/rpc/frame.ts';
import { STREAM } from '../../../src/rpc/message.ts';
import type { ClientStream, RpcSession } from '../../../src/rpc/session.ts';
import type { ServerStream, VerbTable } from '../../../src/rpc/verbs.ts';
import {
  ANSWERS,
  asNode,
  connectAsUid,
  createRandom,
  createSite,
  DAEMON,
  echoTable,
  LEASE,
  refusalOf,
  refusedCode,
  SANDBOX_UID,
  type Site,
  STEP,
  SUCCESS,
  startServer,
  type TestServer,
} from './site.ts';

const T = { timeoutMs: 10_000 };

let site: Site;
let running: TestServer;
let path: string;
let port: number;
let session: RpcSession;
let sockets = 0;

const newPath = (): string => {
  sockets += 1;
  return join(site.root, `${sockets}.sock`);
};

beforeAll(async () => {
  site = await createSite();
  const table = echoTable();
  running = startServer({ ...table, ...openTo(table) });
  path = newPath();
  await running.server.listenRoot({ path });
  ({ port } = await running.server.listenTls(
    { address: '127.0.0.1', port: 0 },
    await site.identity('worker', 'n1'),
  ));
  session = await connectUnix(path, T);
});
afterAll(async () => {
  session.close();
  await running.server.close(1000);
  site.remove();
});

/** prepare and drain for root as well, so that a Unix socket is enough. */
const openTo = (table: VerbTable): VerbTable => ({
  ...(table.prepare === undefined ? {} : { prepare: { ...table.prepare, callers: ['local-root'] } }),
});

const stillServes = async (): Promise<void> => {
  expect(await session.call('status', {}, T)).toEqual(ANSWERS.status);
};

/** A client that can say anything: node:http2 without our library. */
const rawClient = (): ClientHttp2Session => {
  const client = connectHttp2('http://x', { createConnection: () => netConnect(path) });
  client.on('error', () => undefined);
  return client;
};

type RawAnswer = { readonly status: number; readonly error: XceError | undefined; readonly body: Buffer };

/** The whole answer to a raw request, whatever it is. */
const answerOf = (stream: ClientHttp2Stream): Promise<RawAnswer> =>
  new Promise((resolve) => {
    let status = 0;
    const chunks: Buffer[] = [];
    stream.on('response', (headers) => {
      status = Number(headers[':status']);
    });
    stream.on('data', (chunk: Buffer) => chunks.push(chunk));
    stream.on('error', () => undefined);
    stream.on('close', () => {
      const body = Buffer.concat(chunks);
      resolve({ status, body, error: status === 200 || status === 0 ? undefined : decodeWireError(body) });
    });
  });

const rawCall = async (headers: Record<string, string>, body: Buffer | string = '{}'): Promise<RawAnswer> => {
  const client = rawClient();
  const stream = client.request({ ':method': 'POST', ...headers });
  const answer = answerOf(stream);
  stream.end(body);
  const result = await answer;
  client.destroy();
  return result;
};

describe('a request that the page does not allow', () => {
  test.each([
    ['another method', { ':method': 'GET', ':path': '/xce/1/status' }],
    ['a HEAD', { ':method': 'HEAD', ':path': '/xce/1/status' }],
    ['an unknown verb', { ':path': '/xce/1/nothing' }],
    ['a verb named like a property of every object', { ':path': '/xce/1/constructor' }],
    ['a query', { ':path': '/xce/1/status?x' }],
    ['a longer path', { ':path': '/xce/1/status/x' }],
    ['no version', { ':path': '/status' }],
  ])('%s is refused as protocol', async (_what, headers: Record<string, string>) => {
    const { status, error } = await rawCall(headers);
    expect(status).toBe(400);
    if (headers[':method'] !== 'HEAD') expect(error?.code).toBe('protocol');
    await stillServes();
  });

  test('a newer major version is refused and told which is spoken here', async () => {
    const { error } = await rawCall({ ':path': '/xce/2/status' });
    expect(error?.code).toBe('protocol');
    expect(error?.facts.detail).toEqual({ major: 1, minor: 2 });
  });

  test('keys of a newer minor version are ignored', async () => {
    expect(await rawCall({ ':path': '/xce/1/stop' }, '{"lease":7,"newer":{"x":1}}')).toMatchObject({
      status: 200,
    });
  });

  test.each([
    ['no body', ''],
    ['no JSON', '{'],
    ['no UTF-8', Buffer.from([0x22, 0xff, 0x22])],
    ['another type', '[]'],
    ['a missing key', '{}'],
    ['a number as text', '{"lease":"7"}'],
    ['a fraction', '{"lease":7.5}'],
    ['a number out of range', '{"lease":9007199254740993}'],
    ['a document nested a million deep', '['.repeat(1_000_000)],
  ])('a body with %s is refused as protocol', async (_what, body) => {
    const { status, error } = await rawCall({ ':path': '/xce/1/stop' }, body);
    expect([status, error?.code]).toEqual([400, 'protocol']);
    await stillServes();
  });

  test('a body over the limit is refused while it is being sent, and not kept', async () => {
    const { status, error } = await rawCall(
      { ':path': '/xce/1/stop' },
      Buffer.alloc(LIMITS.messageBytesMax + 1, ' '),
    );
    expect([status, error?.code]).toEqual([413, 'too-large']);
    await stillServes();
  });

  test('a text over its limit is too large, not a crash', async () => {
    const large = { ticket: 'x'.repeat(LIMITS.ticketCharsMax + 1) };
    expect(await refusedCode(session.call('prepare', large, T))).toBe('too-large');
    const argv = Array.from({ length: 3 }, () => Buffer.alloc(400_000, 'a').toString('base64'));
    expect(await refusedCode(session.stream('step', { ...STEP, argv }, T))).toBe('too-large');
  });

  test('what a client cannot send within the limit it does not send at all', async () => {
    const large = { ticket: 'x'.repeat(LIMITS.messageBytesMax) };
    expect(await refusedCode(session.call('prepare', large, T))).toBe('too-large');
    await stillServes();
  });

  test.each([
    ['arguments with NUL', { argv: [Buffer.from('a\0b').toString('base64')] }],
    ['no arguments', { argv: [] }],
    ['base64 that is not canonical', { argv: ['YR=='] }],
    ['base64 with a line break', { argv: ['YWFh\n'] }],
    ['a variable without a name', { environment: [Buffer.from('=x').toString('base64')] }],
    ['a variable without a value', { environment: [Buffer.from('x').toString('base64')] }],
    ['a step of capitals', { step: 'S' }],
  ])('a head with %s is refused as protocol', async (_what, change) => {
    expect(await refusedCode(session.stream('step', { ...STEP, ...change }, T))).toBe('protocol');
  });

  test('header fields over the limits end their request alone', async () => {
    const many = Object.fromEntries(Array.from({ length: 40 }, (_, index) => [`x-${index}`, 'y']));
    expect((await rawCall({ ':path': '/xce/1/status', ...many })).status).toBe(0);
    const large = { 'x-large': 'y'.repeat(LIMITS.headerBytesMax) };
    expect((await rawCall({ ':path': '/xce/1/status', ...large })).error?.code).toBe('too-large');
    const huge = { 'x-huge': 'y'.repeat(100_000) };
    expect((await rawCall({ ':path': '/xce/1/status', ...huge })).status).toBe(0);
    await stillServes();
  });
});

describe('frames that the page does not allow', () => {
  const head = encodeFrame('head', Buffer.from(JSON.stringify(STEP)));
  const end = encodeFrame('endOfStdin', Buffer.alloc(0));
  const command = (text: string) => encodeFrame('control', Buffer.from(text));

  /** Sends frames after which the server has all it needs, and reads its last word. */
  const lastWord = async (bytes: Buffer, finish: boolean): Promise<XceError | undefined> => {
    const client = rawClient();
    const stream = client.request({ ':method': 'POST', ':path': '/xce/1/step' });
    const answer = answerOf(stream);
    if (finish) stream.end(bytes);
    else stream.write(bytes);
    const { status, body, error } = await answer;
    client.destroy();
    if (status !== 200) return error;
    for (let at = 0; at < body.length; at += 5 + body.readUInt32BE(at + 1)) {
      if (body[at] === 6) return decodeWireError(body.subarray(at + 5, at + 5 + body.readUInt32BE(at + 1)));
    }
    return undefined;
  };

  test.each([
    ['no head', end],
    ['two heads', Buffer.concat([head, head])],
    ['a channel of the server', Buffer.concat([head, encodeFrame('stdout', Buffer.from('x'))])],
    ['an unknown channel', Buffer.concat([head, Buffer.from([99, 0, 0, 0, 1, 0])])],
    ['an empty stdin', Buffer.concat([head, encodeFrameHeader('stdin', 0)])],
    ['an end of stdin with a payload', Buffer.concat([head, Buffer.from([5, 0, 0, 0, 1, 0])])],
    ['stdin after its end', Buffer.concat([head, end, encodeFrame('stdin', Buffer.from('x'))])],
    ['two ends of stdin', Buffer.concat([head, end, end])],
    ['a command that is none', Buffer.concat([head, command('{"command":"dance"}')])],
    ['a signal that is none', Buffer.concat([head, command('{"command":"signal","signal":65}')])],
    ['a command that is no JSON', Buffer.concat([head, command('x')])],
  ])('%s end the stream as protocol', async (_what, bytes) => {
    expect((await lastWord(bytes, false))?.code).toBe('protocol');
    await stillServes();
  });

  test.each([
    ['nothing', Buffer.alloc(0)],
    ['half a head', head.subarray(0, 20)],
    ['a head and half a header', Buffer.concat([head, Buffer.from([1, 0])])],
  ])('%s, and then the end, are refused as protocol', async (_what, bytes) => {
    expect((await lastWord(bytes, true))?.code).toBe('protocol');
  });

  test.each([
    ['a head', Buffer.from([0, 0, 0x40, 0, 1])],
    ['stdin', Buffer.concat([head, Buffer.from([1, 0, 1, 0, 1])])],
    ['a command of 4 GiB', Buffer.concat([head, Buffer.from([4, 255, 255, 255, 255])])],
  ])('%s that announces more than its limit is too large', async (_what, bytes) => {
    expect((await lastWord(bytes, false))?.code).toBe('too-large');
  });

  test('more stdin than was granted is refused, and the step is told', async () => {
    const own = newPath();
    let signal: AbortSignal | undefined;
    const { server } = startServer({
      step: {
        callers: ['local-root'],
        serve: async (_peer, _head, stream) => {
          signal = stream.signal;
          await stream.sendEvent({ event: 'started', unit: 'u' });
          await once(stream.signal, 'abort');
        },
      },
    });
    await server.listenRoot({ path: own });
    const client = connectHttp2('http://x', { createConnection: () => netConnect(own) });
    const stream = client.request({ ':method': 'POST', ':path': '/xce/1/step' });
    const answer = answerOf(stream);
    const block = encodeFrame('stdin', Buffer.alloc(LIMITS.frameBytesMax));
    stream.write(Buffer.concat([head, ...Array.from({ length: 4 }, () => block)]));
    await once(stream, 'response');
    expect(signal?.aborted).toBe(false);
    stream.write(encodeFrame('stdin', Buffer.from('x')));
    const { body } = await answer;
    expect(body.toString('latin1')).toContain('more stdin than was granted');
    expect(signal?.reason).toMatchObject({ code: 'protocol' });
    client.destroy();
    await server.close(0);
  });
});

test('a stream that has ended waits for the half-close of its client, but not for ever', async () => {
  const own = newPath();
  const table: VerbTable = {
    step: {
      callers: ['local-root'],
      serve: async (_peer, _head, stream) => {
        await stream.sendEvent({ event: 'started', unit: 'u' });
        await stream.sendEvent({ event: 'ended', outcome: SUCCESS });
      },
    },
  };
  const { server } = startServer(table, { halfCloseMs: 100 });
  await server.listenRoot({ path: own });
  const client = connectHttp2('http://x', { createConnection: () => netConnect(own) });
  const stream = client.request({ ':method': 'POST', ':path': '/xce/1/step' });
  stream.write(encodeFrame('head', Buffer.from(JSON.stringify(STEP))));
  stream.resume();
  await once(stream, 'end');
  expect(stream.closed).toBe(false);
  await once(stream, 'close');
  expect(stream.rstCode).toBe(0);
  client.destroy();
  await server.close(0);
});

describe('garbage', () => {
  const garbage = Buffer.alloc(100_000, 'GET / HTTP/1.1\r\nHost: x\r\n\r\n\xff\0', 'latin1');

  /** Resolves when the server has had enough. */
  const throwAt = async (socket: Socket): Promise<void> => {
    socket.on('error', () => undefined);
    socket.write(garbage);
    socket.resume();
    await new Promise((resolve) => socket.once('close', resolve));
  };

  test('at the Unix socket ends that connection alone', async () => {
    await throwAt(netConnect(path));
    await stillServes();
  });

  test('at the TLS port ends that connection alone', async () => {
    await throwAt(netConnect(port, '127.0.0.1'));
    expect(running.of('peer-refused').at(-1)).toMatchObject({ listener: 'tls', code: 'tls' });
    await stillServes();
  });

  test('after a proper greeting ends that connection alone', async () => {
    const socket = netConnect(path);
    socket.write('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');
    await throwAt(socket);
    expect(running.of('connection-failed').length).toBeGreaterThan(0);
    await stillServes();
  });
});

test('conversations with changed bytes, cut anywhere, leave the server serving and without a bug', async () => {
  // Node does not close a connection that nghttp2 has given up; the durations must end it.
  const times = { idleMs: 300, pingMs: 100, pingTimeoutMs: 300, requestMs: 300 };
  const table = echoTable();
  const { server, of } = startServer({ ...table, ...openTo(table) }, times);
  const own = newPath();
  await server.listenRoot({ path: own });

  // What a real client says in a call and a stream, recorded on its way.
  const spoken: Buffer[] = [];
  const recorder = createNetServer((near) => {
    const far = netConnect(own);
    near.on('data', (chunk) => spoken.push(Buffer.from(chunk)));
    near.pipe(far).pipe(near);
    for (const socket of [near, far]) socket.on('error', () => undefined);
  });
  const wire = newPath();
  recorder.listen(wire);
  await once(recorder, 'listening');
  const client = await connectUnix(wire, T);
  await client.call('stop', { lease: 7 }, T);
  const stream = await client.stream('step', STEP, T);
  await stream.writeStdin(Buffer.from('hello'));
  stream.sendCommand({ command: 'signal', signal: 1 });
  stream.endStdin();
  for await (const _frame of stream);
  client.close();
  recorder.close();
  const recorded = Buffer.concat(spoken);
  expect(recorded.length).toBeGreaterThan(200);

  const random = createRandom(20_261_130);
  const say = async (bytes: Buffer): Promise<void> => {
    const socket = netConnect(own);
    socket.on('error', () => undefined);
    socket.resume();
    const closed = new Promise((resolve) => socket.once('close', resolve));
    socket.end(bytes);
    await closed;
  };
  for (let batch = 0; batch < 10; batch += 1) {
    await Promise.all(
      Array.from({ length: 30 }, () => {
        const bytes = Buffer.from(recorded);
        // The greeting stays: what comes before it is not HTTP/2 and tested above.
        for (let count = 1 + random(4); count > 0; count -= 1) {
          bytes.writeUInt8(random(256), 24 + random(bytes.length - 24));
        }
        return say(bytes.subarray(0, random(4) === 0 ? random(bytes.length) : bytes.length));
      }),
    );
  }
  const fresh = await connectUnix(own, T);
  expect(await fresh.call('status', {}, T)).toEqual(ANSWERS.status);
  expect(of('bug')).toEqual([]);
  fresh.close();
  await server.close(1000);
}, 60_000);

describe('many', () => {
  test('handshakes that are never made do not keep others out', async () => {
    const material = await site.identity('worker', 'n1');
    const listener = await listenTls({ address: '0.0.0.0', port: 0 }, material, {
      connectionsMax: 10,
      handshakeMs: 30_000,
      onSocket: (socket) => socket.end('welcome'),
      onHandshakeFailed: () => undefined,
    });
    const silent = Array.from({ length: 40 }, () => {
      const socket = netConnect({ host: '127.0.0.1', localAddress: '127.0.0.2', port: listener.port });
      return socket.on('error', () => undefined);
    });
    await Promise.all(silent.map((socket) => once(socket, 'connect')));
    const client = await connectTlsSocket(
      { address: '127.0.0.1', port: listener.port },
      await site.identity('controller', 'ctl'),
      () => undefined,
      T,
    );
    expect(String(await once(client, 'data'))).toBe('welcome');
    client.destroy();
    for (const socket of silent) socket.destroy();
    await listener.close();
  });

  test('streams at once beyond the limit of a connection wait or are refused; none is lost', async () => {
    const own = newPath();
    let open = 0;
    let openMax = 0;
    const waiting: (() => void)[] = [];
    const { server } = startServer({
      stop: {
        callers: ['local-root'],
        answer: async () => {
          open += 1;
          openMax = Math.max(openMax, open);
          await new Promise<void>((resolve) => {
            waiting.push(resolve);
            if (waiting.length === LIMITS.streamsPerConnectionMax) for (const go of waiting.splice(0)) go();
          });
          open -= 1;
          return { stopped: true };
        },
      },
    });
    await server.listenRoot({ path: own });
    const client = await connectUnix(own, T);
    const answers = await Promise.all(
      Array.from({ length: 2 * LIMITS.streamsPerConnectionMax }, () => client.call('stop', { lease: 1 }, T)),
    );
    expect(answers).toHaveLength(2 * LIMITS.streamsPerConnectionMax);
    expect(openMax).toBe(LIMITS.streamsPerConnectionMax);
    client.close();
    await server.close(0);
  });

  test('heads of a sandbox that together are over its memory are refused as worker-busy', async () => {
    chmodSync(site.root, 0o711);
    const own = newPath();
    const { server } = startServer({
      daemon: {
        callers: ['sandbox'],
        serve: async (_peer, _head, stream) => {
          await stream.sendEvent({ event: 'started', unit: 'u' });
          await once(stream.signal, 'abort');
        },
      },
    });
    await server.listenSandbox(own, LEASE, SANDBOX_UID);
    const argv = [Buffer.alloc(1_000_000, 'a').toString('base64')];
    const environment = [Buffer.from(`A=${'b'.repeat(1_000_000)}`).toString('base64')];
    const head = { ...DAEMON, argv, environment };
    const headBytes = JSON.stringify(head).length;
    const fits = Math.floor(LIMITS.sandboxRequestBytesInAllMax / headBytes);

    const sessions: RpcSession[] = [];
    const open: ClientStream[] = [];
    for (let count = 0; count < fits; count += 1) {
      if (count % LIMITS.streamsPerSandboxConnectionMax === 0)
        sessions.push(await connectAsUid(own, SANDBOX_UID));
      const latest = sessions.at(-1);
      if (latest !== undefined) open.push(await latest.stream('daemon', head, T));
    }
    const latest = await connectAsUid(own, SANDBOX_UID);
    const error = await refusalOf(latest.stream('daemon', head, T));
    expect([error.code, error.exitStatus]).toEqual(['worker-busy', 75]);

    // Stdin that nobody reads counts as well.
    const refusals = open.map(async (stream) => {
      for await (const _frame of stream);
    });
    const unread = Buffer.alloc(STREAM.stdinCreditBytes);
    const sent = Promise.allSettled(open.map((stream) => stream.writeStdin(unread)));
    expect(await refusedCode(Promise.race(refusals))).toBe('worker-busy');
    await sent;

    // What is given up is free again, once its handler is done.
    for (const stream of open) stream.cancel();
    await Promise.allSettled(refusals);
    await expect
      .poll(() =>
        latest.stream('daemon', head, T).then(
          () => 'taken',
          () => 'busy',
        ),
      )
      .toBe('taken');
    for (const each of [...sessions, latest]) each.close();
    await server.close(0);
  });
});

describe('time', () => {
  /** A server whose durations are short. */
  const quick = async (table: VerbTable, times: Parameters<typeof startServer>[1]) => {
    const own = newPath();
    const test = startServer(table, times);
    await test.server.listenRoot({ path: own });
    return { ...test, path: own };
  };

  test('a body or head that does not come in time is refused as timeout', async () => {
    const { server, path: own } = await quick(echoTable(), { requestMs: 100 });
    const client = connectHttp2('http://x', { createConnection: () => netConnect(own) });
    for (const verb of ['stop', 'step']) {
      const stream = client.request({ ':method': 'POST', ':path': `/xce/1/${verb}` });
      const answer = answerOf(stream);
      stream.write(Buffer.from([0]));
      expect(await answer).toMatchObject({ status: 408, error: { code: 'timeout' } });
    }
    client.destroy();
    await server.close(0);
  });

  test('a connection without a request is closed, before the first and after the last', async () => {
    const { server, path: own } = await quick(echoTable(), { idleMs: 200 });
    const mute = netConnect(own);
    mute.resume();
    await once(mute, 'close');
    const client = await connectUnix(own, T);
    await client.call('status', {}, T);
    await once(client.closed, 'abort');
    expect(client.closed.reason).toMatchObject({ code: 'worker-unreachable' });
    await server.close(0);
  });

  test('a TLS handshake that never ends is cut', async () => {
    const { server, of } = startServer(echoTable(), { handshakeMs: 100 });
    const { port: own } = await server.listenTls(
      { address: '127.0.0.1', port: 0 },
      await site.identity('worker', 'n1'),
    );
    const mute = netConnect(own, '127.0.0.1');
    mute.on('error', () => undefined);
    mute.resume();
    await once(mute, 'close');
    expect(of('peer-refused')).toHaveLength(1);
    await server.close(0);
  });

  /** A wire between the two that can be cut without either end being told. */
  const startWire = async (target: string): Promise<{ path: string; cut: () => void; server: Server }> => {
    const pairs: Socket[] = [];
    const server = createNetServer((near) => {
      const far = netConnect(target);
      pairs.push(near, far);
      near.pipe(far).pipe(near);
      for (const socket of [near, far]) socket.on('error', () => undefined);
    });
    const wire = newPath();
    server.listen(wire);
    await once(server, 'listening');
    return {
      path: wire,
      server,
      cut: () => {
        for (const socket of pairs) socket.unpipe().pause();
      },
    };
  };

  test('a link that is cut ends the open stream at both ends, and an idle one is not looked after', async () => {
    const times = { pingMs: 50, pingTimeoutMs: 200 };
    const gone = { server: '' };
    const told: (() => void)[] = [];
    const untilTold = new Promise<void>((resolve) => told.push(resolve));
    const { server, path: own } = await quick(
      {
        step: {
          callers: ['local-root'],
          serve: async (_peer, _head, stream: ServerStream) => {
            await stream.sendEvent({ event: 'started', unit: 'u' });
            stream.signal.addEventListener('abort', () => {
              gone.server = stream.signal.reason.code;
              for (const tell of told) tell();
            });
            await stream.pump('stdout', new PassThrough());
          },
        },
      },
      times,
    );
    const wire = await startWire(own);
    const client = await connectUnix(wire.path, { ...T, times });
    const stream = await client.stream('step', STEP, T);
    const reading = (async () => {
      for await (const _frame of stream);
    })();
    // Quiet, but alive: pings are answered, nothing ends.
    await new Promise((resolve) => setTimeout(resolve, 500));
    expect([gone.server, client.closed.aborted]).toEqual(['', false]);
    wire.cut();
    const error = await refusalOf(reading);
    expect(error.code).toBe('worker-unreachable');
    expect(error.message).toContain('no answer to a ping');
    await untilTold;
    expect(gone.server).toBe('cancelled');
    await server.close(0);
    wire.server.close();
  });

  test('a call has a deadline, can be given up, and tells its handler', async () => {
    let entered = 0;
    let aborted = 0;
    const { server, path: own } = await quick(
      {
        stop: {
          callers: ['local-root'],
          answer: async (_peer, _request, signal) => {
            entered += 1;
            await once(signal, 'abort');
            aborted += 1;
            throw signal.reason;
          },
        },
        step: {
          callers: ['local-root'],
          serve: async (_peer, _head, stream) => {
            await once(stream.signal, 'abort');
            aborted += 1;
          },
        },
      },
      {},
    );
    const client = await connectUnix(own, T);
    expect(await refusedCode(client.call('stop', { lease: 1 }, { timeoutMs: 50 }))).toBe('timeout');
    expect(await refusedCode(client.stream('step', STEP, { timeoutMs: 50 }))).toBe('timeout');
    const giveUp = new AbortController();
    const call = client.call('stop', { lease: 1 }, { ...T, signal: giveUp.signal });
    await expect.poll(() => entered).toBe(2);
    giveUp.abort();
    expect(await refusedCode(call)).toBe('cancelled');
    await expect.poll(() => aborted).toBe(3);
    client.close();
    await server.close(0);
  });

  test('a deadline beyond what a timer can count is not one that has passed', async () => {
    const patient = await connectUnix(path, { timeoutMs: 2 ** 40 });
    await patient.call('status', {}, { timeoutMs: 2 ** 40 });
    patient.close();
  });

  test('connecting has a deadline, where nobody answers at all', async () => {
    const accepted: Socket[] = [];
    const deaf = createNetServer((socket) => accepted.push(socket));
    const own = newPath();
    deaf.listen(own);
    await once(deaf, 'listening');
    expect(await refusedCode(connectUnix(own, { timeoutMs: 100 }))).toBe('timeout');
    deaf.close();

    const deafTcp = createNetServer((socket) => accepted.push(socket));
    deafTcp.listen(0, '127.0.0.1');
    await once(deafTcp, 'listening');
    const address = deafTcp.address();
    const deafPort = typeof address === 'object' && address !== null ? address.port : 0;
    const identity = await site.identity('controller', 'c1');
    const target = { address: '127.0.0.1', port: deafPort, identity, expectNode: asNode('n1') };
    expect(await refusedCode(connectTls(target, { timeoutMs: 100 }))).toBe('timeout');
    const giveUp = new AbortController();
    const connecting = connectTls(target, { ...T, signal: giveUp.signal });
    giveUp.abort();
    expect(await refusedCode(connecting)).toBe('cancelled');
    for (const socket of accepted) socket.destroy();
    deafTcp.close();
    await once(deafTcp, 'close');
    const error = await refusalOf(connectTls(target, T));
    expect([error.code, error.facts.detail]).toMatchObject([
      'worker-unreachable',
      { errno: 'ECONNREFUSED', address: `127.0.0.1 port ${deafPort}` },
    ]);
  });
});

describe('closing a server', () => {
  test('lets what is open finish, takes nothing new, and cuts what does not finish', async () => {
    const own = newPath();
    const go: (() => void)[] = [];
    const { server } = startServer({
      stop: {
        callers: ['local-root'],
        answer: async () => {
          await new Promise<void>((resolve) => go.push(resolve));
          return { stopped: true };
        },
      },
    });
    await server.listenRoot({ path: own });
    const client = await connectUnix(own, T);
    const finishing = client.call('stop', { lease: 1 }, T);
    await expect.poll(() => go.length).toBe(1);
    const other = await connectUnix(own, T);
    const stuck = refusedCode(other.call('stop', { lease: 1 }, T));
    await expect.poll(() => go.length).toBe(2);

    const closed = server.close(300);
    expect(await refusedCode(connectUnix(own, T))).toBe('worker-unreachable');
    go[0]?.();
    expect(await finishing).toEqual({ stopped: true });
    expect(await stuck).toBe('worker-unreachable');
    await closed;
    client.close();
    other.close();
  });
});

test('a report that throws does not take the server down', async () => {
  const own = newPath();
  const warned = once(process, 'warning');
  const { createServer } = await import('../../../src/rpc/server.ts');
  const server = createServer({
    table: echoTable(),
    report: () => {
      throw new Error('the disk of the journal is full');
    },
  });
  await server.listenRoot({ path: own });
  const client = await connectUnix(own, T);
  expect(await refusedCode(client.call('prepare', { ticket: 'x' }, T))).toBe('peer-role');
  expect(String(await warned)).toContain('the disk of the journal is full');
  await client.call('status', {}, T);
  client.close();
  await server.close(0);
});

describe('a client facing a server that lies', () => {
  let liar: Http2Server;
  let lie: (stream: ServerHttp2Stream) => void;
  let client: RpcSession;

  beforeAll(async () => {
    liar = createHttp2Server();
    liar.on('stream', (stream) => {
      stream.on('error', () => undefined);
      lie(stream);
    });
    const own = newPath();
    liar.listen(own);
    await once(liar, 'listening');
    client = await connectUnix(own, T);
  });
  afterAll(() => {
    client.close();
    liar.close();
  });

  const answering = (status: number, body: string | Buffer) => (stream: ServerHttp2Stream) => {
    stream.respond({ ':status': status });
    stream.end(body);
  };

  test.each([
    ['no JSON', answering(200, 'x'), 'protocol'],
    ['another shape', answering(200, '{"stopped":1}'), 'protocol'],
    ['an error that is none', answering(409, '{}'), 'protocol'],
    ['an error with a code of the future', answering(409, '{"code":"newer","message":"m"}'), 'protocol'],
    ['an empty refusal', answering(500, ''), 'protocol'],
    ['too much', answering(200, Buffer.alloc(LIMITS.messageBytesMax + 1)), 'too-large'],
    ['a reset', (stream: ServerHttp2Stream) => stream.close(2), 'protocol'],
    ['a reset that says busy', (stream: ServerHttp2Stream) => stream.close(7), 'worker-busy'],
    [
      'half an answer',
      (stream: ServerHttp2Stream) => {
        stream.respond({ ':status': 200 });
        stream.write('{"stopped"', () => stream.close(2));
      },
      'protocol',
    ],
  ] as const)('with %s calls it by its code', async (_what, answer, code) => {
    lie = answer;
    expect(await refusedCode(client.call('stop', { lease: 1 }, T))).toBe(code);
  });

  test('shows the text of an unknown code without its control characters', async () => {
    lie = answering(409, '{"code":"newer","message":"\\u001b[31mred"}');
    const error = await refusalOf(client.call('stop', { lease: 1 }, T));
    expect(error.message).toMatch(/^[\x20-\x7e]*newer[\x20-\x7e]*$/);
    lie = answering(409, '{"code":"os","message":"\\u001b[31mred\\n"}');
    expect((await refusalOf(client.call('stop', { lease: 1 }, T))).message).toBe('\\x1b[31mred\\n');
  });

  const event = (text: string) => encodeFrame('control', Buffer.from(text));
  const started = event('{"event":"started","unit":"u"}');
  const ended = event(JSON.stringify({ event: 'ended', outcome: SUCCESS }));

  test.each([
    ['no end', started],
    ['half a frame at its end', Buffer.concat([started, ended, Buffer.from([2, 0])])],
    ['a frame after its end', Buffer.concat([started, ended, started])],
    ['a channel of the client', Buffer.concat([started, encodeFrame('stdin', Buffer.from('x'))])],
    ['an event that is none', event('{"event":"party"}')],
    ['an error that is none', encodeFrame('error', Buffer.from('x'))],
  ])('a stream with %s ends as protocol', async (_what, bytes) => {
    lie = answering(200, bytes);
    const stream = await client.stream('step', STEP, T);
    const reading = (async () => {
      for await (const _frame of stream);
    })();
    expect(await refusedCode(reading)).toBe('protocol');
  });

  test('a credit beyond all measure does not make stdin unbounded', async () => {
    lie = (stream) => {
      stream.respond({ ':status': 200 });
      stream.write(Buffer.concat([started, encodeFrame('credit', Buffer.alloc(4, 0xff))]));
    };
    const stream = await client.stream('step', STEP, T);
    const reading = refusedCode(
      (async () => {
        for await (const _frame of stream);
      })(),
    );
    expect(await reading).toBe('protocol');
    expect(await refusedCode(stream.writeStdin(Buffer.alloc(STREAM.stdinCreditBytes + 1)))).toBe('cancelled');
  });
});
