/**
 * Runs the steps of one launch on prepared nodes and says what they came to.
 *
 *   running ── every stream ended ──────────────────────────────> over
 *      │                                                           ▲
 *      └─ node lost, daemon ended badly, told to end ─> ending ────┘
 *
 * `ending` is entered once and keeps the first reason: the verb `stop` goes to every node, so that nothing of
 * the launch lives on anywhere; streams that do not end within END_MS are given up.
 */
import { assert, type ErrorCode, XceError } from '../base/errors.ts';
import type { NodeName } from '../base/ids.ts';
import type { RequestOf } from '../rpc/message.ts';
import type { ClientStream } from '../rpc/session.ts';
import { askAll, atNode, type Fleet } from './fleet.ts';
import { decideOutcome, describeEnd, type EndedStep, type LaunchOutcome } from './outcome.ts';
import type { OutputSink } from './output.ts';

/** Time that every node has to end its steps once the launch is ending. */
const END_MS = 10_000;
/** A daemon of a running job has ended: the head ends by itself within this time or is ended. */
const DAEMON_GRACE_MS = 3000;

export type StepPlan = { readonly node: NodeName; readonly head: RequestOf<'step'> };

export type LaunchEvent =
  | {
      readonly event: 'started';
      readonly node: NodeName;
      readonly kind: EndedStep['kind'];
      readonly unit: string;
    }
  | { readonly event: 'ended'; readonly step: EndedStep }
  | { readonly event: 'ending'; readonly code: ErrorCode; readonly message: string };

/** Who gets standard input. `source` is read only if somebody does; `close` ends a read that is under way. */
export type StdinPlan = {
  readonly nodes: readonly NodeName[];
  readonly source: AsyncIterable<Uint8Array>;
  readonly close: () => void;
};

export type Launch = {
  /** Settles once everything has ended; never rejects for what steps or nodes do. */
  readonly outcome: Promise<LaunchOutcome>;
  /** Passes a signal on to every step. */
  signal(signal: number): void;
  /** Ends every step on every node; the first reason counts. */
  end(code: ErrorCode, message: string): void;
  /** Nodes whose step has not ended yet. */
  running(): readonly NodeName[];
};

export type LaunchPorts = {
  readonly fleet: Fleet;
  readonly sink: OutputSink;
  readonly report: (event: LaunchEvent) => Promise<void>;
  readonly requestTimeoutMs: number;
};

/** Resolves after `ms`, or when `signal` is aborted; true when the time ran out. */
const waitMs = (ms: number, signal: AbortSignal): Promise<boolean> =>
  new Promise((resolve) => {
    if (signal.aborted) {
      resolve(false);
      return;
    }
    const stop = (): void => {
      clearTimeout(timer);
      resolve(false);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener('abort', stop);
      resolve(true);
    }, ms);
    signal.addEventListener('abort', stop, { once: true });
  });

export const startLaunch = (
  plan: {
    readonly lease: number;
    readonly nodes: readonly NodeName[];
    readonly steps: readonly StepPlan[];
    readonly daemonNodes: readonly NodeName[];
    readonly stdin: StdinPlan;
  },
  ports: LaunchPorts,
): Launch => {
  const ended: EndedStep[] = [];
  const streams = new Map<NodeName, ClientStream>();
  const waiting = new Set(plan.steps.map((step) => step.node));
  const over = new AbortController();
  let stopped: { readonly code: ErrorCode; readonly message: string } | undefined;
  let stopping: Promise<unknown> = Promise.resolve();

  const end = (code: ErrorCode, message: string): void => {
    if (stopped !== undefined || over.signal.aborted) return;
    stopped = { code, message };
    stopping = Promise.all([
      ports.report({ event: 'ending', code, message }),
      askAll(plan.nodes, async (node) =>
        (await ports.fleet.session(node)).call('stop', { lease: plan.lease }, { timeoutMs: END_MS }),
      ),
      waitMs(END_MS, over.signal).then((late) => {
        if (late) for (const stream of streams.values()) stream.cancel();
      }),
    ]);
  };

  const noteEnd = async (step: EndedStep): Promise<void> => {
    ended.push(step);
    await ports.report({ event: 'ended', step });
    if (step.kind === 'daemon' && waiting.size > 0) {
      waitMs(DAEMON_GRACE_MS, over.signal).then((late) => {
        if (late)
          end(
            'launch-failed',
            `the MPI daemon on ${step.node} ${describeEnd(step.outcome)}; the job did not end`,
          );
      });
    }
  };

  const follow = async (step: StepPlan): Promise<void> => {
    const { node, head } = step;
    const stream = await opened.get(node);
    assert(stream !== undefined, 'each step of a launch has its node to itself');
    for await (const frame of stream) {
      if (frame.channel !== 'event') {
        await ports.sink.write(node, frame.channel, frame.bytes);
        continue;
      }
      const { event } = frame;
      switch (event.event) {
        case 'started':
          await ports.report({ event: 'started', node, kind: head.kind, unit: event.unit });
          break;
        case 'daemon-started':
          await ports.report({ event: 'started', node: event.node, kind: 'daemon', unit: event.unit });
          break;
        case 'daemon-ended':
          await noteEnd({ node: event.node, kind: 'daemon', outcome: event.outcome });
          break;
        case 'ended':
          await noteEnd({ node, kind: head.kind, outcome: event.outcome });
          break;
      }
    }
  };

  const open = async ({ node, head }: StepPlan): Promise<ClientStream> => {
    const session = await ports.fleet.session(node);
    const stream = await session.stream('step', head, { timeoutMs: ports.requestTimeoutMs });
    streams.set(node, stream);
    return stream;
  };
  const opened = new Map(plan.steps.map((step) => [step.node, open(step)]));

  const runOne = async (step: StepPlan): Promise<void> => {
    try {
      await follow(step);
    } catch (error) {
      const known = atNode(step.node, error);
      end(known.code, known.message);
    } finally {
      waiting.delete(step.node);
      streams.delete(step.node);
      await ports.sink.finish(step.node);
    }
  };

  const feedStdin = async (): Promise<void> => {
    if (plan.stdin.nodes.length === 0) return;
    await Promise.allSettled(opened.values());
    const readers = (): readonly ClientStream[] =>
      plan.stdin.nodes.flatMap((node) => streams.get(node) ?? []);
    for await (const bytes of plan.stdin.source) {
      if (over.signal.aborted || waiting.size === 0) return;
      // A step may end without reading its input, as `head` does; the others still get theirs.
      await Promise.allSettled(readers().map((stream) => stream.writeStdin(bytes)));
    }
    for (const stream of readers()) stream.endStdin();
  };

  const runAll = async (): Promise<LaunchOutcome> => {
    const steps = Promise.all(plan.steps.map(runOne));
    feedStdin().catch((error: unknown) => {
      end('io', `cannot read standard input: ${error instanceof Error ? error.message : String(error)}`);
    });
    await steps;
    over.abort();
    plan.stdin.close();
    await stopping;
    const outcome = decideOutcome({ ended, daemonNodes: plan.daemonNodes, stopped });
    if (outcome.kind === 'failure' && stopped === undefined) {
      const answers = await askAll(plan.nodes, async (node) =>
        (await ports.fleet.session(node)).call('stop', { lease: plan.lease }, { timeoutMs: END_MS }),
      );
      const dirty = answers.flatMap((answer) => (answer.ok ? [] : [answer.error.message]));
      if (dirty.length > 0) {
        return { ...outcome, message: `${outcome.message}; could not be stopped: ${dirty.join('; ')}` };
      }
    }
    return outcome;
  };

  return {
    outcome: runAll(),
    signal: (signal) => {
      for (const stream of streams.values()) stream.sendCommand({ command: 'signal', signal });
    },
    end,
    running: () => [...waiting],
  };
};

/** A failure of the launch as an error; the status of a job is not one. */
export const asError = (outcome: Extract<LaunchOutcome, { kind: 'failure' }>): XceError =>
  new XceError(outcome.code, outcome.message, {
    next: 'xce-sandbox status; xce-sandbox lease release --job JOB',
  });
