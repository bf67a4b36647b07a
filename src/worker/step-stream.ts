/**
 * Joins a running step to the stream of whoever asked for it: bytes both ways at the reader's pace, signals in,
 * the end out. A caller that goes away takes the step with it.
 */
import type { Writable } from 'node:stream';
import type { StepResult } from '../rpc/message.ts';
import type { ServerStream } from '../rpc/verbs.ts';
import type { RunningStep } from '../sandbox/backend.ts';

export type StepHooks = {
  /** Told of failures that change nothing for the caller. */
  readonly fault: (what: string, error: unknown) => void;
  /** After `started` was sent. */
  readonly started?: () => void;
  /** After all output and the end of the step, before `ended` is sent. */
  readonly beforeEnd?: (outcome: StepResult) => Promise<void>;
};

/**
 * Serves one step from `started` to `ended`. Rejects when the caller goes away; the step has ended by then in
 * either case.
 */
export const serveStep = async (
  stream: ServerStream,
  running: RunningStep,
  wantsStdin: boolean,
  hooks: StepHooks,
): Promise<void> => {
  const stop = (): void => {
    running.stop().catch((error: unknown) => hooks.fault(`${running.unit} could not be stopped`, error));
  };
  stream.onCommand(({ signal }) => {
    running.signal(signal).catch((error: unknown) => hooks.fault(`${running.unit}: signal ${signal}`, error));
  });
  // EPIPE of a step that closed its input; feed() sees that it is closed.
  running.stdin.on('error', () => undefined);
  try {
    stream.signal.addEventListener('abort', stop, { once: true });
    if (stream.signal.aborted) stop();
    await stream.sendEvent({ event: 'started', unit: running.unit });
    hooks.started?.();
    if (wantsStdin) void feed(stream, running);
    else running.stdin.end();
    await Promise.all([stream.pump('stdout', running.stdout), stream.pump('stderr', running.stderr)]);
    const outcome = await running.ended;
    await hooks.beforeEnd?.(outcome);
    await stream.sendEvent({ event: 'ended', outcome });
  } catch (error) {
    // Output that nobody takes any more must not keep the step from ending.
    running.stdout.destroy();
    running.stderr.destroy();
    running.stdin.destroy();
    stop();
    await running.ended;
    throw error;
  } finally {
    stream.signal.removeEventListener('abort', stop);
  }
};

/**
 * A step may end, or close its input, without reading all of it, as `head` does. What comes after that is read
 * and dropped, because the caller may be feeding other nodes at the same pace.
 */
const feed = async (stream: ServerStream, { stdin }: RunningStep): Promise<void> => {
  try {
    for await (const bytes of stream.stdin) {
      if (stdin.writable && !stdin.write(bytes)) await roomIn(stdin);
    }
  } catch {
    // The caller went away; the stream's signal tells that to whoever must act on it.
  }
  stdin.end();
};

const roomIn = (stdin: Writable): Promise<void> =>
  new Promise((resolve) => {
    const settle = (): void => {
      stdin.off('drain', settle);
      stdin.off('close', settle);
      resolve();
    };
    stdin.on('drain', settle);
    stdin.on('close', settle);
  });
