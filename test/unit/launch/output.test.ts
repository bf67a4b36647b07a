import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { NodeName } from '../../../src/base/ids.ts';
import type { Place } from '../../../src/launch/outcome.ts';
import {
  createEventSink,
  createLabelSink,
  createPlainSink,
  type OutputSink,
} from '../../../src/launch/output.ts';

const LINE_BYTES_MAX = 64 << 10;

const at = (name: string, task = 0): Place => ({ node: name as NodeName, task });

const collect = () => {
  const parts = { stdout: [] as Buffer[], stderr: [] as Buffer[] };
  const writers = {
    stdout: async (bytes: Uint8Array) => void parts.stdout.push(Buffer.from(bytes)),
    stderr: async (bytes: Uint8Array) => void parts.stderr.push(Buffer.from(bytes)),
  };
  const text = (stream: 'stdout' | 'stderr' = 'stdout') => Buffer.concat(parts[stream]).toString('latin1');
  return { parts, writers, text };
};

const print = (sink: OutputSink, name: string, text: string, stream: 'stdout' | 'stderr' = 'stdout') =>
  sink.write(at(name), stream, Buffer.from(text, 'latin1'));

describe('labels', () => {
  const setUp = () => {
    const { parts, writers, text } = collect();
    return { parts, text, sink: createLabelSink(writers) };
  };

  test('stand before each line, also where several come at once and where one is empty', async () => {
    const { sink, text } = setUp();
    await print(sink, 'n1', 'a\n\nb\n');
    expect(text()).toBe('n1: a\nn1: \nn1: b\n');
  });

  test('wait for the end of the line, whatever the pieces; other nodes do not', async () => {
    const { sink, text } = setUp();
    await print(sink, 'n1', 'on');
    await print(sink, 'n2', 'other\nmo');
    expect(text()).toBe('n2: other\n');
    await print(sink, 'n1', 'e\ntwo');
    await print(sink, 'n1', '\n');
    await print(sink, 'n2', 're\n');
    expect(text()).toBe('n2: other\nn1: one\nn1: two\nn2: more\n');
  });

  test('keep the two streams of a node apart', async () => {
    const { sink, text } = setUp();
    await print(sink, 'n1', 'out');
    await print(sink, 'n1', 'err', 'stderr');
    await print(sink, 'n1', 'put\n');
    await print(sink, 'n1', 'or\n', 'stderr');
    expect(text()).toBe('n1: output\n');
    expect(text('stderr')).toBe('n1: error\n');
  });

  test('end a last line that has no end, once, and only that of the node that is finished', async () => {
    const { sink, text } = setUp();
    await print(sink, 'n1', 'no end');
    await print(sink, 'n1', 'nor here', 'stderr');
    await print(sink, 'n2', 'still going');
    await sink.finish(at('n1'));
    await sink.finish(at('n1'));
    expect(text()).toBe('n1: no end\n');
    expect(text('stderr')).toBe('n1: nor here\n');
    await print(sink, 'n2', '\n');
    expect(text()).toBe('n1: no end\nn2: still going\n');
  });

  test('leave every byte as it is', async () => {
    const { sink, parts } = setUp();
    const bytes = Buffer.from(Array.from({ length: 256 }, (_, value) => value)).filter(
      (value) => value !== 0x0a,
    );
    await sink.write(at('n1'), 'stdout', Buffer.concat([bytes, Buffer.from('\n')]));
    expect(Buffer.concat(parts.stdout)).toEqual(
      Buffer.concat([Buffer.from('n1: '), bytes, Buffer.from('\n')]),
    );
  });

  test('let nothing be held that is overwritten later', async () => {
    const { sink, text } = setUp();
    const bytes = Buffer.from('first');
    await sink.write(at('n1'), 'stdout', bytes);
    bytes.fill('x');
    await print(sink, 'n1', '\n');
    expect(text()).toBe('n1: first\n');
  });

  test.each([
    [LINE_BYTES_MAX - 1, [LINE_BYTES_MAX - 1]],
    [LINE_BYTES_MAX, [LINE_BYTES_MAX]],
    [LINE_BYTES_MAX + 1, [LINE_BYTES_MAX, 1]],
    [2 * LINE_BYTES_MAX, [LINE_BYTES_MAX, LINE_BYTES_MAX]],
    [2 * LINE_BYTES_MAX + 7, [LINE_BYTES_MAX, LINE_BYTES_MAX, 7]],
  ])('cut a line of %i bytes into pieces of %j, each with its label', async (length, pieces) => {
    const line = 'x'.repeat(length);
    const expected = pieces.map((piece) => `n1: ${'x'.repeat(piece)}\n`).join('');
    const whole = setUp();
    await print(whole.sink, 'n1', `${line}\n`);
    expect(whole.text()).toBe(expected);
    const endless = setUp();
    for (let at = 0; at < length; at += 1000) await print(endless.sink, 'n1', line.slice(at, at + 1000));
    await endless.sink.finish(at('n1'));
    expect(endless.text()).toBe(expected);
  });

  test('hold no more than one line of a job that never ends its line', async () => {
    const { sink, parts } = setUp();
    for (let round = 0; round < 64; round += 1) await print(sink, 'n1', 'x'.repeat(10_000));
    const written = parts.stdout.reduce((sum, part) => sum + part.length, 0);
    expect(64 * 10_000 - written).toBeLessThanOrEqual(LINE_BYTES_MAX);
  });

  test('tell a writer that takes nothing to whoever writes', async () => {
    const closed = async () => {
      throw new XceError('output', 'EPIPE');
    };
    const sink = createLabelSink({ stdout: closed, stderr: closed });
    await print(sink, 'n1', 'rest');
    await expect(print(sink, 'n1', 'line\nmore')).rejects.toThrow('EPIPE');
    await expect(sink.finish(at('n1'))).rejects.toThrow('EPIPE');
  });
});

describe('without labels', () => {
  test('bytes go on as they come, at the pace of their writer', async () => {
    const { writers, text } = collect();
    let taken = false;
    const sink = createPlainSink({
      ...writers,
      stdout: async (bytes) => {
        await Promise.resolve();
        taken = true;
        await writers.stdout(bytes);
      },
    });
    await print(sink, 'n1', 'no ');
    expect(taken).toBe(true);
    await print(sink, 'n2', 'new line');
    await print(sink, 'n1', 'e', 'stderr');
    await sink.finish(at('n1'));
    expect(text()).toBe('no new line');
    expect(text('stderr')).toBe('e');
  });
});

describe('as events', () => {
  test('bytes are in base64, with node and stream, in order', async () => {
    const events: unknown[] = [];
    const sink = createEventSink(async (event) => void events.push(event));
    await print(sink, 'n1', '\xff\n');
    await print(sink, 'n2', '', 'stderr');
    await sink.finish(at('n1'));
    expect(events).toEqual([
      { event: 'output', node: 'n1', task: 0, stream: 'stdout', base64: '/wo=' },
      { event: 'output', node: 'n2', task: 0, stream: 'stderr', base64: '' },
    ]);
  });
});
