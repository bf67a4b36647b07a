import { type ChildProcess, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { join } from 'node:path';
import { PassThrough, Readable, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { connectTls, connectUnix } from '../../../src/rpc/client.ts';
import { STREAM, type StreamCommand } from '../../../src/rpc/message.ts';
import type { ClientStream, RpcSession, ServerFrame } from '../../../src/rpc/session.ts';
import type { ServerStream } from '../../../src/rpc/verbs.ts';
import {
  asNode,
  createRandom,
  createSite,
  refusalOf,
  refusedCode,
  type Site,
  STEP,
  SUCCESS,
  startServer,
  type TestServer,
} from './site.ts';

const T = { timeoutMs: 10_000 };
const MIB = 1 << 20;

let site: Site;
let running: TestServer;
let session: RpcSession;
/** What the verb step does in the test at hand. */
let serve: (stream: ServerStream) => Promise<void>;

beforeAll(async () => {
  site = await createSite();
});
afterAll(() => site.remove());
beforeEach(async () => {
  running = startServer({
    step: { callers: ['controller', 'local-root'], serve: (_peer, _head, stream) => serve(stream) },
    status: {
      callers: ['controller'],
      answer: async () => ({ node: asNode('n1'), bootId: 'b', sandboxes: [] }),
    },
  });
  const { port } = await running.server.listenTls(
    { address: '127.0.0.1', port: 0 },
    await site.identity('worker', 'n1'),
  );
  const identity = await site.identity('controller', 'c1');
  session = await connectTls({ address: '127.0.0.1', port, identity, expectNode: asNode('n1') }, T);
});
afterEach(async () => {
  session.close();
  await running.server.close(0);
});

const started = { event: 'started', unit: 'u' } as const;
const ended = { event: 'ended', outcome: SUCCESS } as const;

const open = (): Promise<ClientStream> => session.stream('step', STEP, T);

const readAll = async (stream: ClientStream): Promise<ServerFrame[]> => {
  const frames: ServerFrame[] = [];
  for await (const frame of stream) frames.push(frame);
  return frames;
};

/** A promise and what settles it. */
const gate = <T = void>() => {
  let settle: (value: T) => void = () => undefined;
  const opened = new Promise<T>((resolve) => {
    settle = resolve;
  });
  return { opened, open: settle };
};

/** `count` MiB of bytes that differ from block to block, and their digest. */
const manyBytes = (count: number) => {
  const digest = createHash('sha256');
  let made = 0;
  const source = new Readable({
    highWaterMark: 64 << 10,
    read() {
      if (made === count * MIB) {
        this.push(null);
        return;
      }
      const block = Buffer.alloc(64 << 10, `${made}:`);
      made += block.length;
      digest.update(block);
      this.push(block);
    },
  });
  return { source, madeBytes: () => made, digest: () => digest.digest('hex') };
};

describe('flow control', () => {
  test('holds the source back while the client does not read, and loses no byte of 64 MiB', async () => {
    const bytes = manyBytes(64);
    serve = async (stream) => {
      await stream.sendEvent(started);
      await stream.pump('stdout', bytes.source);
      await stream.sendEvent(ended);
    };
    const stream = await open();
    // The windows fill; then nothing may move any more.
    let before = -1;
    while (before !== bytes.madeBytes()) {
      before = bytes.madeBytes();
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    expect(before).toBeLessThan(2 * MIB);

    const rssBefore = process.memoryUsage().rss;
    let rssMax = 0;
    let total = 0;
    const digest = createHash('sha256');
    for await (const frame of stream) {
      if (frame.channel !== 'stdout') continue;
      digest.update(frame.bytes);
      total += frame.bytes.length;
      rssMax = Math.max(rssMax, process.memoryUsage().rss);
    }
    expect(total).toBe(64 * MIB);
    expect(digest.digest('hex')).toBe(bytes.digest());
    expect(rssMax - rssBefore).toBeLessThan(48 * MIB);
  });

  test('of one stream leaves the others of the connection alone', async () => {
    serve = async (stream) => {
      await stream.sendEvent(started);
      await stream.pump('stdout', manyBytes(8).source);
      await stream.sendEvent(ended);
    };
    const stalled = await Promise.all([open(), open(), open(), open()]);
    await session.call('status', {}, T);
    expect(await readAll(await open())).toContainEqual({ channel: 'event', event: ended });
    for (const stream of stalled) stream.cancel();
  });

  test('takes 64 MiB of stdin at the pace of a slow step', async () => {
    const bytes = manyBytes(64);
    const digest = createHash('sha256');
    const reading = gate();
    serve = async (stream) => {
      await stream.sendEvent(started);
      await reading.opened;
      await pipeline(
        stream.stdin,
        new Writable({
          write(chunk, _encoding, done) {
            digest.update(chunk);
            setImmediate(done);
          },
        }),
      );
      await stream.sendEvent(ended);
    };
    const stream = await open();
    const sent = (async () => {
      for await (const chunk of bytes.source) await stream.writeStdin(chunk);
      stream.endStdin();
    })();
    let before = -1;
    while (before !== bytes.madeBytes()) {
      before = bytes.madeBytes();
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    // Credit, one block in hand, and what the source itself keeps ready.
    expect(before).toBeLessThan(2 * STREAM.stdinCreditBytes);
    reading.open();
    await Promise.all([sent, readAll(stream)]);
    expect(digest.digest('hex')).toBe(bytes.digest());
  });

  test('never holds a command behind stdin that nobody reads', async () => {
    const commanded = gate<StreamCommand>();
    serve = async (stream) => {
      stream.onCommand(commanded.open);
      await stream.sendEvent(started);
      await commanded.opened;
      await stream.sendEvent(ended);
    };
    const stream = await open();
    const stuck = stream.writeStdin(Buffer.alloc(MIB));
    stream.sendCommand({ command: 'signal', signal: 15 });
    expect(await commanded.opened).toEqual({ command: 'signal', signal: 15 });
    const [stdin] = await Promise.all([refusedCode(stuck), readAll(stream)]);
    expect(stdin).toBe('cancelled');
  });

  test('gives commands out one at a time and in order, however many come at once', async () => {
    const seen: number[] = [];
    let running = 0;
    const all = gate();
    serve = async (stream) => {
      await stream.sendEvent(started);
      stream.onCommand(async ({ signal }) => {
        running += 1;
        expect(running).toBe(1);
        await new Promise((resolve) => setImmediate(resolve));
        seen.push(signal);
        running -= 1;
        if (seen.length === 200) all.open();
      });
      await all.opened;
      await stream.sendEvent(ended);
    };
    const stream = await open();
    const sent = Array.from({ length: 200 }, (_, index) => (index % 64) + 1);
    for (const signal of sent) stream.sendCommand({ command: 'signal', signal });
    await readAll(stream);
    expect(seen).toEqual(sent);
  });
});

describe('a client that takes more than its share', () => {
  test('of waiting commands is refused', async () => {
    serve = async (stream) => {
      await stream.sendEvent(started);
      stream.onCommand(() => new Promise(() => undefined));
      await once(stream.signal, 'abort');
    };
    const stream = await open();
    for (let count = 0; count < 2 + STREAM.commandsWaitingMax; count += 1) {
      stream.sendCommand({ command: 'signal', signal: 1 });
    }
    expect(await refusedCode(readAll(stream))).toBe('protocol');
  });
});

describe('the end of a stream', () => {
  test('keeps the order of all frames and comes after the last byte', async () => {
    serve = async (stream) => {
      await stream.sendEvent(started);
      await stream.write('stdout', Buffer.alloc(200_000, 'o'));
      await stream.write('stderr', Buffer.from('e'));
      await stream.sendEvent({ event: 'daemon-started', node: asNode('n2'), unit: 'd' });
      await stream.write('stdout', Buffer.from('last'));
      await stream.sendEvent(ended);
    };
    const shape: string[] = [];
    let stdout = '';
    for await (const frame of await open()) {
      if (frame.channel === 'stdout') stdout += frame.bytes.toString();
      const name = frame.channel === 'event' ? frame.event.event : frame.channel;
      if (shape.at(-1) !== name) shape.push(name);
    }
    expect(shape).toEqual(['started', 'stdout', 'stderr', 'daemon-started', 'stdout', 'ended']);
    expect(stdout).toBe(`${'o'.repeat(200_000)}last`);
  });

  test('is reached by a slow reader although the server has long said all', async () => {
    serve = async (stream) => {
      await stream.sendEvent(started);
      await stream.write('stdout', Buffer.alloc(100_000));
      await stream.sendEvent(ended);
    };
    const stream = await open();
    await new Promise((resolve) => setTimeout(resolve, 200));
    let total = 0;
    for await (const frame of stream) {
      if (frame.channel === 'stdout') total += frame.bytes.length;
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    expect(total).toBe(100_000);
  });

  test('of stdin leaves output and commands open', async () => {
    const signalled = gate();
    serve = async (stream) => {
      stream.onCommand(() => signalled.open());
      await stream.sendEvent(started);
      await stream.pump('stdout', stream.stdin);
      await signalled.opened;
      await stream.write('stdout', Buffer.from('after'));
      await stream.sendEvent(ended);
    };
    const stream = await open();
    await stream.writeStdin(Buffer.from('in '));
    stream.endStdin();
    stream.endStdin();
    stream.sendCommand({ command: 'signal', signal: 1 });
    const text = (await readAll(stream)).map((frame) => (frame.channel === 'stdout' ? frame.bytes : ''));
    expect(text.join('')).toBe('in after');
  });

  test('by a handler that never said so is a bug there, told to the client without its text', async () => {
    serve = async (stream) => {
      await stream.sendEvent(started);
    };
    const error = await refusalOf(readAll(await open()));
    expect(error.code).toBe('bug');
    expect(error.message).not.toContain('handler');
    expect(running.of('bug')).toHaveLength(1);
  });

  test('makes later writes of stdin fail and later commands do nothing', async () => {
    serve = async (stream) => {
      await stream.sendEvent(started);
      await stream.sendEvent(ended);
    };
    const stream = await open();
    await readAll(stream);
    expect(await refusedCode(stream.writeStdin(Buffer.from('x')))).toBe('cancelled');
    stream.sendCommand({ command: 'signal', signal: 9 });
    stream.endStdin();
    stream.cancel();
  });
});

describe('a refusal', () => {
  test('before the first frame opens no stream and keeps code and facts', async () => {
    serve = async () => {
      throw new XceError('ticket-expired', 'it ran out', { at: 'n1', next: 'renew', detail: { ms: 5 } });
    };
    const error = await refusalOf(open());
    expect([error.code, error.message, error.facts]).toEqual([
      'ticket-expired',
      'it ran out',
      { at: 'n1', next: 'renew', detail: { ms: 5 } },
    ]);
    expect(running.of('refused').at(-1)).toMatchObject({ verb: 'step', code: 'ticket-expired' });
  });

  test('before the first frame reaches a client that is still sending', async () => {
    serve = async () => {
      throw new XceError('sandbox-missing', 'no such sandbox');
    };
    const large = {
      ...STEP,
      argv: Array.from({ length: 200 }, () => Buffer.alloc(4096, 'a').toString('base64')),
    };
    expect(await refusedCode(session.stream('step', large, T))).toBe('sandbox-missing');
    await session.call('status', {}, T);
  });

  test('after the first frame is thrown by the iteration, after all output', async () => {
    serve = async (stream) => {
      await stream.sendEvent(started);
      await stream.write('stdout', Buffer.from('so far'));
      throw new XceError('sandbox-lost', 'the anchor is gone');
    };
    const stream = await open();
    let text = '';
    const reading = (async () => {
      for await (const frame of stream) if (frame.channel === 'stdout') text += frame.bytes.toString();
    })();
    expect(await refusedCode(reading)).toBe('sandbox-lost');
    expect(text).toBe('so far');
  });

  test('by an exception that is not ours carries neither its text nor its stack', async () => {
    for (const early of [true, false]) {
      serve = async (stream) => {
        if (!early) await stream.sendEvent(started);
        throw new TypeError('secret path /etc/shadow');
      };
      const error = await refusalOf(open().then(readAll));
      expect(error.code).toBe('bug');
      expect(JSON.stringify([error.message, error.facts])).not.toMatch(/secret|\.ts/);
      expect(String(running.of('bug').at(-1)?.error)).toContain('secret path');
    }
    await session.call('status', {}, T);
  });

  test('by a listener of commands fails the stream', async () => {
    const aborted = gate<unknown>();
    serve = async (stream) => {
      stream.onCommand(() => {
        throw new XceError('systemd', 'no such unit');
      });
      await stream.sendEvent(started);
      await once(stream.signal, 'abort');
      aborted.open(stream.signal.reason);
      stream.signal.throwIfAborted();
    };
    const stream = await open();
    stream.sendCommand({ command: 'signal', signal: 9 });
    expect(await refusedCode(readAll(stream))).toBe('systemd');
    expect(await aborted.opened).toMatchObject({ code: 'systemd' });
  });
});

describe('when the client goes away', () => {
  /** Serves until the signal fires, and says how. */
  const serveUntilGone = () => {
    const gone = gate<unknown>();
    serve = async (stream) => {
      await stream.sendEvent(started);
      stream.signal.addEventListener('abort', () => gone.open(stream.signal.reason));
      await stream.pump('stdout', new PassThrough());
    };
    return gone.opened;
  };

  test.each([
    ['it cancels the stream', (stream: ClientStream) => stream.cancel()],
    ['it closes the connection', () => session.close()],
    [
      'it leaves the loop',
      async (stream: ClientStream) => {
        for await (const _frame of stream) break;
      },
    ],
  ])('because %s, the handler is told', async (_how, leave) => {
    const gone = serveUntilGone();
    const stream = await open();
    await leave(stream);
    expect(await gone).toMatchObject({ code: 'cancelled' });
  });

  test('a handler that writes on is refused, and what it pumps is thrown away to its end', async () => {
    const bytes = manyBytes(4);
    const outcome = gate<unknown[]>();
    serve = async (stream) => {
      await stream.sendEvent(started);
      await once(stream.signal, 'abort');
      const results = await Promise.allSettled([
        stream.pump('stdout', bytes.source),
        stream.write('stderr', Buffer.from('x')),
        stream.sendEvent(ended),
      ]);
      outcome.open(results.map((result) => (result.status === 'rejected' ? result.reason.code : 'sent')));
    };
    (await open()).cancel();
    expect(await outcome.opened).toEqual(['cancelled', 'cancelled', 'cancelled']);
    expect(bytes.madeBytes()).toBe(4 * MIB);
  });

  test('stdin of the handler fails instead of ending', async () => {
    const outcome = gate<unknown>();
    serve = async (stream) => {
      await stream.sendEvent(started);
      const read = pipeline(stream.stdin, new PassThrough().resume());
      outcome.open(
        await read.then(
          () => 'ended',
          (error: XceError) => error.code,
        ),
      );
      await read;
    };
    const stream = await open();
    await stream.writeStdin(Buffer.from('half'));
    stream.cancel();
    expect(await outcome.opened).toBe('cancelled');
  });

  test('its own end throws cancelled', async () => {
    serveUntilGone();
    const stream = await open();
    const reading = readAll(stream);
    stream.cancel();
    expect(await refusedCode(reading)).toBe('cancelled');

    const other = await open();
    const lost = readAll(other);
    session.close();
    expect(await refusedCode(lost)).toBe('cancelled');
    expect(await refusedCode(session.call('status', {}, T))).toBe('cancelled');
  });
});

describe('when the other process is killed', () => {
  const children: ChildProcess[] = [];
  const program = fileURLToPath(new URL('peer-program.ts', import.meta.url));

  /** Starts the program and waits until it says READY. */
  const startPeer = async (mode: 'server' | 'client', path: string): Promise<ChildProcess> => {
    const child = spawn(process.execPath, ['--import', 'tsx', program, mode, path], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    children.push(child);
    await once(child.stdout, 'data');
    return child;
  };
  afterEach(() => {
    for (const child of children.splice(0)) child.kill('SIGKILL');
  });

  test('the client learns of a dead server in a stream and in a call', async () => {
    const path = join(site.root, 'dead-server.sock');
    const server = await startPeer('server', path);
    const local = await connectUnix(path, T);
    const stream = await local.stream('step', STEP, T);
    const call = refusalOf(local.call('stop', { lease: 1 }, T));
    let frames = 0;
    const reading = (async () => {
      for await (const _frame of stream) {
        frames += 1;
        if (frames === 100) server.kill('SIGKILL');
      }
    })();
    expect((await refusalOf(reading)).code).toBe('worker-unreachable');
    expect((await call).code).toBe('worker-unreachable');
    expect(local.closed.reason).toMatchObject({ code: 'worker-unreachable' });
    expect(await refusedCode(local.call('stop', { lease: 1 }, T))).toBe('worker-unreachable');
    // The kernel takes connections for a process until it is quite dead.
    if (server.exitCode === null && server.signalCode === null) await once(server, 'exit');
    expect((await refusalOf(connectUnix(path, T))).facts.detail).toMatchObject({ errno: 'ECONNREFUSED' });
  });

  test('the server learns of a dead client', async () => {
    const path = join(site.root, 'dead-client.sock');
    const gone = gate<unknown>();
    serve = async (stream) => {
      await stream.sendEvent(started);
      stream.signal.addEventListener('abort', () => gone.open(stream.signal.reason));
      await stream.pump('stdout', manyBytes(1024).source);
    };
    await running.server.listenRoot({ path });
    const client = await startPeer('client', path);
    client.kill('SIGKILL');
    expect(await gone.opened).toMatchObject({ code: 'cancelled' });
  });
});

test('a reader that takes a while for each frame gets all of a stream that has ended', async () => {
  const random = createRandom(7);
  const breathe = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, random(3)));
  const bytes = Buffer.from('out\n');
  serve = async (stream) => {
    await stream.sendEvent(started);
    await breathe();
    await Promise.all([stream.write('stdout', bytes), stream.write('stderr', bytes)]);
    await breathe();
    await stream.sendEvent(ended);
  };
  for (let round = 0; round < 100; round += 1) {
    const channels: string[] = [];
    for await (const frame of await open()) {
      channels.push(frame.channel);
      await breathe();
    }
    expect(channels, `round ${round}`).toEqual(['event', 'stdout', 'stderr', 'event']);
  }
});
