import { once } from 'node:events';
import { describe, expect, test } from 'vitest';
import { serveStep } from '../../../src/worker/step-stream.ts';
import { codeOf, FakeStep, FakeStream, GOOD, settle } from './fakes.ts';

const begin = (wantsStdin = true) => {
  const stream = new FakeStream();
  const step = new FakeStep('u.service');
  const faults: string[] = [];
  const served = serveStep(stream, step, wantsStdin, { fault: (what) => faults.push(what) });
  served.catch(() => undefined);
  return { stream, step, faults, served };
};

describe('a served step', () => {
  test('sends started, all output, then ended', async () => {
    const { stream, step, served } = begin();
    step.stdout.write('out');
    step.stderr.write('err');
    step.stdout.write('put');
    step.finish(GOOD);
    await served;
    expect(stream.output).toEqual({ stdout: 'output', stderr: 'err' });
    expect(stream.events).toEqual([
      { event: 'started', unit: 'u.service' },
      { event: 'ended', outcome: GOOD },
    ]);
  });

  test('gets its stdin and the end of it', async () => {
    const { stream, step } = begin();
    stream.stdin.end('input');
    const received: Buffer[] = [];
    for await (const bytes of step.stdin) received.push(bytes as Buffer);
    expect(Buffer.concat(received).toString()).toBe('input');
    step.finish(GOOD);
  });

  test('without stdin has its input closed from the start', async () => {
    const { step } = begin(false);
    step.stdin.resume();
    await once(step.stdin, 'end');
    step.finish(GOOD);
  });

  test('that closes its input lets the caller go on sending, to nobody', async () => {
    const { stream, step, served } = begin();
    await stream.sent('started');
    step.stdin.destroy(new Error('EPIPE'));
    for (let count = 0; count < 64; count += 1) {
      if (!stream.stdin.write(Buffer.alloc(64 << 10))) await once(stream.stdin, 'drain');
    }
    step.finish(GOOD);
    await served;
    expect(stream.events.at(-1)).toEqual({ event: 'ended', outcome: GOOD });
  });

  test('gets the signals of its caller', async () => {
    const { stream, step, served } = begin();
    await stream.sent('started');
    stream.command({ command: 'signal', signal: 10 });
    step.finish(GOOD);
    await served;
    expect(step.signals).toEqual([10]);
  });

  test('is stopped when its caller goes away, and is over when that is told', async () => {
    const { stream, step, served } = begin();
    await stream.sent('started');
    stream.leave();
    expect(await codeOf(served)).toBe('cancelled');
    expect(step.stops).toBeGreaterThan(0);
    expect((await step.ended).stopped).toBe(true);
  });

  test('whose caller went away before it was served is stopped', async () => {
    const stream = new FakeStream();
    const step = new FakeStep('u.service');
    stream.leave();
    expect(await codeOf(serveStep(stream, step, true, { fault: () => undefined }))).toBe('cancelled');
    expect(step.stops).toBeGreaterThan(0);
  });

  test('waits with ended for what must come before', async () => {
    const stream = new FakeStream();
    const step = new FakeStep('u.service');
    let release = (): void => undefined;
    const before = new Promise<void>((resolve) => {
      release = resolve;
    });
    const served = serveStep(stream, step, false, { fault: () => undefined, beforeEnd: () => before });
    step.finish(GOOD);
    await settle();
    expect(stream.events).toHaveLength(1);
    release();
    await served;
    expect(stream.events).toHaveLength(2);
  });
});
