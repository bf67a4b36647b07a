import { once } from 'node:events';
import { createServer as createHttp2Server, type ServerHttp2Stream } from 'node:http2';
import { createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { LIMITS } from '../../../src/base/limits.ts';
import { connectUnix } from '../../../src/rpc/client.ts';
import {
  createH2Reader,
  encodeH2Frame,
  encodeH2Number,
  encodeH2Settings,
  H2_FLAG,
  H2_SETTING,
  H2_TYPE,
  isGoodStatus,
} from '../../../src/rpc/h2-frames.ts';
import type { RpcSession } from '../../../src/rpc/session.ts';
import { createSite, refusalOf, refusedCode, type Site, STEP } from './site.ts';

const T = { timeoutMs: 10_000 };
const EMPTY = Buffer.alloc(0);
const PREFACE_BYTES = 24;
const GOOD = Buffer.from([0x88]);
const ANSWER = Buffer.from('{"stopped":true}');
const { endStream, endHeaders, padded, priority } = H2_FLAG;

const settings = (...entries: readonly (readonly [number, number])[]): Buffer => encodeH2Settings(entries);
const headers = (block: Buffer, flags: number = endHeaders, stream = 1): Buffer =>
  encodeH2Frame(H2_TYPE.headers, flags, stream, block);
const data = (bytes: Buffer, flags: number = endStream, stream = 1): Buffer =>
  encodeH2Frame(H2_TYPE.data, flags, stream, bytes);

type Heard = {
  readonly type: number;
  readonly flags: number;
  readonly stream: number;
  readonly payload: Buffer;
};

describe('the reader', () => {
  const bytes = Buffer.concat([
    settings([H2_SETTING.initialWindow, 10]),
    data(EMPTY, 0),
    data(Buffer.from('abc'), 0, 3),
    data(Buffer.from('\x01xy', 'latin1'), padded | endStream, 3),
    data(Buffer.from('de'), endStream, 3),
    encodeH2Frame(H2_TYPE.ping, 0, 0, Buffer.alloc(8)),
  ]);

  const readIn = (pieceBytes: number) => {
    const frames: Heard[] = [];
    const bodies: string[] = [];
    const ends: number[] = [];
    const read = createH2Reader({
      frame: (type, flags, stream, payload) =>
        frames.push({ type, flags, stream, payload: Buffer.from(payload) }),
      data: (stream, piece, isEnd) => {
        bodies.push(piece.toString());
        if (isEnd) ends.push(stream);
      },
    });
    for (let at = 0; at < bytes.length; at += pieceBytes) {
      expect(read(bytes.subarray(at, at + pieceBytes))).toBeUndefined();
    }
    return { frames, body: bodies.join(''), ends };
  };

  test('finds the same in any cut of the bytes', () => {
    const whole = readIn(bytes.length);
    expect(whole).toMatchObject({ body: 'abcde', ends: [3] });
    expect(whole.frames.map(({ type }) => type)).toEqual([H2_TYPE.settings, H2_TYPE.data, H2_TYPE.ping]);
    for (const pieceBytes of [1, 2, 5, 10, 13]) expect(readIn(pieceBytes)).toEqual(whole);
  });
});

describe('the status of an answer', () => {
  test.each([
    ['an entry', '88', true],
    ['an entry, after the table was taken away', '2088', true],
    ['text to be remembered', '4803323030', true],
    ['text not to be remembered', '0803323030', true],
    ['text never to be remembered, in Huffman code', '1e821001', true],
    ['a name that is text', '00073a73746174757303323030', true],
    ['a name in Huffman code', '0085b8848d36a3821001', true],
    ['another entry', '8d', false],
    ['another text', '0803343039', false],
    ['another text for a name that is text', '00073a73746174757303343039', false],
    ['an entry of a table that there is not', 'be', undefined],
    ['a larger table', '3fe11f88', undefined],
    ['a field that is no status', '0f0d03323030', undefined],
    ['nothing', '', undefined],
  ])('%s', (_what, block, isGood) => {
    expect(isGoodStatus(Buffer.from(block, 'hex'))).toBe(isGood);
  });
});

let site: Site;
let paths = 0;
beforeAll(async () => {
  site = await createSite();
});
afterAll(() => site.remove());

const newPath = (): string => {
  paths += 1;
  return join(site.root, `h2-${paths}.sock`);
};

/** A server that says `greeting`, and `answer` once the client has said something. */
const startLiar = async (answer: Buffer, greeting: Buffer = settings()) => {
  const heard: Buffer[] = [];
  const sockets: Socket[] = [];
  const server: Server = createServer((socket) => {
    sockets.push(socket);
    socket.on('error', () => undefined);
    socket.write(greeting);
    socket.once('data', () => socket.write(answer));
    socket.on('data', (bytes: Buffer) => heard.push(bytes));
  });
  const path = newPath();
  server.listen(path);
  await once(server, 'listening');
  return {
    path,
    heard: () => Buffer.concat(heard),
    end: () => {
      for (const socket of sockets) socket.destroy();
      server.close();
    },
  };
};

const ask = async (answer: Buffer, greeting?: Buffer): Promise<unknown> => {
  const liar = await startLiar(answer, greeting);
  let client: RpcSession | undefined;
  try {
    client = await connectUnix(liar.path, T);
    return await client.call('stop', { lease: 1 }, T);
  } finally {
    client?.close();
    liar.end();
  }
};

describe('a client', () => {
  test.each([
    ['in one frame each', Buffer.concat([headers(GOOD), data(ANSWER)])],
    [
      'with padding everywhere',
      Buffer.concat([
        headers(Buffer.from([3, 0x88, 0, 0, 0]), endHeaders | padded),
        data(Buffer.concat([Buffer.from([2]), ANSWER, Buffer.alloc(2)]), endStream | padded),
      ]),
    ],
    [
      'with a priority',
      Buffer.concat([headers(Buffer.concat([Buffer.alloc(5), GOOD]), endHeaders | priority), data(ANSWER)]),
    ],
    [
      'with fields in pieces',
      Buffer.concat([
        headers(EMPTY, 0),
        encodeH2Frame(H2_TYPE.continuation, endHeaders, 1, GOOD),
        data(ANSWER),
      ]),
    ],
    [
      'with fields behind the body',
      Buffer.concat([
        headers(GOOD),
        data(ANSWER, 0),
        headers(Buffer.from('0f0d0178', 'hex'), endHeaders | endStream),
      ]),
    ],
    [
      'among frames of the future',
      Buffer.concat([
        encodeH2Frame(0xfa, 0xff, 77, Buffer.alloc(20)),
        headers(GOOD),
        encodeH2Frame(H2_TYPE.priority, 0, 1, Buffer.alloc(5)),
        data(ANSWER),
      ]),
    ],
    [
      'after which the rest of the request is not wanted',
      Buffer.concat([headers(GOOD), data(ANSWER), encodeH2Number(H2_TYPE.reset, 1, 0)]),
    ],
  ])('takes an answer %s', async (_what, answer) => {
    expect(await ask(answer)).toEqual({ stopped: true });
  });

  test.each([
    ['data before its fields', data(ANSWER)],
    ['data while fields are under way', Buffer.concat([headers(GOOD, 0), data(ANSWER)])],
    [
      'fields of another request while some are under way',
      Buffer.concat([headers(GOOD, 0), encodeH2Frame(H2_TYPE.continuation, endHeaders, 3, EMPTY)]),
    ],
    [
      'fields without an end',
      Buffer.concat([
        headers(GOOD, 0),
        ...Array.from({ length: 8 }, () => encodeH2Frame(H2_TYPE.continuation, 0, 1, Buffer.alloc(1000))),
      ]),
    ],
    ['fields of no answer', encodeH2Frame(H2_TYPE.continuation, endHeaders, 1, GOOD)],
    ['no status', headers(Buffer.from('0f0d0178', 'hex'))],
    ['padding over its frame', headers(Buffer.from([9, 0x88]), endHeaders | padded)],
    ['padding over its data', Buffer.concat([headers(GOOD), data(Buffer.from([1]), padded)])],
    ['a request that nobody made', headers(GOOD, endHeaders, 5)],
    ['a stream of its own', headers(GOOD, endHeaders, 2)],
    ['a push', encodeH2Frame(H2_TYPE.pushPromise, endHeaders, 1, Buffer.alloc(8))],
    ['a frame over the limit', Buffer.from('004001000000000001', 'hex')],
    ['a reset without code', encodeH2Frame(H2_TYPE.reset, 0, 1, EMPTY)],
    ['a ping of another length', encodeH2Frame(H2_TYPE.ping, 0, 0, Buffer.alloc(7))],
    ['a farewell without code', encodeH2Frame(H2_TYPE.goAway, 0, 0, Buffer.alloc(4))],
    ['half a window', encodeH2Frame(H2_TYPE.windowUpdate, 0, 0, Buffer.alloc(2))],
    ['a window beyond all measure', encodeH2Number(H2_TYPE.windowUpdate, 0, 0x7fff_ffff)],
    ['a window of a request beyond all measure', encodeH2Number(H2_TYPE.windowUpdate, 1, 0x7fff_ffff)],
    ['a first window beyond all measure', settings([H2_SETTING.initialWindow, 0xffff_ffff])],
  ])('ends the connection of a server that sends %s', async (_what, answer) => {
    const error = await refusalOf(ask(answer));
    expect([error.code, error.message]).toEqual([
      'worker-unreachable',
      expect.stringMatching('the rules of HTTP/2'),
    ]);
  });

  test('ends the connection of a server that sends more than was granted while nobody reads', async () => {
    const body = Array.from({ length: 20 }, () => data(Buffer.alloc(16_000, ' '), 0));
    const liar = await startLiar(Buffer.concat([headers(GOOD), ...body]));
    const client = await connectUnix(liar.path, T);
    const lost = once(client.closed, 'abort');
    await client.stream('step', STEP, T);
    await lost;
    expect(client.closed.reason).toMatchObject({
      code: 'worker-unreachable',
      message: expect.stringMatching('more than was granted'),
    });
    liar.end();
  });

  test('connects to no server that does not begin with its settings', async () => {
    expect(await refusedCode(ask(EMPTY, encodeH2Frame(H2_TYPE.ping, 0, 0, Buffer.alloc(8))))).toBe(
      'worker-unreachable',
    );
    expect(await refusedCode(ask(EMPTY, data(ANSWER)))).toBe('worker-unreachable');
  });

  test('says nothing before the server has, and then all at once', async () => {
    const liar = await startLiar(Buffer.concat([headers(GOOD), data(ANSWER)]));
    const client = await connectUnix(liar.path, T);
    await client.call('stop', { lease: 1 }, T);
    const heard: string[] = [];
    const read = createH2Reader({
      frame: (type, _flags, stream) => heard.push(`${type} of ${stream}`),
      data: (stream, bytes) => heard.push(`${bytes} of ${stream}`),
    });
    expect(liar.heard().toString('latin1', 0, PREFACE_BYTES)).toBe('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');
    read(liar.heard().subarray(PREFACE_BYTES));
    const { settings: set, windowUpdate } = H2_TYPE;
    expect(heard).toEqual([
      `${set} of 0`,
      `${set} of 0`,
      `${windowUpdate} of 0`,
      `${H2_TYPE.headers} of 1`,
      '{"lease":1} of 1',
    ]);
    client.close();
    liar.end();
  });

  test('sends no more of a body than the server lets it, however little that is', async () => {
    const body = `${'x'.repeat(100_000)}`;
    const server = createHttp2Server({ settings: { initialWindowSize: 1000 } });
    let received = 0;
    server.on('stream', (stream: ServerHttp2Stream) => {
      stream.on('data', (bytes: Buffer) => {
        received += bytes.length;
      });
      stream.once('end', () => {
        stream.respond({ ':status': 200 });
        stream.end(ANSWER);
      });
    });
    const path = newPath();
    server.listen(path);
    await once(server, 'listening');
    const client = await connectUnix(path, T);
    expect(await client.call('renew', { ticket: body }, T).catch((error: unknown) => error)).toBeInstanceOf(
      Error,
    );
    expect(received).toBe(JSON.stringify({ ticket: body }).length);
    expect(body.length).toBeLessThan(LIMITS.messageBytesMax);
    client.close();
    server.close();
  });

  test('lets what is open finish when the server goes, and asks it nothing more', async () => {
    const farewell = encodeH2Frame(H2_TYPE.goAway, 0, 0, Buffer.from('0000000100000000', 'hex'));
    const liar = await startLiar(Buffer.concat([farewell, headers(GOOD), data(ANSWER)]));
    const client = await connectUnix(liar.path, T);
    const first = client.call('stop', { lease: 1 }, T);
    const second = refusedCode(client.call('stop', { lease: 1 }, T));
    expect(await first).toEqual({ stopped: true });
    expect(await second).toBe('worker-busy');
    expect(client.takesRequests).toBe(false);
    expect(await refusedCode(client.call('stop', { lease: 1 }, T))).toBe('worker-unreachable');
    liar.end();
  });
});
