/**
 * The client's end of one stream.
 */
import { XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import { decodeEvent, decodeWireError, encodeDocument } from './decode.ts';
import { createFrameDecoder, encodeFrame, encodeFrameHeader, SERVER_CHANNELS } from './frame.ts';
import { H2 } from './h2-frames.ts';
import type { H2Request } from './h2-request.ts';
import { STREAM } from './message.ts';
import type { ClientStream, ServerFrame } from './session.ts';

/** Why a request was cut. `closed` is that of the session. */
export const explainCut = ({ code }: H2Request, closed: AbortSignal): XceError => {
  if (code === H2.refusedStream || code === H2.enhanceYourCalm) {
    return new XceError('worker-busy', 'the worker takes no more requests on this connection');
  }
  if (closed.aborted && closed.reason instanceof XceError) return closed.reason;
  return new XceError('protocol', `the worker cut the request with HTTP/2 error ${code}`);
};

/** Sends the head of a stream, a document within its limit, and gives back what a user does with it. `closed` is that of the session. */
export const openClientStream = (http: H2Request, head: Buffer, closed: AbortSignal): ClientStream => {
  let credit: number = STREAM.stdinCreditBytes;
  let stdinEnded = false;
  let cancelled = false;
  let ended = false;
  let wakeWriter: (() => void) | undefined;

  const wake = (): void => wakeWriter?.();
  const loss = (): XceError =>
    cancelled ? new XceError('cancelled', 'the stream was given up') : explainCut(http, closed);

  http.onChange = wake;
  http.write(encodeFrameHeader('head', head.length));
  http.write(head);

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
      for (let chunk = await http.read(); chunk !== undefined; chunk = await http.read()) {
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
      if (!ended) throw loss();
    } catch (error) {
      // What is not ours says only that the bytes stopped.
      throw error instanceof XceError ? error : loss();
    } finally {
      // Half-closing lets the stream end by itself; resets are counted by servers as a sign of an attack.
      if (ended) http.end();
      else http.reset(H2.cancel);
    }
  };

  return {
    [Symbol.asyncIterator]: readFrames,
    async writeStdin(bytes) {
      for (let at = 0; at < bytes.length; ) {
        if (stdinEnded) throw new XceError('bug', 'stdin was ended before');
        if (!http.isWritable) {
          if (closed.aborted) throw closed.reason;
          throw new XceError('cancelled', 'the stream has ended and takes no more stdin');
        }
        if (credit === 0 || http.isFull) {
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
      if (stdinEnded || !http.isWritable) return;
      stdinEnded = true;
      http.write(encodeFrame('endOfStdin', Buffer.alloc(0)));
    },
    sendCommand(command) {
      if (!http.isWritable) return;
      http.write(encodeFrame('control', encodeDocument(command, 'a command', STREAM.documentBytesMax)));
    },
    cancel() {
      cancelled = true;
      http.reset(H2.cancel);
    },
  };
};
