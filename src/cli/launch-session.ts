/** The terminal's side of a launch: output, input, and the signals of whoever sits there. */
import { setMaxListeners } from 'node:events';
import { countOf } from '../base/count.ts';
import { escapeBytes } from '../base/escape.ts';
import type { NodeName } from '../base/ids.ts';
import { IN_FLIGHT_MAX } from '../launch/fleet.ts';
import { describeEnd, type LaunchOutcome } from '../launch/outcome.ts';
import {
  createEventSink,
  createLabelSink,
  createPlainSink,
  createSplitSink,
  type OutputSink,
  type OutputStream,
  type Writer,
} from '../launch/output.ts';
import { asError, type Launch, type LaunchEvent } from '../launch/run.ts';
import { foldNodes } from '../nodes/hostlist.ts';
import type { LaunchPorts, LaunchResult } from '../operations/launch.ts';
import { preferSmallHeap, preferUsualHeap } from '../os/heap.ts';
import { OUT_OF_MEMORY } from '../rpc/message.ts';
import { isTerminal, writeErr, writeOut, writeTalk } from './print.ts';

const NEWLINE = 0x0a;
const TAB = 0x09;

/** Job-chosen bytes for a terminal: lines and tabs stay, everything that could steer it is shown as an escape. */
const showBytes = (bytes: Uint8Array): string => {
  const parts: string[] = [];
  let start = 0;
  for (let at = 0; at <= bytes.length; at += 1) {
    const byte = bytes[at];
    if (byte !== undefined && byte !== NEWLINE && byte !== TAB) continue;
    parts.push(escapeBytes(bytes.subarray(start, at)));
    if (byte !== undefined) parts.push(String.fromCharCode(byte));
    start = at + 1;
  }
  return parts.join('');
};

const writeLine = (event: Readonly<Record<string, unknown>>): Promise<void> =>
  writeOut(`${JSON.stringify(event)}\n`);

type SinkOptions = { readonly json: boolean; readonly label: boolean; readonly withTasks: boolean };

const OWN_STREAMS: Readonly<Record<OutputStream, Writer>> = {
  stdout: (bytes) => writeOut(isTerminal(1) ? showBytes(bytes) : bytes),
  stderr: (bytes) => writeErr(isTerminal(2) ? showBytes(bytes) : bytes),
};

/** Files get bytes; what goes to our own streams are bytes as well, or events. */
const chooseSink =
  (options: SinkOptions): LaunchPorts['makeSink'] =>
  (files) => {
    const writers = { ...OWN_STREAMS, ...files };
    const bytes = options.label ? createLabelSink(writers, options) : createPlainSink(writers);
    if (!options.json) return bytes;
    const events = createEventSink(writeLine);
    const sinkOf = (stream: OutputStream): OutputSink => (files[stream] === undefined ? events : bytes);
    return createSplitSink({ stdout: sinkOf('stdout'), stderr: sinkOf('stderr') });
  };

/**
 * Signals that are the job's business, with their numbers on Linux. SIGTSTP among them does not stop this process as
 * well: the nodes would take one that is silent for lost, and end the job.
 */
const FORWARDED = { SIGUSR1: 10, SIGUSR2: 12, SIGTSTP: 20, SIGCONT: 18, SIGQUIT: 3 } as const;

/** What still runs, in a line that a terminal shows. */
const describeRunning = (launch: Launch): string => {
  const places = launch.running();
  const nodes = foldNodes([...new Set(places.map(({ node }) => node))]);
  return `${countOf(places.length, 'step')} running on ${shorten(nodes)}`;
};

const LIST_CHARS_MAX = 400;
const shorten = (list: string): string =>
  list.length > LIST_CHARS_MAX ? `${list.slice(0, LIST_CHARS_MAX)}…` : list;

/**
 * At a terminal the first Ctrl-C shows what runs and the second ends the job; elsewhere the first one ends it, as
 * SIGTERM and SIGHUP always do. Before anything runs, each of them ends the launch.
 */
const steer = (): Pick<LaunchPorts, 'cancelled' | 'onRunning'> => {
  const cancelled = new AbortController();
  setMaxListeners(2 * IN_FLIGHT_MAX, cancelled.signal);
  let launch: Launch | undefined;
  let isWarned = !process.stdin.isTTY;
  const end = (how: string): void => {
    cancelled.abort();
    launch?.end('cancelled', `ended by ${how}`);
  };
  process.on('SIGINT', () => {
    if (launch === undefined || isWarned) {
      end('Ctrl-C');
      return;
    }
    isWarned = true;
    writeTalk(`xce-sandbox: ${describeRunning(launch)}; press Ctrl-C again to end the job\n`);
  });
  for (const name of ['SIGTERM', 'SIGHUP'] as const) process.on(name, () => end(name));
  for (const [name, number] of Object.entries(FORWARDED)) process.on(name, () => launch?.signal(number));
  return {
    cancelled: cancelled.signal,
    onRunning: (running) => {
      launch = running;
      if (cancelled.signal.aborted) running.end('cancelled', 'ended before it ran');
    },
  };
};

export const openLaunchSession = (options: SinkOptions): LaunchPorts => {
  // A thousand nodes are a thousand connections.
  preferSmallHeap();
  let isReading = false;
  return {
    makeSink: chooseSink(options),
    report: async (event: LaunchEvent) => {
      if (options.json) await writeLine(event);
    },
    stdin: {
      source: (async function* () {
        isReading = true;
        yield* process.stdin as AsyncIterable<Uint8Array>;
      })(),
      close: () => {
        if (isReading) process.stdin.destroy();
      },
    },
    ...steer(),
  };
};

const statusOf = (outcome: LaunchOutcome): number => {
  if (outcome.kind === 'failure') throw asError(outcome);
  return outcome.exitStatus;
};

/** What lies behind the status of a job, in words here and for the JSON. */
const tellCause = (outcome: LaunchOutcome): { readonly cause?: string; readonly causeNode?: NodeName } => {
  if (outcome.kind !== 'job') return {};
  const { starved, lostDaemon } = outcome;
  if (starved !== undefined) {
    writeTalk(`xce-sandbox: a step on ${starved} needed more memory than the job may use (oom-kill)\n`);
    return { cause: OUT_OF_MEMORY, causeNode: starved };
  }
  if (lostDaemon === undefined) return {};
  writeTalk(`xce-sandbox: the MPI daemon on ${lostDaemon.node} ${describeEnd(lostDaemon.outcome)}\n`);
  return { cause: 'mpi-daemon', causeNode: lostDaemon.node };
};

/** Says how it ended and returns the job's exit status; throws for a failure of the launch. */
export const finishLaunch = async (
  options: { readonly json: boolean },
  result: LaunchResult,
): Promise<number> => {
  preferUsualHeap();
  const status = statusOf(result.outcome);
  const { lease, job, uid, nodes } = result;
  const node = result.outcome.kind === 'job' ? (result.outcome.node ?? null) : null;
  const cause = tellCause(result.outcome);
  if (options.json) {
    await writeLine({ event: 'result', lease, job, uid, nodes, exitStatus: status, node, ...cause });
  } else if (node !== null) writeTalk(`xce-sandbox: the job's status is ${status}, from ${node}\n`);
  return status;
};
