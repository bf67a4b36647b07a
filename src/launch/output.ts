/**
 * What the steps print, put in order for the reader: bytes of one node and stream stay in order; with labels,
 * whole lines only, each with its node in front.
 */
import type { NodeName } from '../base/ids.ts';

/** A line longer than this is cut into several, so that a job cannot make its launch grow. */
const LINE_BYTES_MAX = 64 << 10;

export type OutputStream = 'stdout' | 'stderr';

/** Where bytes go. Resolves when more may come: that is what holds a step back behind a slow reader. */
export type OutputSink = {
  write(node: NodeName, stream: OutputStream, bytes: Uint8Array): Promise<void>;
  /** No more comes from that node; what waits for the end of its line is written. */
  finish(node: NodeName): Promise<void>;
};

type Writers = Readonly<Record<OutputStream, (bytes: Uint8Array) => Promise<void>>>;

/** Passes bytes on as they come. */
export const createPlainSink = (writers: Writers): OutputSink => ({
  write: (_, stream, bytes) => writers[stream](bytes),
  finish: async () => undefined,
});

/** Puts `NODE: ` before each line. */
export const createLabelSink = (writers: Writers): OutputSink => {
  const waiting = new Map<string, Buffer>();
  const label = (node: NodeName, line: Uint8Array): Buffer => Buffer.concat([Buffer.from(`${node}: `), line]);
  return {
    write: async (node, stream, bytes) => {
      const key = `${stream} ${node}`;
      let rest = Buffer.concat([waiting.get(key) ?? Buffer.alloc(0), bytes]);
      const lines: Buffer[] = [];
      for (;;) {
        const end = rest.indexOf(0x0a);
        if (end !== -1 && end <= LINE_BYTES_MAX) {
          lines.push(label(node, rest.subarray(0, end + 1)));
          rest = rest.subarray(end + 1);
        } else if (rest.length > LINE_BYTES_MAX) {
          lines.push(label(node, rest.subarray(0, LINE_BYTES_MAX)), Buffer.from('\n'));
          rest = rest.subarray(LINE_BYTES_MAX);
        } else break;
      }
      if (rest.length === 0) waiting.delete(key);
      else waiting.set(key, Buffer.from(rest));
      if (lines.length > 0) await writers[stream](Buffer.concat(lines));
    },
    finish: async (node) => {
      for (const stream of ['stdout', 'stderr'] as const) {
        const rest = waiting.get(`${stream} ${node}`);
        if (rest === undefined) continue;
        waiting.delete(`${stream} ${node}`);
        await writers[stream](Buffer.concat([label(node, rest), Buffer.from('\n')]));
      }
    },
  };
};

/** One JSON object per line; bytes as base64, because a job may print anything. */
export const createEventSink = (
  writeLine: (event: Readonly<Record<string, unknown>>) => Promise<void>,
): OutputSink => ({
  write: (node, stream, bytes) =>
    writeLine({ event: 'output', node, stream, base64: Buffer.from(bytes).toString('base64') }),
  finish: async () => undefined,
});
