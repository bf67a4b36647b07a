/**
 * The client's end of one stream.
 */
import { XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import { type ClientHttp2Stream, H2, type Http2Session } from '../os/http2.ts';
import { decodeEvent, decodeWireError, encodeDocument } from './decode.ts';
import { createFrameDecoder, encodeFrame, encodeFrameHeader, SERVER_CHANNELS } from './frame.ts';
import { STREAM } from './message.ts';
import type { ClientStream, ServerFrame } from './session.ts';

/**
 * Why a stream was cut, once that is known: Node tells the streams of a connection before the connection itself.
 * `closed` is that of the session.
 */
export const explainCut = async (
  http: ClientHttp2Stream,
  session: Http2Session | undefined,
  closed: AbortSignal,
): Promise<XceError> => {
  if (!http.closed) http.close(H2.cancel);
  await new Promise((resolve) => setImmediate(resolve));
  if (session?.destroyed === true && !closed.aborted) {
    await new Promise((resolve) => closed.addEventListener('abort', resolve, { once: true }));
  }
  if (closed.aborted && closed.reason instanceof XceError) return closed.reason;
  const code = http.rstCode ?? H2.noError;
  return code === H2.refusedStream || code === H2.enhanceYourCalm
    ? new XceError('worker-busy', 'the worker takes no more requests on this connection')
    : new XceError('protocol', `the worker cut the request with HTTP/2 error ${code}`);
};

/** Sends the head of a stream and gives back what a user does with it. `closed` is that of the session. */
export const openClientStream = (
  http: ClientHttp2Stream,
  head: Buffer,
  closed: AbortSignal,
): ClientStream => {
  const { session } = http;
  let credit: number = STREAM.stdinCreditBytes;
  let stdinEnded = false;
  let cancelled = false;
  let ended = false;
  let wakeWriter: (() => void) | undefined;

  const wake = (): void => wakeWriter?.();
  const loss = async (): Promise<XceError> =>
    cancelled
      ? new XceError('cancelled', 'the stream was given up')
      : await explainCut(http, session, closed);
  const isOpen = (): boolean => !http.destroyed && !http.closed && http.writable;

  http.on('close', wake);
  http.on('aborted', wake);
  http.on('drain', wake);
  http.write(encodeFrame('head', head));

  const waitToWrite = (): Promise<void> =>
    new Promise((resolve) => {
      wakeWriter = () => {
        wakeWriter = undefined;
        resolve();
      };
    });

  const readFrames = async function* (): AsyncGenerator<ServerFrame, void, undefined> {
    const decoder = createFrameDecoder(SERVER_CHANNELS);
    try {
      for await (const chunk of http as AsyncIterable<Buffer>) {
        for (const { channel, bytes } of decoder.push(chunk)) {
          if (ended) throw new XceError('protocol', "a frame follows the event 'ended'");
          switch (channel) {
            case 'stdout':
            case 'stderr':
              yield { channel, bytes };
              break;
            case 'control': {
              const event = decodeEvent(bytes);
              ended = event.event === 'ended';
              yield { channel: 'event', event };
              break;
            }
            case 'credit':
              credit += bytes.readUInt32BE(0);
              if (credit > STREAM.stdinCreditBytes) {
                throw new XceError('protocol', 'the worker grants more stdin than a stream may have open');
              }
              wake();
              break;
            default:
              throw decodeWireError(bytes);
          }
        }
      }
      decoder.finish();
      if (!ended) throw await loss();
    } catch (error) {
      // What is not ours says only that the bytes stopped.
      throw error instanceof XceError ? error : await loss();
    } finally {
      // Half-closing lets the stream end by itself; resets are counted by servers as a sign of an attack.
      if (ended) http.end();
      else if (!http.closed) http.close(H2.cancel);
    }
  };

  return {
    [Symbol.asyncIterator]: readFrames,
    async writeStdin(bytes) {
      for (let at = 0; at < bytes.length; ) {
        if (stdinEnded) throw new XceError('bug', 'stdin was ended before');
        if (!isOpen()) {
          if (closed.aborted) throw closed.reason;
          throw new XceError('cancelled', 'the stream has ended and takes no more stdin');
        }
        if (credit === 0 || http.writableNeedDrain) {
          await waitToWrite();
          continue;
        }
        const piece = bytes.subarray(at, at + Math.min(credit, LIMITS.frameBytesMax));
        credit -= piece.length;
        at += piece.length;
        http.write(encodeFrameHeader('stdin', piece.length));
        http.write(piece);
      }
    },
    endStdin() {
      if (stdinEnded || !isOpen()) return;
      stdinEnded = true;
      http.write(encodeFrame('endOfStdin', Buffer.alloc(0)));
    },
    sendCommand(command) {
      if (!isOpen()) return;
      http.write(encodeFrame('control', encodeDocument(command, 'a command', STREAM.documentBytesMax)));
    },
    cancel() {
      cancelled = true;
      if (!http.closed) http.close(H2.cancel);
    },
  };
};
