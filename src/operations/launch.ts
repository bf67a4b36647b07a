/**
 * Runs a command on every node of a lease, or an MPI program across them.
 *
 *   challenge all -> bind in the log -> tickets -> prepare all -> mounts in the log -> steps -> outcome
 *
 * Nothing of the job starts before every node is ready; one refusal undoes what this launch had prepared. While
 * steps run, the lease and the nodes' tickets are renewed well before they end.
 */

import { randomBytes } from 'node:crypto';
import { countOf } from '../base/count.ts';
import { formatDuration } from '../base/duration.ts';
import { type ErrorCode, XceError } from '../base/errors.ts';
import type { NodeName } from '../base/ids.ts';
import { type Answer, askAll, failures, joinFailures, values } from '../launch/fleet.ts';
import { setLongTimeout } from '../launch/long-timeout.ts';
import type { LaunchOutcome } from '../launch/outcome.ts';
import type { OutputSink } from '../launch/output.ts';
import { type Launch, type LaunchEvent, type StdinPlan, startLaunch } from '../launch/run.ts';
import { commandFor, type LeaseRef } from '../lease/reference.ts';
import type { LeaseView } from '../lease/view.ts';
import { prterunArguments } from '../mpi/prrte.ts';
import { foldNodes, parseNodeList } from '../nodes/hostlist.ts';
import { requireNodes } from '../nodes/resolve.ts';
import type { ResponseOf } from '../rpc/message.ts';
import type { Context } from './context.ts';
import { type LeaseSelection, requireLeaseRef } from './lease-reference.ts';
import { tellNotices } from './notices.ts';
import { keepRenewing } from './renewal.ts';
import { stopNodes } from './stop.ts';
import { makeTickets, type Tickets, ticketOf } from './tickets.ts';

export type LaunchInput = {
  readonly selection: LeaseSelection;
  /** Hostlist expression; undefined: all nodes of the lease. */
  readonly nodes: string | undefined;
  readonly argv: readonly Buffer[];
  /** NAME=value, as exact bytes. */
  readonly environment: readonly Buffer[];
  readonly directory: Buffer | undefined;
  readonly mpi: boolean;
  /** MPI: ranks in all; undefined: one per slot. */
  readonly ranks: number | undefined;
  /** MPI: slots of each node; undefined: enough for `ranks`, or one. */
  readonly tasksPerNode: number | undefined;
  readonly timeoutMs: number | undefined;
  /** Which nodes get standard input; undefined: the head of an MPI program, else nobody. */
  readonly stdin: 'none' | 'all' | NodeName | undefined;
};

/** What the caller shows and feeds while the launch runs. */
export type LaunchPorts = {
  readonly sink: OutputSink;
  readonly report: (event: LaunchEvent) => Promise<void>;
  readonly stdin: Pick<StdinPlan, 'source' | 'close'>;
  /** Aborted when nobody wants the launch any more; heeded until the first step starts. */
  readonly cancelled: AbortSignal;
  /** Called once, with the means to signal or end the launch. */
  readonly onRunning: (launch: Launch) => void;
};

export type LaunchResult = {
  readonly lease: number;
  readonly job: string;
  readonly uid: number;
  readonly nodes: readonly NodeName[];
  readonly outcome: LaunchOutcome;
};

/** Failures before anything has started, as one. */
const refuseLaunch = (failed: readonly XceError[], what: string): XceError | undefined =>
  joinFailures(failed, what, {
    code: 'launch-refused',
    unchanged: 'nothing was started on any node',
  });

/** Codes of a request whose answer is missing or cannot be read: what the node did is not known. */
const DOUBTFUL: readonly ErrorCode[] = [
  'timeout',
  'worker-unreachable',
  'cancelled',
  'protocol',
  'too-large',
  'bug',
];

/** Undoes what this launch set up; sandboxes that were there before stay. */
const undoPrepare = async (
  context: Context,
  lease: LeaseView,
  prepared: readonly Answer<ResponseOf<'prepare'>>[],
): Promise<void> => {
  const nodes = prepared
    .filter((answer) => (answer.ok ? answer.value.created : DOUBTFUL.includes(answer.error.code)))
    .map(({ node }) => node);
  for (const left of failures(await stopNodes(context, lease.lease, nodes))) {
    context.tell(`could not undo the preparation: ${left.message}`);
  }
};

/** Every node must see the same storage as the ones before it: the log compares. Throws the first refusal. */
const recordMounts = async (
  context: Context,
  ref: LeaseRef,
  prepared: readonly { readonly node: NodeName; readonly value: ResponseOf<'prepare'> }[],
): Promise<void> => {
  const mounts = new Map(prepared.map(({ node, value }) => [node, value.mounts]));
  // Together, because commits that wait together share one write of the log.
  const answers = await askAll([...mounts.keys()], async (node) => {
    tellNotices(context, (await context.leases.recordMounts(ref, node, mounts.get(node) ?? [])).notices);
  });
  const [first] = failures(answers);
  if (first !== undefined) throw first;
};

const prepareNodes = async (
  context: Context,
  ref: LeaseRef,
  nodes: readonly NodeName[],
  cancelled: AbortSignal,
): Promise<Tickets> => {
  const { settings, fleet } = context;
  const ticketed = await makeTickets(context, ref, nodes, refuseLaunch);
  const { lease, tickets } = ticketed;
  const prepared = await askAll(nodes, async (node) => {
    const session = await fleet.session(node);
    return await session.call(
      'prepare',
      { ticket: ticketOf(tickets, node) },
      { timeoutMs: settings.nodes.requestTimeoutMs },
    );
  });
  try {
    const refusal = refuseLaunch(failures(prepared), 'not every node is ready');
    if (refusal !== undefined) throw refusal;
    await recordMounts(context, ref, values(prepared));
    if (cancelled.aborted) {
      throw new XceError('cancelled', 'ended before anything was started', {
        unchanged: 'nothing was started on any node',
      });
    }
    return ticketed;
  } catch (error) {
    await undoPrepare(context, lease, prepared);
    throw error;
  }
};

const chooseNodes = (lease: LeaseView, text: string | undefined): readonly NodeName[] => {
  const own = lease.nodes.filter((node) => node.role === 'job').map(({ node }) => node);
  return text === undefined
    ? own
    : requireNodes(parseNodeList(text), own, {
        among: `the nodes of lease ${lease.lease} (${foldNodes(own)})`,
        next: commandFor('lease show', { job: lease.job, attempt: lease.attempt }),
      });
};

const chooseStdin = (input: LaunchInput, nodes: readonly NodeName[]): readonly NodeName[] => {
  const steps = input.mpi ? nodes.slice(0, 1) : nodes;
  switch (input.stdin) {
    case 'none':
      return [];
    case 'all':
      return steps;
    case undefined:
      return input.mpi ? steps : [];
    default:
      return requireNodes([input.stdin], steps, {
        among: `none, all, or a node with a step (${foldNodes(steps)})`,
        next: 'xce-sandbox help launch',
      });
  }
};

/** The command of each step, and who reads what. Throws 'usage' or 'node-unknown' before any node is asked. */
const planSteps = (input: LaunchInput, nodes: readonly NodeName[]) => {
  const tasksPerNode = input.tasksPerNode ?? Math.ceil((input.ranks ?? nodes.length) / nodes.length);
  const slots = nodes.length * tasksPerNode;
  const ranks = input.ranks ?? slots;
  if (input.mpi && ranks > slots) {
    throw new XceError(
      'usage',
      `${ranks} ranks do not fit into ${tasksPerNode} on each of ${countOf(nodes.length, 'node')}`,
    );
  }
  return {
    nodes: input.mpi ? nodes.slice(0, 1) : nodes,
    kind: input.mpi ? ('head' as const) : ('task' as const),
    argv: input.mpi ? prterunArguments({ nodes, ranks, tasksPerNode, argv: input.argv }) : input.argv,
    daemonNodes: input.mpi ? nodes.slice(1) : [],
    stdinNodes: chooseStdin(input, nodes),
  };
};

/** Throws for everything that happens before the first step; afterwards the outcome says what it came to. */
export const launchJob = async (
  context: Context,
  input: LaunchInput,
  ports: LaunchPorts,
): Promise<LaunchResult> => {
  const { progress, settings } = context;
  const found = await context.leases.show(requireLeaseRef(input.selection));
  const ref: LeaseRef = { lease: found.lease };
  const nodes = chooseNodes(found, input.nodes);
  const steps = planSteps(input, nodes);
  const ticketed = await progress.phase(`prepare ${countOf(nodes.length, 'node')}`, () =>
    prepareNodes(context, ref, nodes, ports.cancelled),
  );
  const { lease, tickets } = ticketed;
  const base64 = (bytes: Buffer): string => bytes.toString('base64');
  const step = randomBytes(6).toString('hex');
  const launch = startLaunch(
    {
      lease: lease.lease,
      nodes,
      steps: steps.nodes.map((node) => ({
        node,
        head: {
          ticket: ticketOf(tickets, node),
          step,
          kind: steps.kind,
          argv: steps.argv.map(base64),
          environment: input.environment.map(base64),
          directory: input.directory === undefined ? null : base64(input.directory),
          stdin: steps.stdinNodes.includes(node),
        },
      })),
      daemonNodes: steps.daemonNodes,
      stdin: { nodes: steps.stdinNodes, ...ports.stdin },
    },
    {
      fleet: context.fleet,
      sink: ports.sink,
      report: ports.report,
      requestTimeoutMs: settings.nodes.requestTimeoutMs,
      stopTimeoutMs: settings.sandbox.stopTimeoutMs,
    },
  );
  const renewal = keepRenewing(context, ticketed, nodes, ({ code, message }) =>
    launch.end(code, `the lease was not renewed in time: ${message}`),
  );
  const { timeoutMs } = input;
  const limit =
    timeoutMs === undefined
      ? undefined
      : setLongTimeout(
          () => launch.end('timeout', `the time limit of ${formatDuration(timeoutMs)} is over`),
          timeoutMs,
        );
  try {
    ports.onRunning(launch);
    const { job, uid } = lease;
    return { lease: lease.lease, job, uid, nodes, outcome: await launch.outcome };
  } finally {
    limit?.clear();
    await renewal.stop();
  }
};
