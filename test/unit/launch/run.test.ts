import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { type ErrorCode, XceError } from '../../../src/base/errors.ts';
import type { NodeName } from '../../../src/base/ids.ts';
import { createFleet } from '../../../src/launch/fleet.ts';
import type { LaunchOutcome } from '../../../src/launch/outcome.ts';
import type { OutputSink } from '../../../src/launch/output.ts';
import { asError, type LaunchEvent, startLaunch } from '../../../src/launch/run.ts';
import { STREAM } from '../../../src/rpc/message.ts';
import { exited, fakeWorkers, GOOD, killed, STOPPED } from '../../support/fake-sessions.ts';

const STOP_TIMEOUT_MS = 5000;
/** As run.ts has it: the stop timeout and a margin. */
const END_MS = 10_000;
const DAEMON_GRACE_MS = 3000;
const DAEMON_LAST_MS = 8000;
const DAEMON_START_MS = 45_000;
/** As run.ts has it: three stop timeouts and a margin. */
const DAEMON_QUIET_MS = 20_000;

let warnings: Error[] = [];
const noteWarning = (warning: Error): void => void warnings.push(warning);

beforeEach(() => {
  warnings = [];
  process.on('warning', noteWarning);
  vi.useFakeTimers();
});

afterEach(() => {
  // What keeps the process alive after its launch is over keeps a batch system waiting.
  const timers = vi.getTimerCount();
  vi.useRealTimers();
  process.off('warning', noteWarning);
  expect(timers).toBe(0);
  expect(warnings).toEqual([]);
});

/** Lets everything go on that needs no time. */
const settle = async (): Promise<void> => {
  for (let turn = 0; turn < 30; turn += 1) await vi.advanceTimersByTimeAsync(0);
};

/** Input that the test gives piece by piece. */
class Input implements AsyncIterable<Uint8Array> {
  /** Pieces that somebody asked for. */
  asked = 0;
  isClosed = false;
  #pieces: (Uint8Array | Error | 'end')[] = [];
  #wake = (): void => undefined;

  give(piece: string | Error | 'end'): void {
    this.#pieces.push(typeof piece === 'string' && piece !== 'end' ? Buffer.from(piece) : piece);
    this.#wake();
  }

  close(): void {
    this.isClosed = true;
    this.give(new Error('premature close'));
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    try {
      for (;;) {
        this.asked += 1;
        while (this.#pieces.length === 0) {
          await new Promise<void>((resolve) => {
            this.#wake = resolve;
          });
        }
        const piece = this.#pieces.shift();
        if (piece === 'end' || piece === undefined) return;
        if (piece instanceof Error) throw piece;
        yield piece;
      }
    } finally {
      this.isClosed = true;
    }
  }
}

type Options = {
  readonly names?: readonly string[];
  readonly mpi?: boolean;
  readonly endWithHead?: boolean;
  readonly endsOnBadExit?: boolean;
  readonly stdin?: readonly string[];
  readonly sink?: Partial<OutputSink>;
  readonly report?: (event: LaunchEvent) => Promise<void>;
  readonly onWorkers?: (workers: ReturnType<typeof fakeWorkers>) => void;
};

const launchOn = async (options: Options = {}) => {
  const names = options.names ?? ['n1', 'n2', 'n3'];
  const workers = fakeWorkers(names);
  options.onWorkers?.(workers);
  const { nodes } = workers;
  const fleet = createFleet(workers.connect);
  const events: LaunchEvent[] = [];
  const input = new Input();
  let output = '';
  const kind = options.mpi === true ? 'head' : 'task';
  const launch = startLaunch(
    {
      lease: 7,
      launch: 's1',
      nodes,
      steps: (kind === 'head' ? nodes.slice(0, 1) : nodes).map((node) => ({
        node,
        task: kind === 'head' ? null : nodes.indexOf(node),
        kind,
        head: () => ({
          ticket: `ticket of ${node}`,
          step: 's1',
          argv: ['aWQ='],
          environment: [],
          directory: null,
          stdin: false,
        }),
      })),
      daemons: { nodes: kind === 'head' ? nodes.slice(1) : [], endWithHead: options.endWithHead ?? true },
      endsOnBadExit: options.endsOnBadExit ?? false,
      stdin: {
        nodes: (options.stdin ?? []) as readonly NodeName[],
        source: input,
        close: () => input.close(),
      },
    },
    {
      fleet,
      sink: {
        write: async ({ node }, stream, bytes) => {
          output += `${node} ${stream} ${Buffer.from(bytes).toString()}\n`;
        },
        finish: async () => undefined,
        ...options.sink,
      },
      report:
        options.report ??
        (async (event) => {
          events.push(event);
        }),
      requestTimeoutMs: 60_000,
      stopTimeoutMs: STOP_TIMEOUT_MS,
      daemonStartMs: DAEMON_START_MS,
    },
  );
  let outcome: LaunchOutcome | undefined;
  launch.outcome.then((value) => {
    outcome = value;
  });
  await settle();
  for (const { node, streams } of workers.all)
    for (const stream of streams) if (stream.isOpen) stream.start(`${node}.service`);
  await settle();
  return {
    launch,
    input,
    events,
    at: workers.at,
    all: workers.all,
    asked: workers.asked,
    output: () => output,
    /** What it came to, if it has come to something. */
    outcome: async () => {
      await settle();
      return outcome;
    },
  };
};

const failed = (code: ErrorCode, message: unknown = expect.any(String)) => ({
  kind: 'failure',
  code,
  message,
});

describe('a launch whose steps end', () => {
  test('well everywhere has status 0, stops nothing and closes its input', async () => {
    const { at, asked, outcome, input, events, launch, output } = await launchOn();
    expect(launch.running().map(({ node }) => node)).toEqual(['n1', 'n2', 'n3']);
    at('n2').stream.print('hello');
    at('n2').stream.print('oh', 'stderr');
    await settle();
    for (const node of ['n2', 'n1']) at(node).stream.end(GOOD);
    expect(await outcome()).toBe(undefined);
    expect(launch.running()).toEqual([{ node: 'n3', task: 2 }]);
    at('n3').stream.end(GOOD);
    expect(await outcome()).toEqual({ kind: 'job', exitStatus: 0, node: undefined });
    expect(asked('stop')).toEqual([]);
    expect(input.isClosed).toBe(true);
    expect(launch.running()).toEqual([]);
    expect(output()).toBe('n2 stdout hello\nn2 stderr oh\n');
    expect(events).toEqual([
      { event: 'started', node: 'n1', task: 0, kind: 'task', unit: 'n1.service' },
      { event: 'started', node: 'n2', task: 1, kind: 'task', unit: 'n2.service' },
      { event: 'started', node: 'n3', task: 2, kind: 'task', unit: 'n3.service' },
      { event: 'ended', step: { node: 'n2', task: 1, kind: 'task', outcome: GOOD } },
      { event: 'ended', step: { node: 'n1', task: 0, kind: 'task', outcome: GOOD } },
      { event: 'ended', step: { node: 'n3', task: 2, kind: 'task', outcome: GOOD } },
    ]);
  });

  test('has the status of the first that failed, and lets the others end by themselves', async () => {
    const { at, asked, outcome } = await launchOn();
    at('n3').stream.end(exited(7));
    at('n1').stream.end(exited(9));
    expect(await outcome()).toBe(undefined);
    at('n2').stream.end(GOOD);
    expect(await outcome()).toEqual({ kind: 'job', exitStatus: 7, node: 'n3' });
    expect(asked('stop')).toEqual([]);
  });

  test('badly is over for all with the first of them, if that was asked for, and has its status', async () => {
    const { at, asked, outcome, events } = await launchOn({ endsOnBadExit: true });
    at('n1').stream.end(GOOD);
    await settle();
    expect(asked('stop')).toEqual([]);
    at('n3').stream.end(exited(7));
    expect(await outcome()).toEqual({ kind: 'job', exitStatus: 7, node: 'n3' });
    expect(asked('stop')).toEqual(['n1', 'n2', 'n3']);
    expect(events).toContainEqual({
      event: 'ending',
      code: null,
      message: 'the task on n3 exited with 7',
    });
  });

  test('for all at the first bad end is a failure where a node could not be stopped', async () => {
    const { at, outcome } = await launchOn({
      endsOnBadExit: true,
      onWorkers: (workers) =>
        workers.at('n2').on('stop', () => {
          throw new XceError('systemd', 'no');
        }),
    });
    at('n3').stream.end(killed(9));
    await settle();
    await vi.advanceTimersByTimeAsync(END_MS);
    expect(await outcome()).toEqual(
      failed('launch-failed', 'the task on n3 ended by signal 9; could not be stopped: n2: no'),
    );
  });

  test('each gets the head that was planned for its node', async () => {
    const { at, all, outcome } = await launchOn();
    expect(all.map(({ heads }) => heads.map((head) => (head as { ticket: string }).ticket))).toEqual([
      ['ticket of n1'],
      ['ticket of n2'],
      ['ticket of n3'],
    ]);
    for (const { node } of all) at(node).stream.end(GOOD);
    await outcome();
  });

  test('passes signals on to those that still run', async () => {
    const { at, outcome, launch } = await launchOn();
    at('n1').stream.end(GOOD);
    await settle();
    launch.signal(10);
    expect(['n1', 'n2', 'n3'].map((node) => at(node).stream.commands)).toEqual([
      [],
      [{ command: 'signal', signal: 10 }],
      [{ command: 'signal', signal: 10 }],
    ]);
    for (const node of ['n2', 'n3']) at(node).stream.end(killed(10));
    expect(await outcome()).toEqual({ kind: 'job', exitStatus: 138, node: 'n2' });
  });
});

describe('a launch that loses something', () => {
  test('ends everywhere when a node is lost, and keeps that reason', async () => {
    const { at, asked, outcome, events } = await launchOn();
    at('n2').lose();
    expect(await outcome()).toMatchObject(failed('worker-unreachable', expect.stringMatching(/n2 was lost/)));
    expect(asked('stop')).toEqual(['n1', 'n2', 'n3']);
    expect(events.filter(({ event }) => event === 'ending')).toEqual([
      { event: 'ending', code: 'worker-unreachable', message: expect.stringMatching(/n2/) },
    ]);
    expect(at('n1').stream.isOpen || at('n3').stream.isOpen).toBe(false);
  });

  test('says which nodes could not be stopped', async () => {
    const { at, outcome } = await launchOn();
    at('n2').die();
    const end = await outcome();
    expect(end).toMatchObject(
      failed(
        'worker-unreachable',
        'n2: the connection to n2 was lost; could not be stopped: n2: no connection to n2: ECONNREFUSED',
      ),
    );
    expect(end?.kind === 'failure' && asError(end)).toMatchObject({ code: 'worker-unreachable' });
  });

  test('ends everywhere as soon as one unit is stopped from outside, whatever status it left', async () => {
    const { at, asked, outcome } = await launchOn();
    at('n3').stream.end({ ...GOOD, stopped: true });
    expect(await outcome()).toMatchObject(
      failed('sandbox-lost', expect.stringMatching(/task on n3 was stopped/)),
    );
    expect(asked('stop')).toHaveLength(3);
  });

  test('ends everywhere as soon as one unit leaves no status', async () => {
    const { at, outcome } = await launchOn();
    at('n1').stream.end({ result: 'lost', code: 'none', status: 0, stopped: false });
    expect(await outcome()).toMatchObject(
      failed('sandbox-lost', expect.stringMatching(/n1 left no exit status/)),
    );
  });

  test('ends everywhere when one step is refused, with its code', async () => {
    const { at, asked, outcome } = await launchOn({
      onWorkers: ({ at }) => {
        at('n2').onStream = () => {
          throw new XceError('ticket-expired', 'the ticket expired 5 ms ago');
        };
      },
    });
    expect(await outcome()).toMatchObject(failed('ticket-expired', 'n2: the ticket expired 5 ms ago'));
    expect(asked('stop')).toHaveLength(3);
    expect(at('n1').stream.isOpen).toBe(false);
  });

  test('starts no step on a node that is reached only afterwards', async () => {
    let reach = (): void => undefined;
    const { asked, outcome } = await launchOn({
      onWorkers: ({ at }) => {
        at('n1').onStream = () => {
          throw new XceError('sandbox-lost', 'gone');
        };
        at('n3').onConnect = () =>
          new Promise((resolve) => {
            reach = resolve;
          });
      },
    });
    expect(await outcome()).toBe(undefined);
    reach();
    expect(await outcome()).toMatchObject(failed('sandbox-lost'));
    expect(asked('step')).toEqual(['n1', 'n2']);
    expect(asked('stop')).toEqual(['n1', 'n2', 'n3']);
  });

  test('opens no connection for a step that waits for its turn', async () => {
    const names = Array.from({ length: 300 }, (_, index) => `n${index}`);
    const refusals: (() => void)[] = [];
    const { all, outcome, launch } = await launchOn({
      names,
      onWorkers: (workers) => {
        for (const worker of workers.all) {
          worker.onConnect = () =>
            new Promise((_, reject) => {
              refusals.push(() => reject(new XceError('worker-unreachable', 'no answer')));
            });
        }
      },
    });
    expect(refusals).toHaveLength(256);
    launch.end('cancelled', 'ended by SIGTERM');
    await settle();
    // To stop what may run there.
    expect(refusals).toHaveLength(300);
    for (const refuse of refusals) refuse();
    expect(await outcome()).toMatchObject(failed('cancelled'));
    expect(all.map(({ connections }) => connections)).toEqual(names.map(() => 1));
  });

  test('gives a step up whose connection is not open when everything else is given up', async () => {
    let refuse = (): void => undefined;
    const { outcome, launch } = await launchOn({
      onWorkers: ({ at }) => {
        at('n3').onConnect = () =>
          new Promise((_, reject) => {
            refuse = () => reject(new XceError('worker-unreachable', 'no answer'));
          });
      },
    });
    launch.end('cancelled', 'ended by SIGTERM');
    await vi.advanceTimersByTimeAsync(END_MS - 1);
    expect(launch.running()).toEqual([{ node: 'n3', task: 2 }]);
    await vi.advanceTimersByTimeAsync(1);
    expect(launch.running()).toEqual([]);
    refuse();
    expect(await outcome()).toEqual(
      failed('cancelled', 'ended by SIGTERM; could not be stopped: n3: no answer'),
    );
  });

  test('does not wait for ever for a node that neither accepts nor refuses its step', async () => {
    const { at, outcome, launch } = await launchOn({
      onWorkers: ({ at }) => {
        at('n3').onStream = () => new Promise(() => undefined);
      },
    });
    launch.end('cancelled', 'ended by SIGTERM');
    await settle();
    expect(at('n1').stream.isOpen).toBe(false);
    expect(await outcome()).toBe(undefined);
    await vi.advanceTimersByTimeAsync(END_MS);
    expect(await outcome()).toMatchObject(failed('cancelled', 'ended by SIGTERM'));
  });

  test('gives a step up that is accepted after everything else was given up', async () => {
    let accept = (): void => undefined;
    const { at, outcome, launch } = await launchOn({
      onWorkers: ({ at }) => {
        at('n3').onStream = () =>
          new Promise((resolve) => {
            accept = resolve;
          });
      },
    });
    launch.end('cancelled', 'ended by SIGTERM');
    await vi.advanceTimersByTimeAsync(END_MS);
    await outcome();
    accept();
    await settle();
    expect(at('n3').stream.cancelled).toBe(true);
  });

  test('gives up streams that do not end after the stop', async () => {
    const { at, outcome, launch } = await launchOn();
    at('n2').obeysStop = false;
    launch.end('timeout', 'the time limit is over');
    await vi.advanceTimersByTimeAsync(END_MS - 1);
    expect(await outcome()).toBe(undefined);
    expect(at('n2').stream.cancelled).toBe(false);
    await vi.advanceTimersByTimeAsync(1);
    expect(await outcome()).toEqual(failed('timeout', 'the time limit is over'));
    expect(at('n2').stream.cancelled).toBe(true);
  });

  test('names a node that does not answer the stop, and waits for it no longer than for the others', async () => {
    const { at, outcome, launch } = await launchOn();
    at('n2').on('stop', () => new Promise(() => undefined));
    launch.end('timeout', 'the time limit is over');
    await vi.advanceTimersByTimeAsync(END_MS);
    expect(await outcome()).toEqual(
      failed(
        'timeout',
        `the time limit is over; could not be stopped: n2: no answer to stop within ${END_MS} ms`,
      ),
    );
  });

  test('keeps the first reason when it is told to end twice, and stops each node once', async () => {
    const { asked, outcome, launch } = await launchOn();
    launch.end('cancelled', 'first');
    launch.end('timeout', 'second');
    expect(await outcome()).toEqual(failed('cancelled', 'first'));
    launch.end('timeout', 'third');
    expect(await outcome()).toEqual(failed('cancelled', 'first'));
    expect(asked('stop')).toEqual(['n1', 'n2', 'n3']);
  });

  test('takes no step for each node but one', async () => {
    await expect(launchOn({ names: ['n1', 'n1'] })).rejects.toMatchObject({ code: 'bug' });
  });
});

describe('an MPI launch', () => {
  const daemonsOf = async (options: Options = {}) => {
    const scene = await launchOn({ mpi: true, ...options });
    const head = scene.at('n1').stream;
    for (const node of ['n2', 'n3'] as NodeName[])
      head.say({ event: 'daemon-started', node, unit: 'd.service' });
    await settle();
    const daemonEnds = async (node: string, outcome = GOOD): Promise<void> => {
      head.say({ event: 'daemon-ended', node: node as NodeName, outcome });
      await settle();
    };
    return { ...scene, head, daemonEnds };
  };

  test('starts its head alone, tells of its daemons, and ends well with them', async () => {
    const { head, daemonEnds, outcome, asked, events } = await daemonsOf();
    expect(asked('step')).toEqual(['n1']);
    await daemonEnds('n2');
    await daemonEnds('n3');
    head.end(GOOD);
    expect(await outcome()).toMatchObject({ kind: 'job', exitStatus: 0 });
    expect(asked('stop')).toEqual([]);
    expect(
      events.map((event) => [event.event, 'node' in event ? event.node : '', 'kind' in event && event.kind]),
    ).toEqual([
      ['started', 'n1', 'head'],
      ['started', 'n2', 'daemon'],
      ['started', 'n3', 'daemon'],
      ['ended', '', false],
      ['ended', '', false],
      ['ended', '', false],
    ]);
  });

  test('ends within a grace when a daemon failed and the head hangs, whatever the head still prints', async () => {
    const { head, daemonEnds, outcome, asked } = await daemonsOf();
    await daemonEnds('n2', killed(9));
    await vi.advanceTimersByTimeAsync(DAEMON_GRACE_MS / 2);
    head.print('still here');
    await daemonEnds('n3');
    await vi.advanceTimersByTimeAsync(DAEMON_GRACE_MS / 2 - 1);
    expect(asked('stop')).toEqual([]);
    await vi.advanceTimersByTimeAsync(1);
    expect(await outcome()).toEqual(
      failed('launch-failed', 'the MPI daemon on n2 ended by signal 9; the job did not end'),
    );
    expect(asked('stop')).toEqual(['n1', 'n2', 'n3']);
  });

  test('waits for the head of a daemon that failed, and believes no 0 of it', async () => {
    const { head, daemonEnds, outcome, asked } = await daemonsOf();
    await daemonEnds('n2', { ...GOOD, stopped: true });
    head.end(GOOD);
    expect(await outcome()).toMatchObject(failed('launch-failed', expect.stringMatching(/n2 was stopped/)));
    expect(asked('stop')).toEqual(['n1', 'n2', 'n3']);
  });

  test('is not ended early because its daemons ended well: the rest of a large job takes its time', async () => {
    const { head, daemonEnds, outcome } = await daemonsOf();
    await daemonEnds('n2');
    await vi.advanceTimersByTimeAsync(DAEMON_QUIET_MS - 1);
    await daemonEnds('n3');
    await vi.advanceTimersByTimeAsync(DAEMON_LAST_MS - 1);
    head.print('last words');
    await settle();
    await vi.advanceTimersByTimeAsync(DAEMON_LAST_MS - 1);
    head.end(exited(3));
    expect(await outcome()).toEqual({ kind: 'job', exitStatus: 3, node: 'n1' });
  });

  test('is ended when the head stays silent while a daemon that it told to end does not', async () => {
    const { daemonEnds, outcome } = await daemonsOf();
    await daemonEnds('n2');
    await vi.advanceTimersByTimeAsync(DAEMON_QUIET_MS - 1);
    expect(await outcome()).toBe(undefined);
    await vi.advanceTimersByTimeAsync(1);
    expect(await outcome()).toMatchObject(
      failed('launch-failed', expect.stringMatching(/n2 exited with 0; the job did not end/)),
    );
  });

  test('is ended soon when its last daemon ended well and the head then stays silent', async () => {
    const { daemonEnds, outcome } = await daemonsOf();
    await daemonEnds('n2');
    await daemonEnds('n3');
    await vi.advanceTimersByTimeAsync(DAEMON_LAST_MS);
    expect(await outcome()).toMatchObject(
      failed('launch-failed', expect.stringMatching(/n3 exited with 0; the job did not end/)),
    );
  });

  test('is ended when the head falls silent after its last words', async () => {
    const { head, daemonEnds, outcome } = await daemonsOf();
    await daemonEnds('n2');
    await daemonEnds('n3');
    await vi.advanceTimersByTimeAsync(DAEMON_LAST_MS - 1);
    head.print('last words');
    await settle();
    await vi.advanceTimersByTimeAsync(DAEMON_LAST_MS - 1);
    expect(await outcome()).toBe(undefined);
    await vi.advanceTimersByTimeAsync(1);
    expect(await outcome()).toMatchObject(failed('launch-failed'));
  });

  test('whose daemons end with the ranks of their nodes goes on as long as the ranks of others', async () => {
    const { head, daemonEnds, outcome } = await daemonsOf({ endWithHead: false });
    await daemonEnds('n2');
    await daemonEnds('n3');
    head.print('last words');
    await settle();
    await vi.advanceTimersByTimeAsync(100 * DAEMON_QUIET_MS);
    expect(await outcome()).toBe(undefined);
    head.end(GOOD);
    expect(await outcome()).toMatchObject({ kind: 'job', exitStatus: 0 });
  });

  test('is not silent while its output waits for a slow reader', async () => {
    let read = (): void => undefined;
    const { head, daemonEnds, outcome } = await daemonsOf({
      sink: {
        write: () =>
          new Promise((resolve) => {
            read = resolve;
          }),
      },
    });
    await daemonEnds('n2');
    await daemonEnds('n3');
    head.print('a long listing');
    await settle();
    await vi.advanceTimersByTimeAsync(100 * DAEMON_QUIET_MS);
    expect(await outcome()).toBe(undefined);
    read();
    head.end(GOOD);
    expect(await outcome()).toMatchObject({ kind: 'job', exitStatus: 0 });
  });

  test('whose head ends with 0 without a daemon stops every node and names what it could not stop', async () => {
    const { at, asked, outcome, events } = await launchOn({ mpi: true });
    at('n3').die();
    at('n1').stream.say({ event: 'daemon-ended', node: 'n3' as NodeName, outcome: GOOD });
    at('n1').stream.end(GOOD);
    const end = await outcome();
    expect(end).toMatchObject(
      failed(
        'launch-failed',
        expect.stringMatching(/no MPI daemon ran on n2 .*; could not be stopped: n3: /),
      ),
    );
    expect(asked('stop')).toEqual(['n1', 'n2']);
    expect(events.at(-1)).toMatchObject({ event: 'ending', code: 'launch-failed' });
  });

  test('whose launcher waits for a daemon that never starts is ended, and the nodes without one are named', async () => {
    const { at, asked, outcome } = await launchOn({ mpi: true });
    await vi.advanceTimersByTimeAsync(DAEMON_START_MS - 1);
    at('n1').stream.say({ event: 'daemon-started', node: 'n2' as NodeName, unit: 'd.service' });
    await settle();
    await vi.advanceTimersByTimeAsync(DAEMON_START_MS - 1);
    expect(asked('stop')).toEqual([]);
    await vi.advanceTimersByTimeAsync(1);
    expect(await outcome()).toEqual(failed('launch-failed', 'no MPI daemon started on n3 within 45 s'));
    expect(asked('stop')).toEqual(['n1', 'n2', 'n3']);
  });

  test('whose launcher starts no daemon anywhere names all the nodes as one list', async () => {
    const { outcome } = await launchOn({ mpi: true });
    await vi.advanceTimersByTimeAsync(DAEMON_START_MS);
    expect(await outcome()).toEqual(failed('launch-failed', 'no MPI daemon started on n[2-3] within 45 s'));
  });

  test('whose daemons have all started may take its time', async () => {
    const { outcome, asked } = await daemonsOf();
    await vi.advanceTimersByTimeAsync(100 * DAEMON_START_MS);
    expect(await outcome()).toBe(undefined);
    expect(asked('stop')).toEqual([]);
  });

  test('ends everywhere when the head is stopped from outside', async () => {
    const { head, outcome, asked } = await daemonsOf();
    head.end(STOPPED);
    expect(await outcome()).toMatchObject(
      failed('sandbox-lost', expect.stringMatching(/head on n1 was stopped/)),
    );
    expect(asked('stop')).toEqual(['n1', 'n2', 'n3']);
  });

  test('of very many daemons raises no warning about listeners', async () => {
    const names = Array.from({ length: 40 }, (_, index) => `n${index + 1}`);
    const { at, outcome } = await launchOn({ mpi: true, names });
    for (const node of names.slice(1) as NodeName[]) {
      at('n1').stream.say({ event: 'daemon-ended', node, outcome: GOOD });
    }
    at('n1').stream.end(GOOD);
    expect(await outcome()).toMatchObject({ kind: 'job', exitStatus: 0 });
  });
});

describe('the reader of a launch', () => {
  test('sets the pace: what it has not taken is not taken from the nodes', async () => {
    const reads: (() => void)[] = [];
    const { at, outcome } = await launchOn({
      names: ['n1', 'n2'],
      sink: { write: () => new Promise((resolve) => reads.push(resolve)) },
    });
    const { stream } = at('n1');
    const before = stream.taken;
    for (const text of ['a', 'b', 'c']) stream.print(text);
    await settle();
    expect([stream.taken - before, reads.length]).toEqual([1, 1]);
    reads[0]?.();
    await settle();
    expect([stream.taken - before, reads.length]).toEqual([2, 2]);
    reads[1]?.();
    await settle();
    reads[2]?.();
    for (const node of ['n1', 'n2']) at(node).stream.end(GOOD);
    expect(await outcome()).toMatchObject({ kind: 'job' });
  });

  test('that is gone ends the launch with that reason, although nothing can be told any more', async () => {
    const gone = async () => {
      throw new XceError('output', 'cannot write to standard output: EPIPE');
    };
    const { at, asked, outcome } = await launchOn({ sink: { write: gone, finish: gone } });
    at('n1').stream.print('x');
    at('n2').stream.print('y');
    expect(await outcome()).toEqual(failed('output', 'cannot write to standard output: EPIPE'));
    // Given up by whoever read it, or ended by the stop: whichever comes first.
    expect(at('n1').stream.isOpen).toBe(false);
    expect(asked('stop')).toEqual(['n1', 'n2', 'n3']);
  });

  test('that takes no events any more ends the launch, also when it is told of the end itself', async () => {
    const { asked, outcome } = await launchOn({
      report: async () => {
        throw new XceError('output', 'cannot write to standard output: ENOSPC');
      },
    });
    expect(await outcome()).toEqual(failed('output', 'cannot write to standard output: ENOSPC'));
    expect(asked('stop')).toEqual(['n1', 'n2', 'n3']);
  });

  test('that takes only the last line no more makes an otherwise good launch fail', async () => {
    const { at, outcome } = await launchOn({
      sink: {
        finish: async ({ node }) => {
          if (node === 'n3') throw new XceError('output', 'EPIPE');
        },
      },
    });
    for (const node of ['n3', 'n1', 'n2']) at(node).stream.end(GOOD);
    expect(await outcome()).toEqual(failed('output', 'EPIPE'));
  });

  test.each(['write', 'report', 'finish'] as const)(
    'that has stopped reading (%s) holds a launch that is ending no longer than the nodes may take',
    async (what) => {
      const never = () => new Promise<void>(() => undefined);
      const { at, outcome, launch, asked } = await launchOn(
        what === 'report' ? { report: never } : { sink: { [what]: never } },
      );
      if (what === 'write') at('n1').stream.print('x');
      await settle();
      launch.end('cancelled', 'ended by Ctrl-C');
      await settle();
      expect(asked('stop')).toEqual(['n1', 'n2', 'n3']);
      await vi.advanceTimersByTimeAsync(END_MS - 1);
      expect(await outcome()).toBe(undefined);
      await vi.advanceTimersByTimeAsync(1);
      expect(await outcome()).toEqual(failed('cancelled', 'ended by Ctrl-C'));
    },
  );

  test('of very many nodes that all wait for it gets no warning about listeners', async () => {
    const names = Array.from({ length: 40 }, (_, index) => `n${index + 1}`);
    const { all, outcome, launch } = await launchOn({
      names,
      sink: { write: () => new Promise(() => undefined) },
    });
    for (const { stream } of all) stream.print('x');
    await settle();
    launch.end('cancelled', 'enough');
    await vi.advanceTimersByTimeAsync(END_MS);
    expect(await outcome()).toEqual(failed('cancelled', 'enough'));
  });
});

describe('standard input', () => {
  const finish = async ({ all, outcome }: Awaited<ReturnType<typeof launchOn>>): Promise<void> => {
    for (const { streams } of all) for (const stream of streams) if (stream.isOpen) stream.end(GOOD);
    expect(await outcome()).toMatchObject({ kind: 'job' });
  };

  test('is not touched when no step reads it', async () => {
    const scene = await launchOn();
    scene.input.give('x');
    await settle();
    expect(scene.input.asked).toBe(0);
    await finish(scene);
  });

  test('goes to every reader and to nobody else, and ends for them where it ends', async () => {
    const scene = await launchOn({ stdin: ['n1', 'n3'] });
    scene.input.give('one ');
    scene.input.give('two');
    scene.input.give('end');
    await settle();
    expect(['n1', 'n2', 'n3'].map((node) => scene.at(node).stream.stdin)).toEqual(['one two', '', 'one two']);
    expect(['n1', 'n2', 'n3'].map((node) => scene.at(node).stream.stdinEnded)).toEqual([true, false, true]);
    await finish(scene);
  });

  test('comes at the pace of the slowest reader, and no longer once that one has ended', async () => {
    const scene = await launchOn({ stdin: ['n1', 'n2'] });
    const n1 = scene.at('n1').stream;
    const n2 = scene.at('n2').stream;
    n2.grant(STREAM.stdinCreditBytes);
    const piece = 'x'.repeat(STREAM.stdinCreditBytes);
    scene.input.give(piece);
    scene.input.give('more');
    scene.input.give('and more');
    await settle();
    expect(n2.stdin.length).toBe(piece.length + 4);
    expect(scene.input.asked).toBe(2);
    n1.end(GOOD);
    await settle();
    expect(n2.stdin.slice(piece.length)).toBe('moreand more');
    await finish(scene);
  });

  test('is closed once every reader has ended, while others go on', async () => {
    const scene = await launchOn({ stdin: ['n1', 'n2'] });
    for (const node of ['n1', 'n2']) scene.at(node).stream.end(GOOD);
    await settle();
    scene.input.give('nobody reads this');
    await settle();
    expect(scene.input.isClosed).toBe(true);
    expect(scene.input.asked).toBe(1);
    expect(scene.launch.running()).toEqual([{ node: 'n3', task: 2 }]);
    await finish(scene);
  });

  test('is not read when no reader could be started', async () => {
    const scene = await launchOn({
      names: ['n1'],
      stdin: ['n1'],
      onWorkers: ({ at }) => {
        at('n1').onStream = () => {
          throw new XceError('sandbox-missing', 'no such sandbox');
        };
      },
    });
    expect(await scene.outcome()).toMatchObject(failed('sandbox-missing'));
    expect(scene.input.asked).toBe(0);
  });

  test('that cannot be read ends the launch', async () => {
    const scene = await launchOn({ stdin: ['n1'] });
    scene.input.give(new Error('EISDIR: illegal operation on a directory, read'));
    expect(await scene.outcome()).toEqual(
      failed('io', expect.stringMatching(/^cannot read standard input: EISDIR/)),
    );
    expect(scene.asked('stop')).toHaveLength(3);
  });

  test('that is being read when the job ends well is closed and changes nothing', async () => {
    const scene = await launchOn({ stdin: ['n1'] });
    expect(scene.input.asked).toBe(1);
    await finish(scene);
    expect(scene.input.isClosed).toBe(true);
  });
});

test('a launch that is given up while everything hangs is over within the connect, request and stop times', async () => {
  const { outcome, launch } = await launchOn({
    report: () => new Promise(() => undefined),
    onWorkers: ({ all }) => {
      for (const worker of all) worker.on('stop', () => new Promise(() => undefined));
    },
  });
  launch.end('cancelled', 'enough');
  await vi.advanceTimersByTimeAsync(END_MS);
  expect(await outcome()).toMatchObject(
    failed('cancelled', expect.stringMatching(/^enough; could not be stopped: n\[1-3\]: /)),
  );
});
