import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { runAgent } from '../../../src/mpi/agent.ts';
import type { StepResult } from '../../../src/rpc/message.ts';
import { exited, FakeWorker, GOOD, killed, STOPPED } from '../../support/fake-sessions.ts';

const ARGUMENTS = ['n2', 'PRTE_PREFIX=/usr;export PRTE_PREFIX;/usr/bin/prted', '--tree-spawn', '"a b"'];

const turns = async (): Promise<void> => {
  for (let turn = 0; turn < 50; turn += 1) await Promise.resolve();
};

const codeOf = async (work: Promise<unknown>): Promise<string> => {
  try {
    return `status ${await work}`;
  } catch (error) {
    if (error instanceof XceError) return error.code;
    throw error;
  }
};

const start = async (args = ARGUMENTS, write?: (channel: string, bytes: Uint8Array) => Promise<void>) => {
  const worker = new FakeWorker('n1');
  let output = '';
  let launcherEnds = (): void => undefined;
  const status = runAgent(args, {
    connect: () => worker.connect(),
    startTimeoutMs: 1000,
    write:
      write ??
      (async (channel, bytes) => {
        output += `${channel} ${Buffer.from(bytes).toString()}\n`;
      }),
    onEnd: (listener) => {
      launcherEnds = listener;
    },
  });
  status.catch(() => undefined);
  await turns();
  return { worker, status, output: () => output, launcherEnds: () => launcherEnds() };
};

describe('the launch agent', () => {
  test('asks its worker for the daemon that the launcher wants, byte for byte, and passes its output on', async () => {
    const { worker, status, output } = await start();
    expect(worker.journal).toEqual(['n1 daemon']);
    const base64 = (text: string): string => Buffer.from(text).toString('base64');
    expect(worker.heads).toEqual([
      {
        node: 'n2',
        argv: ['/usr/bin/prted', '--tree-spawn', 'a b'].map(base64),
        environment: ['PRTE_PREFIX=/usr'].map(base64),
      },
    ]);
    worker.stream.start('d.service');
    worker.stream.print('out');
    worker.stream.print('err', 'stderr');
    worker.stream.end(GOOD);
    expect(await status).toBe(0);
    expect(output()).toBe('stdout out\nstderr err\n');
    expect(worker.sessions.size).toBe(0);
  });

  test.each<[string, StepResult, string]>([
    ['exited with 1', exited(1), 'status 1'],
    ['was killed', killed(9), 'status 137'],
    ['left nothing', { result: 'lost', code: 'none', status: 0, stopped: false }, 'sandbox-lost'],
    ['was stopped from outside, although it then exited with 0', { ...GOOD, stopped: true }, 'sandbox-lost'],
    ['was stopped from outside', STOPPED, 'sandbox-lost'],
  ])('never says 0 for a daemon that %s', async (_, outcome, expected) => {
    const { worker, status } = await start();
    worker.stream.start();
    worker.stream.end(outcome);
    expect(await codeOf(status)).toBe(expected);
  });

  test('never says 0 when the stream ends without the end of the daemon', async () => {
    const { worker, status } = await start();
    worker.stream.start();
    worker.stream.close();
    expect(await codeOf(status)).toBe('protocol');
  });

  test.each([
    [
      'the worker refuses',
      (worker: FakeWorker) => worker.stream.fail(new XceError('ticket-expired', 'over')),
      'ticket-expired',
    ],
    ['the worker is lost', (worker: FakeWorker) => worker.lose(), 'worker-unreachable'],
  ])('fails with the reason when %s', async (_, happen, code) => {
    const { worker, status } = await start();
    worker.stream.start();
    await turns();
    happen(worker);
    expect(await codeOf(status)).toBe(code);
    expect(worker.sessions.size).toBe(0);
  });

  test('gives the stream up when its launcher ends it, and then has not seen the end of the daemon', async () => {
    const { worker, status, launcherEnds } = await start();
    worker.stream.start();
    await turns();
    launcherEnds();
    expect(worker.stream.cancelled).toBe(true);
    expect(await status).toBe(143);
  });

  test('gives the daemon up when nobody reads its output any more', async () => {
    const { worker, status } = await start(ARGUMENTS, async () => {
      throw new XceError('output', 'cannot write to stdout: EPIPE');
    });
    worker.stream.start();
    worker.stream.print('x');
    expect(await codeOf(status)).toBe('output');
    expect(worker.stream.cancelled).toBe(true);
    expect(worker.sessions.size).toBe(0);
  });

  test('asks nobody for what is no launcher daemon', async () => {
    const { worker, status } = await start(['n2', 'sh', '-c', 'id']);
    expect(await codeOf(status)).toBe('mpi-agent');
    expect(worker.connections).toBe(0);
  });

  test('says why there is no worker to ask', async () => {
    const refused = async () => {
      throw new XceError('worker-unreachable', 'no socket');
    };
    const ports = {
      connect: refused,
      startTimeoutMs: 1,
      write: async () => undefined,
      onEnd: () => undefined,
    };
    expect(await codeOf(runAgent(ARGUMENTS, ports))).toBe('worker-unreachable');
  });
});
