/**
 * What the steps print, put in order for the reader: bytes of one node and stream stay in order; with labels,
 * whole lines only, each with its node in front.
 */
import type { Place } from './outcome.ts';

/** A line longer than this is cut into several, so that a job cannot make its launch grow. */
const LINE_BYTES_MAX = 64 << 10;

export type OutputStream = 'stdout' | 'stderr';

/** Where bytes go. Resolves when more may come: that is what holds a step back behind a slow reader. */
export type OutputSink = {
  write(place: Place, stream: OutputStream, bytes: Uint8Array): Promise<void>;
  /** No more comes from there; what waits for the end of its line is written. */
  finish(place: Place): Promise<void>;
};

export type Writer = (bytes: Uint8Array, place: Place) => Promise<void>;
type Writers = Readonly<Record<OutputStream, Writer>>;

/** Passes bytes on as they come. */
export const createPlainSink = (writers: Writers): OutputSink => ({
  write: (place, stream, bytes) => writers[stream](bytes, place),
  finish: async () => undefined,
});

/** Puts `NODE: ` before each line, or `NODE:TASK: ` where a node may have several tasks. */
export const createLabelSink = (
  writers: Writers,
  { withTasks = false }: { readonly withTasks?: boolean } = {},
): OutputSink => {
  const waiting = new Map<string, Buffer>();
  const nameOf = ({ node, task }: Place): string => (withTasks && task !== null ? `${node}:${task}` : node);
  const label = (place: Place, line: Uint8Array): Buffer =>
    Buffer.concat([Buffer.from(`${nameOf(place)}: `), line]);
  return {
    write: async (place, stream, bytes) => {
      const key = `${stream} ${nameOf(place)}`;
      let rest = Buffer.concat([waiting.get(key) ?? Buffer.alloc(0), bytes]);
      const lines: Buffer[] = [];
      for (;;) {
        const end = rest.indexOf(0x0a);
        if (end !== -1 && end <= LINE_BYTES_MAX) {
          lines.push(label(place, rest.subarray(0, end + 1)));
          rest = rest.subarray(end + 1);
        } else if (rest.length > LINE_BYTES_MAX) {
          lines.push(label(place, rest.subarray(0, LINE_BYTES_MAX)), Buffer.from('\n'));
          rest = rest.subarray(LINE_BYTES_MAX);
        } else break;
      }
      if (rest.length === 0) waiting.delete(key);
      else waiting.set(key, Buffer.from(rest));
      if (lines.length > 0) await writers[stream](Buffer.concat(lines), place);
    },
    finish: async (place) => {
      for (const stream of ['stdout', 'stderr'] as const) {
        const key = `${stream} ${nameOf(place)}`;
        const rest = waiting.get(key);
        if (rest === undefined) continue;
        waiting.delete(key);
        await writers[stream](Buffer.concat([label(place, rest), Buffer.from('\n')]), place);
      }
    },
  };
};

/** One JSON object per line; bytes as base64, because a job may print anything. */
export const createEventSink = (
  writeLine: (event: Readonly<Record<string, unknown>>) => Promise<void>,
): OutputSink => ({
  write: ({ node, task }, stream, bytes) =>
    writeLine({ event: 'output', node, task, stream, base64: Buffer.from(bytes).toString('base64') }),
  finish: async () => undefined,
});

/** A sink for each of the two streams. */
export const createSplitSink = (sinks: Readonly<Record<OutputStream, OutputSink>>): OutputSink => ({
  write: (place, stream, bytes) => sinks[stream].write(place, stream, bytes),
  finish: async (place) => {
    await sinks.stdout.finish(place);
    if (sinks.stderr !== sinks.stdout) await sinks.stderr.finish(place);
  },
});
