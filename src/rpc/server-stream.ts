/**
 * The server's end of one stream.
 *
 *   head -> (refused | started -> (ended | error))
 *
 * The bytes of the client are always read, also while a step does not read its stdin: credit bounds what waits,
 * so a command is never stuck behind input.
 */
import { Readable } from 'node:stream';
import { assert, XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import { H2, type ServerHttp2Stream } from '../os/http2.ts';
import { codeOf, decodeCommand, encodeDocument, encodeError, statusOf } from './decode.ts';
import {
  CLIENT_CHANNELS,
  createFrameDecoder,
  createGatherer,
  encodeCredit,
  encodeFrame,
  encodeFrameHeader,
  type Frame,
} from './frame.ts';
import { STREAM, type StreamCommand } from './message.ts';
import type { RpcTimes } from './times.ts';
import type { ServerStream } from './verbs.ts';

/** Below this, copying header and payload into one buffer costs less than a second write. */
const COPY_BYTES_MAX = 4 << 10;

/** Answers a request as a whole, and reads no more of it. */
export const respond = (http: ServerHttp2Stream, status: number, body: Buffer): void => {
  if (http.destroyed || http.closed || http.headersSent) return;
  http.respond({ ':status': status, 'content-type': 'application/json', 'content-length': body.length });
  http.end(body);
  finishReading(http);
};

/** RFC 9113 section 8.1: a server that has said all may reset the stream with NO_ERROR. */
const finishReading = (http: ServerHttp2Stream): void => {
  http.resume();
  http.once('finish', () => {
    if (!http.closed) http.close(H2.noError);
  });
};

export const respondError = (http: ServerHttp2Stream, error: unknown): void =>
  respond(http, statusOf(codeOf(error)), encodeError(error));

export type OpenStream = {
  /** Payload of the head frame; rejects when the peer goes away or breaks the protocol before it is complete. */
  readonly head: Promise<Buffer>;
  readonly stream: ServerStream;
  /** The handler is done and had sent 'ended'. Throws 'bug' when it had not. */
  complete(): void;
  /** The handler failed: a status before the first frame, an error frame after it. */
  refuse(error: unknown): void;
  /** The stream cannot go on: as refuse(), and the handler is told by its signal. */
  fail(error: unknown): void;
};

/** What whoever opens a stream hears of it. */
export type StreamObserver = {
  /** How many bytes of the client wait here, head and stdin; may throw 'worker-busy'. */
  hold(bytes: number): void;
  /** The first frame is about to be sent. */
  started(): void;
  bytes(channel: 'stdin' | 'stdout' | 'stderr', count: number): void;
};

export const openStream = (
  http: ServerHttp2Stream,
  observer: StreamObserver,
  times: Pick<RpcTimes, 'halfCloseMs'>,
): OpenStream => {
  const decoder = createFrameDecoder(CLIENT_CHANNELS);
  const gone = new AbortController();
  let headBytes = 0;
  let started = false;
  let lastSent = false;
  let done = false;

  let resolveHead: (head: Buffer) => void = () => undefined;
  let rejectHead: (error: XceError) => void = () => undefined;
  const head = new Promise<Buffer>((resolve, reject) => {
    resolveHead = resolve;
    rejectHead = reject;
  });
  // Whoever opened the stream awaits it; a second view keeps an early failure from being unhandled.
  head.catch(() => undefined);

  // --- stdin: granted >= received >= given, which is what the Readable has asked for
  // Gathered and not listed: a client may send single bytes, and each chunk pins the buffer it was cut from.
  const waiting = createGatherer();
  let granted: number = STREAM.stdinCreditBytes;
  let received = 0;
  let given = 0;
  let stdinEnded = false;
  let stdinWanted = false;

  const settleCredit = (): void => {
    observer.hold(headBytes + received - given + stdin.readableLength);
    if (!started || lastSent || stdinEnded || http.closed || http.destroyed) return;
    const more = given + STREAM.stdinCreditBytes - granted;
    if (more < STREAM.stdinCreditBytes / 2) return;
    granted += more;
    http.write(encodeCredit(more));
  };
  const feed = (): void => {
    while (stdinWanted && waiting.length > 0) {
      const chunk = waiting.take();
      given += chunk.length;
      stdinWanted = stdin.push(chunk);
    }
    if (stdinWanted && stdinEnded) {
      stdinWanted = false;
      stdin.push(null);
    }
    settleCredit();
  };
  const stdin = new Readable({
    read() {
      stdinWanted = true;
      feed();
    },
  });
  // Its error is the reason of the signal, where handlers look for it.
  stdin.on('error', () => undefined);

  // --- commands
  const commands: StreamCommand[] = [];
  let listener: ((command: StreamCommand) => void | Promise<void>) | undefined;
  let commanding = false;

  const runCommands = async (): Promise<void> => {
    if (commanding) return;
    commanding = true;
    while (listener !== undefined && !gone.signal.aborted) {
      const command = commands.shift();
      if (command === undefined) break;
      try {
        await listener(command);
      } catch (error) {
        fail(error);
      }
    }
    commanding = false;
  };

  // --- ends
  const abandon = (reason: unknown): void => {
    if (done || gone.signal.aborted) return;
    const error =
      reason instanceof XceError ? reason : new XceError('bug', 'the handler failed', { cause: reason });
    gone.abort(error);
    stdin.destroy(error);
    rejectHead(error);
    http.off('data', onData);
    http.resume();
  };
  /**
   * All is said, and the client half-closes when it has read that. A reset, with whatever code, would take from a client
   * that reads slowly what it has not read yet: Node gives no more of a stream to its reader once that was reset.
   */
  const dropTheRest = (): void => {
    http.off('data', onData);
    http.resume();
    http.once('finish', () => {
      const timer = setTimeout(() => http.close(H2.noError), times.halfCloseMs).unref();
      http.once('close', () => clearTimeout(timer));
    });
  };
  const refuse = (error: unknown): void => {
    if (lastSent || http.destroyed || http.closed) return;
    if (!started) {
      lastSent = true;
      respondError(http, error);
      return;
    }
    lastSent = true;
    http.end(encodeFrame('error', encodeError(error)));
    // One that breaks the protocol may never half-close.
    if (codeOf(error) === 'protocol') finishReading(http);
    else dropTheRest();
  };
  const fail = (error: unknown): void => {
    if (done) return;
    abandon(error);
    refuse(error);
  };

  const onFrame = ({ channel, bytes }: Frame): void => {
    if (channel === 'head') {
      if (headBytes > 0) throw new XceError('protocol', 'a stream has a second head');
      headBytes = bytes.length;
      observer.hold(headBytes);
      resolveHead(bytes);
      return;
    }
    if (headBytes === 0) throw new XceError('protocol', 'the first frame of a stream is not its head');
    if (channel === 'control') {
      if (commands.length >= STREAM.commandsWaitingMax) {
        throw new XceError('protocol', `more than ${STREAM.commandsWaitingMax} commands wait in a stream`);
      }
      commands.push(decodeCommand(bytes));
      void runCommands();
      return;
    }
    if (stdinEnded) throw new XceError('protocol', 'a stream has stdin after the end of stdin');
    if (channel === 'endOfStdin') {
      stdinEnded = true;
    } else {
      received += bytes.length;
      observer.bytes('stdin', bytes.length);
      if (received > granted) throw new XceError('protocol', 'a stream has more stdin than was granted');
      waiting.push(bytes);
    }
    feed();
  };
  const onData = (chunk: Buffer): void => {
    if (gone.signal.aborted) return;
    try {
      for (const frame of decoder.push(chunk)) onFrame(frame);
      if (headBytes === 0) observer.hold(decoder.heldBytes);
    } catch (error) {
      fail(error);
    }
  };
  http.on('data', onData);
  http.on('end', () => {
    if (gone.signal.aborted) return;
    try {
      decoder.finish();
      if (headBytes === 0) throw new XceError('protocol', 'a stream ends before its head');
      stdinEnded = true;
      feed();
    } catch (error) {
      fail(error);
    }
  });
  const onGone = (): void => abandon(new XceError('cancelled', 'the peer went away'));
  http.on('aborted', onGone);
  http.on('close', onGone);

  // --- output
  let roomWaiters: (() => void)[] = [];
  const wakeWaiters = (): void => {
    const waiters = roomWaiters;
    roomWaiters = [];
    for (const wake of waiters) wake();
  };
  http.on('drain', wakeWaiters);
  gone.signal.addEventListener('abort', wakeWaiters, { once: true });
  const room = async (): Promise<void> => {
    await new Promise<void>((resolve) => {
      roomWaiters.push(resolve);
    });
    gone.signal.throwIfAborted();
  };
  const start = (): void => {
    if (started) return;
    started = true;
    observer.started();
    http.respond({ ':status': 200, 'content-type': 'application/octet-stream' });
    settleCredit();
  };
  const requireOpen = (): void => {
    // Node tells of a stream that is gone a little later than it refuses to write to it.
    if (http.closed || http.destroyed) onGone();
    gone.signal.throwIfAborted();
    assert(!lastSent, 'nothing is sent after the last frame');
  };
  const afterWrite = async (more: boolean): Promise<void> => {
    if (!more) await room();
  };

  const stream: ServerStream = {
    stdin,
    signal: gone.signal,
    onCommand(next) {
      listener = next;
      void runCommands();
    },
    async sendEvent(event) {
      requireOpen();
      assert(started || event.event === 'started', "the first frame is the event 'started'");
      const frame = encodeFrame('control', encodeDocument(event, 'an event', STREAM.documentBytesMax));
      start();
      lastSent = event.event === 'ended';
      await afterWrite(http.write(frame));
    },
    async write(channel, bytes) {
      for (let at = 0; at < bytes.length; at += LIMITS.frameBytesMax) {
        requireOpen();
        assert(started, "the first frame is the event 'started'");
        const piece = bytes.subarray(at, at + LIMITS.frameBytesMax);
        observer.bytes(channel, piece.length);
        if (piece.length <= COPY_BYTES_MAX) {
          await afterWrite(http.write(encodeFrame(channel, piece)));
        } else {
          // Together, or the header would go as a packet of its own.
          http.cork();
          http.write(encodeFrameHeader(channel, piece.length));
          const more = http.write(piece);
          http.uncork();
          await afterWrite(more);
        }
      }
    },
    async pump(channel, source) {
      for await (const chunk of source.iterator({ destroyOnReturn: false })) {
        if (gone.signal.aborted) continue;
        try {
          await stream.write(channel, Buffer.isBuffer(chunk) ? chunk : Buffer.from(chunk));
        } catch (error) {
          if (!gone.signal.aborted) throw error;
        }
      }
      gone.signal.throwIfAborted();
    },
  };

  return {
    head,
    stream,
    complete() {
      if (gone.signal.aborted) return;
      assert(lastSent, "a handler that returns has sent the event 'ended'");
      done = true;
      http.end();
      dropTheRest();
    },
    refuse(error) {
      refuse(error);
      done = true;
    },
    fail,
  };
};
