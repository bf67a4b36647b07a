/**
 * Runs the steps of one launch on prepared nodes and says what they came to.
 *
 *   running ── every stream ended, nothing amiss ───────────────────────> over
 *      │                                                                   ▲
 *      └─ node or unit lost, daemon failed, reader gone, told to end,      │
 *         a task ended badly and that is to end all                        │
 *                └─> ending ── every stream ended, or given up ────────────┘
 *
 * `ending` is entered once and keeps the first reason: the verb `stop` goes to every node, so that nothing of
 * the launch lives on anywhere; other launches of the job go on. What has not ended within the stop timeout and
 * END_MARGIN_MS is given up: a silent node, and a reader of the output that takes nothing, hold the launch no longer
 * than that, and one whose connection is still being opened no longer than it takes to know that it cannot be stopped.
 */
import { setMaxListeners } from 'node:events';
import { assert, asXceError, type ErrorCode, messageOf, XceError } from '../base/errors.ts';
import type { NodeName } from '../base/ids.ts';
import { createLanes } from '../base/lanes.ts';
import { unlessAborted } from '../base/unless-aborted.ts';
import { foldNodes } from '../nodes/hostlist.ts';
import type { RequestOf, StreamEvent } from '../rpc/message.ts';
import type { ClientStream, RpcSession } from '../rpc/session.ts';
import { askAll, atNode, type Fleet, failures, tellFailures } from './fleet.ts';
import {
  decideOutcome,
  describeEnd,
  describeStep,
  type EndedStep,
  isGood,
  isOwnEnd,
  type LaunchOutcome,
  type Place,
} from './outcome.ts';
import type { OutputSink } from './output.ts';

/** Beyond the stop timeout of a node: the way to it and back. */
const END_MARGIN_MS = 5000;
/** A daemon of a running job has failed: the head ends by itself within this time or is ended. */
const DAEMON_GRACE_MS = 3000;
/** The last daemon of a running job has ended at the head's word: there is nothing left for the head to do. */
const DAEMON_LAST_MS = 8000;
/** Each of these waits for units to stop on another node, and the connection is there already. */
const STOPS_IN_FLIGHT_MAX = 1024;
/** Each waits for a unit to start on another node. */
const OPENINGS_MAX = 256;

export type StepPlan = Place & {
  readonly kind: RequestOf<'step'>['kind'];
  /** Made when it is sent: with its ticket it is large, and there are many. */
  readonly head: () => Omit<RequestOf<'step'>, 'kind'>;
};

export type LaunchEvent =
  | ({ readonly event: 'started'; readonly kind: EndedStep['kind']; readonly unit: string } & Place)
  | { readonly event: 'ended'; readonly step: EndedStep }
  /** `code` is null when the job's own status is what it comes to. */
  | { readonly event: 'ending'; readonly code: ErrorCode | null; readonly message: string };

/**
 * Who gets standard input. `source` is read only if somebody does; `close` ends a read that is under way. All
 * readers get it at the pace of the slowest that still runs.
 */
export type StdinPlan = {
  readonly nodes: readonly NodeName[];
  readonly source: AsyncIterable<Uint8Array>;
  readonly close: () => void;
};

export type Launch = {
  /** Settles once everything has ended; never rejects for what steps, nodes or readers do. */
  readonly outcome: Promise<LaunchOutcome>;
  /** Passes a signal on to every step. */
  signal(signal: number): void;
  /** Ends every step on every node; the first reason counts. */
  end(code: ErrorCode, message: string): void;
  /** Steps that have not ended yet. */
  running(): readonly Place[];
};

/** The daemons that the launcher of an MPI program has on other nodes than its own. */
export type DaemonPlan = {
  /** Those that must run; there may be others. */
  readonly nodes: readonly NodeName[];
  /** Whether they end at the word of the head, which then has no more to do. */
  readonly endWithHead: boolean;
};

export type LaunchPlan = {
  readonly lease: number;
  /** Its name. */
  readonly launch: string;
  readonly nodes: readonly NodeName[];
  /** No two with the same node and task. */
  readonly steps: readonly StepPlan[];
  /** Whether the first task that ends badly ends all. */
  readonly endsOnBadExit: boolean;
  readonly daemons: DaemonPlan;
  readonly stdin: StdinPlan;
};

export type LaunchPorts = {
  readonly fleet: Fleet;
  readonly sink: OutputSink;
  readonly report: (event: LaunchEvent) => Promise<void>;
  readonly requestTimeoutMs: number;
  /** How long a node may take to stop what runs there. */
  readonly stopTimeoutMs: number;
  /** How long a launcher's daemon may take to start on another node; longer than its worker waits for it. */
  readonly daemonStartMs: number;
};

/**
 * How long the head of an MPI job may outlive its daemons. After one that failed: DAEMON_GRACE_MS. After ones that ended
 * well, if they end at the head's word: without a further sign of life `quietMs`, because the rest of a large job may
 * take its time, and DAEMON_LAST_MS once there is no rest. The reader of its output may take any time.
 */
const createHeadLimit = (endWithHead: boolean, quietMs: number, onLate: (message: string) => void) => {
  let timer: NodeJS.Timeout | undefined;
  let isFinal = false;
  let running = 0;
  let message: string | undefined;
  const arm = (ms: number): void => {
    const text = message;
    if (text !== undefined) timer = setTimeout(() => onLate(text), ms);
  };
  const pause = (): void => {
    if (!isFinal) clearTimeout(timer);
  };
  const resume = (): void => {
    if (isFinal) return;
    pause();
    arm(running === 0 ? Math.min(quietMs, DAEMON_LAST_MS) : quietMs);
  };
  return {
    daemonStarted: (): void => {
      running += 1;
    },
    daemonEnded: ({ node, outcome }: EndedStep): void => {
      running -= 1;
      if (isFinal || (isGood(outcome) && !endWithHead)) return;
      message = `the MPI daemon on ${node} ${describeEnd(outcome)}; the job did not end`;
      if (isGood(outcome)) {
        resume();
      } else {
        pause();
        isFinal = true;
        arm(DAEMON_GRACE_MS);
      }
    },
    /** Output waits for its reader: that is no silence. */
    pause,
    resume,
    stop: (): void => {
      isFinal = true;
      clearTimeout(timer);
    },
  };
};

/**
 * How long the daemons of an MPI job may take to start, from the start of the head or of the daemon before: a launcher
 * whose agent hangs, or ends well without a daemon, waits for ever.
 */
const createStartLimit = (nodes: readonly NodeName[], limitMs: number, onLate: (message: string) => void) => {
  const awaited = new Set(nodes);
  let timer: NodeJS.Timeout | undefined;
  const tellLate = (): void =>
    onLate(`no MPI daemon started on ${foldNodes([...awaited])} within ${limitMs / 1000} s`);
  const arm = (): void => {
    clearTimeout(timer);
    if (awaited.size > 0) timer = setTimeout(tellLate, limitMs);
  };
  return {
    headStarted: arm,
    daemonStarted: (node: NodeName): void => {
      awaited.delete(node);
      arm();
    },
    stop: (): void => {
      awaited.clear();
      clearTimeout(timer);
    },
  };
};

export const startLaunch = (plan: LaunchPlan, ports: LaunchPorts): Launch => {
  const places = new Set(plan.steps.map(({ node, task }) => `${node} ${task}`));
  assert(places.size === plan.steps.length, 'each step of a launch has its place to itself');
  const waiting = new Set(plan.steps);
  const endMs = ports.stopTimeoutMs + END_MARGIN_MS;
  const ended: EndedStep[] = [];
  const streams = new Map<StepPlan, ClientStream>();
  const givenUp = new AbortController();
  // One listener for each node that is being opened or whose output waits.
  setMaxListeners(0, givenUp.signal);
  let isOver = false;
  let stopped: { readonly code: ErrorCode; readonly message: string } | undefined;
  let badStep: EndedStep | undefined;
  let stopping: Promise<readonly XceError[]> = Promise.resolve([]);
  let giveUpTimer: NodeJS.Timeout | undefined;

  const stopAll = async (): Promise<readonly XceError[]> =>
    failures(
      await askAll(
        plan.nodes,
        async (node) => {
          const session = await ports.fleet.session(node);
          const { lease, launch } = plan;
          return await session.call('stop', { lease, launch }, { timeoutMs: endMs });
        },
        STOPS_IN_FLIGHT_MAX,
      ),
    );

  const giveUp = (): void => {
    givenUp.abort(new XceError('cancelled', `it did not end within ${endMs} ms`));
    for (const stream of streams.values()) stream.cancel();
  };

  const isEnding = (): boolean => stopped !== undefined || badStep !== undefined;

  const beginEnd = (code: ErrorCode | null, message: string): void => {
    headLimit.stop();
    startLimit.stop();
    giveUpTimer = setTimeout(giveUp, endMs);
    // A reader that takes nothing any more cannot be told; the nodes must be stopped all the same.
    const told = unlessAborted(givenUp.signal, ports.report({ event: 'ending', code, message })).catch(
      () => undefined,
    );
    stopping = Promise.all([stopAll(), told]).then(([unstopped]) => unstopped);
  };

  const end = (code: ErrorCode, message: string): void => {
    if (isEnding() || isOver) return;
    stopped = { code, message };
    beginEnd(code, message);
  };

  const endFor = (step: EndedStep): void => {
    if (isEnding() || isOver) return;
    badStep = step;
    beginEnd(null, describeStep(step));
  };

  // A worker waits up to three stop timeouts for a daemon that outlives its agent, before the head's end is told.
  const headLimit = createHeadLimit(
    plan.daemons.endWithHead,
    3 * ports.stopTimeoutMs + END_MARGIN_MS,
    (message) => end('launch-failed', message),
  );

  const startLimit = createStartLimit(plan.daemons.nodes, ports.daemonStartMs, (message) =>
    end('launch-failed', message),
  );

  const fail = (error: XceError): void => end(error.code, error.message);

  /** Hands something to the reader, who sets the pace; one that takes nothing any more ends the launch. */
  const give = async (work: Promise<void>): Promise<void> => {
    try {
      await unlessAborted(givenUp.signal, work);
    } catch (error) {
      fail(asXceError(error));
      throw error;
    }
  };
  const tell = (event: LaunchEvent): Promise<void> => give(ports.report(event));

  const noteEnd = async (step: EndedStep): Promise<void> => {
    ended.push(step);
    const told = tell({ event: 'ended', step });
    if (step.kind === 'daemon') headLimit.daemonEnded(step);
    else if (!isOwnEnd(step.outcome)) end('sandbox-lost', describeStep(step));
    else if (plan.endsOnBadExit && !isGood(step.outcome)) endFor(step);
    if (step.kind === 'head') startLimit.stop();
    await told;
  };

  const note = async ({ node, task, kind }: StepPlan, event: StreamEvent): Promise<void> => {
    switch (event.event) {
      case 'started':
        if (kind === 'head') startLimit.headStarted();
        return await tell({ event: 'started', node, task, kind, unit: event.unit });
      case 'daemon-started':
        headLimit.daemonStarted();
        startLimit.daemonStarted(event.node);
        return await tell({
          event: 'started',
          node: event.node,
          task: null,
          kind: 'daemon',
          unit: event.unit,
        });
      case 'daemon-ended':
        return await noteEnd({ node: event.node, task: null, kind: 'daemon', outcome: event.outcome });
      case 'ended':
        return await noteEnd({ node, task, kind, outcome: event.outcome });
    }
  };

  /** The stop of a launch that is ending may have passed a node already whose step still waits for its turn. */
  const requireGoing = (): void => {
    if (isEnding()) throw new XceError('cancelled', 'the launch ended before its step began');
  };

  /** Not within open(), which would hold what is sent until it is answered. */
  const send = (session: RpcSession, { kind, head }: StepPlan): Promise<ClientStream> =>
    session.stream(
      'step',
      { ...head(), kind },
      { timeoutMs: ports.requestTimeoutMs, signal: givenUp.signal },
    );

  const open = async (step: StepPlan): Promise<ClientStream> => {
    requireGoing();
    const session = await ports.fleet.session(step.node, givenUp.signal);
    requireGoing();
    const stream = await send(session, step);
    streams.set(step, stream);
    return stream;
  };

  const follow = async (step: StepPlan, opened: Promise<ClientStream>): Promise<void> => {
    for await (const frame of await opened) {
      if (frame.channel === 'event') {
        await note(step, frame.event);
      } else {
        headLimit.pause();
        await give(ports.sink.write(step, frame.channel, frame.bytes));
        headLimit.resume();
      }
    }
  };

  const runOne = async (step: StepPlan, opened: Promise<ClientStream>): Promise<void> => {
    await follow(step, opened).catch((error: unknown) => fail(atNode(step.node, error)));
    waiting.delete(step);
    streams.delete(step);
    // give() has said why.
    await give(ports.sink.finish(step)).catch(() => undefined);
  };

  const feedStdin = async (opened: readonly Promise<ClientStream>[]): Promise<void> => {
    if (plan.stdin.nodes.length === 0) return;
    await Promise.allSettled(opened);
    const chosen = plan.steps.filter(({ node }) => plan.stdin.nodes.includes(node));
    const readers = (): readonly ClientStream[] => chosen.flatMap((step) => streams.get(step) ?? []);
    if (readers().length === 0) return;
    for await (const bytes of plan.stdin.source) {
      // A step may end without reading its input, as `head` does; the others still get theirs.
      await Promise.allSettled(readers().map((stream) => stream.writeStdin(bytes)));
      if (readers().length === 0) return;
    }
    for (const stream of readers()) stream.endStdin();
  };

  const runAll = async (): Promise<LaunchOutcome> => {
    const inLane = createLanes(OPENINGS_MAX);
    const steps = plan.steps.map((step) => ({ step, opened: inLane(() => open(step)) }));
    feedStdin(steps.map(({ opened }) => opened)).catch((error: unknown) => {
      end('io', `cannot read standard input: ${messageOf(error)}`);
    });
    await Promise.all(steps.map(({ step, opened }) => runOne(step, opened)));
    headLimit.stop();
    const outcome = decideOutcome({ ended, daemonNodes: plan.daemons.nodes, stopped, badStep });
    // A failure leaves nothing running, also one that shows only now.
    if (outcome.kind === 'failure') end(outcome.code, outcome.message);
    isOver = true;
    plan.stdin.close();
    const unstopped = await stopping;
    clearTimeout(giveUpTimer);
    if (unstopped.length === 0) return outcome;
    const { code, message } =
      outcome.kind === 'failure'
        ? outcome
        : {
            code: 'launch-failed' as const,
            message: badStep === undefined ? 'the job' : describeStep(badStep),
          };
    return { kind: 'failure', code, message: `${message}; could not be stopped: ${tellFailures(unstopped)}` };
  };

  return {
    outcome: runAll(),
    signal: (signal) => {
      for (const stream of streams.values()) stream.sendCommand({ command: 'signal', signal });
    },
    end,
    running: () => [...waiting].map(({ node, task }) => ({ node, task })),
  };
};

/** A failure of the launch as an error; the status of a job is not one. */
export const asError = (outcome: Extract<LaunchOutcome, { kind: 'failure' }>): XceError =>
  new XceError(outcome.code, outcome.message, {
    next: 'xce-sandbox status shows what is left; launch again, or release the lease',
  });
