import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { NodeName } from '../../src/base/ids.ts';
import { createLabelSink, type OutputStream } from '../../src/launch/output.ts';

const LINE_BYTES_MAX = 64 << 10;
const NEWLINE = 0x0a;

const nodes = ['n1', 'n10', 'a.b'] as const;

const piece = fc.record({
  node: fc.constantFrom(...nodes),
  stream: fc.constantFrom('stdout', 'stderr') as fc.Arbitrary<OutputStream>,
  bytes: fc.oneof(
    { weight: 8, arbitrary: fc.uint8Array({ maxLength: 12 }) },
    {
      weight: 4,
      arbitrary: fc.stringMatching(/^[a-c\n:]{0,12}$/).map((text) => new TextEncoder().encode(text)),
    },
    {
      weight: 1,
      arbitrary: fc
        .tuple(fc.integer({ min: LINE_BYTES_MAX - 2, max: 2 * LINE_BYTES_MAX + 2 }), fc.boolean())
        .map(([length, ends]) => {
          const bytes = new Uint8Array(length).fill(0x78);
          if (ends) bytes[length - 1] = NEWLINE;
          return bytes;
        }),
    },
  ),
});

/** What the sink must make of one node's stream: lines, cut where they are too long, the last one ended. */
const linesOf = (bytes: Buffer): readonly string[] => {
  const text = bytes.toString('latin1');
  const lines = text.split('\n');
  if (lines.at(-1) === '') lines.pop();
  return lines.flatMap((line) =>
    line === '' ? [''] : (line.match(new RegExp(`[^]{1,${LINE_BYTES_MAX}}`, 'g')) ?? []),
  );
};

test('labelled output, taken apart by its labels, is what each node wrote, line by line', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(piece, { maxLength: 40 }), async (pieces) => {
      const out = { stdout: [] as Buffer[], stderr: [] as Buffer[] };
      const sink = createLabelSink({
        stdout: async (bytes) => void out.stdout.push(Buffer.from(bytes)),
        stderr: async (bytes) => void out.stderr.push(Buffer.from(bytes)),
      });
      for (const { node, stream, bytes } of pieces)
        await sink.write({ node: node as NodeName, task: 0 }, stream, bytes);
      for (const node of nodes) await sink.finish({ node: node as NodeName, task: 0 });
      for (const stream of ['stdout', 'stderr'] as const) {
        const text = Buffer.concat(out[stream]).toString('latin1');
        expect(text === '' || text.endsWith('\n')).toBe(true);
        const labelled = text.split('\n').slice(0, -1);
        for (const node of nodes) {
          const prefix = `${node}: `;
          const seen = labelled
            .filter((line) => line.startsWith(prefix))
            .map((line) => line.slice(prefix.length));
          const written = pieces.filter((one) => one.node === node && one.stream === stream);
          const lines = linesOf(Buffer.concat(written.map(({ bytes }) => bytes)));
          // Compared as one value: a failing line of 64 KiB is not for reading.
          expect(JSON.stringify(seen) === JSON.stringify(lines)).toBe(true);
        }
        expect(labelled.every((line) => nodes.some((node) => line.startsWith(`${node}: `)))).toBe(true);
      }
    }),
    { numRuns: 200 },
  );
});
