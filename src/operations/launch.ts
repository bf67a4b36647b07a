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
import { escapeBytes } from '../base/escape.ts';
import type { Epoch, NodeName } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import { OWN_PREFIX } from '../base/variables.ts';
import { type Answer, askAll, failures, joinFailures, values } from '../launch/fleet.ts';
import { setLongTimeout } from '../launch/long-timeout.ts';
import type { LaunchOutcome, Place } from '../launch/outcome.ts';
import type { OutputSink, OutputStream, Writer } from '../launch/output.ts';
import {
  type DaemonPlan,
  type Launch,
  type LaunchEvent,
  type StdinPlan,
  startLaunch,
} from '../launch/run.ts';
import { commandFor, type LeaseRef } from '../lease/reference.ts';
import { jobNodesOf } from '../lease/ticket.ts';
import type { LeaseView } from '../lease/view.ts';
import { daemonsOf, headArguments, type MpiLauncher } from '../mpi/launchers.ts';
import { foldNodes, parseNodeList } from '../nodes/hostlist.ts';
import { requireNodes } from '../nodes/resolve.ts';
import type { Resources, ResponseOf } from '../rpc/message.ts';
import { encodeStepInput } from '../sandbox/step-input.ts';
import type { Context } from './context.ts';
import { type OutputChoice, openOutput, planOutput } from './launch-output.ts';
import { type LeaseSelection, requireLeaseRef } from './lease-reference.ts';
import { tellNotices } from './notices.ts';
import { keepRenewing } from './renewal.ts';
import { stopNodes } from './stop.ts';
import { makeTickets, type Tickets } from './tickets.ts';
import { requireDirectory } from './work-directory.ts';

export type LaunchInput = {
  readonly selection: LeaseSelection;
  /** Hostlist expression; undefined: all nodes of the lease. */
  readonly nodes: string | undefined;
  readonly argv: readonly Buffer[];
  /** NAME=value, as exact bytes. */
  readonly environment: readonly Buffer[];
  readonly directory: Buffer | undefined;
  /** What starts the ranks of an MPI program from the first node; undefined: the command runs on each node. */
  readonly mpi: MpiLauncher | undefined;
  /** MPI: further words for the launcher. */
  readonly mpiOptions: readonly string[];
  /** MPI: ranks in all; undefined: one per slot. */
  readonly ranks: number | undefined;
  /** Tasks of each node, with MPI its slots; undefined: one, with MPI enough for `ranks`. */
  readonly tasksPerNode: number | undefined;
  /** Whether the first task that ends badly ends all. */
  readonly endsOnBadExit: boolean;
  readonly output: OutputChoice;
  readonly timeoutMs: number | undefined;
  /** What the job may use on each node; undefined: as its sandboxes are, or as the configuration says. */
  readonly resources: Resources | undefined;
  /** Which nodes get standard input; undefined: the head of an MPI program, else nobody. */
  readonly stdin: 'none' | 'all' | NodeName | undefined;
};

/** What the caller shows and feeds while the launch runs. */
export type LaunchPorts = {
  /** Where output goes: to the writers given for a stream, and elsewhere as the caller likes. */
  readonly makeSink: (files: Readonly<Partial<Record<OutputStream, Writer>>>) => OutputSink;
  readonly report: (event: LaunchEvent) => Promise<void>;
  readonly stdin: Pick<StdinPlan, 'source' | 'close'>;
  /**
   * Aborted when nobody wants the launch any more; heeded at once, until the first step starts. It has no more than two
   * listeners for each of the IN_FLIGHT_MAX nodes that are asked at the same time.
   */
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

/** Codes of a request whose answer is missing or cannot be read: what the node did is not known. */
const DOUBTFUL: readonly ErrorCode[] = [
  'timeout',
  'worker-unreachable',
  'cancelled',
  'protocol',
  'too-large',
  'bug',
];

/** Beyond what a worker waits for another one and its daemon: the launcher's own start. */
const DAEMON_MARGIN_MS = 10_000;

/** A launch before its first step. */
type Plan = {
  readonly ref: LeaseRef;
  /** Its name. */
  readonly launch: string;
  readonly nodes: readonly NodeName[];
  readonly resources: Resources | undefined;
  readonly cancelled: AbortSignal;
};

/** What the nodes say. Where nothing was `sent`, nothing was set up. */
type Prepared = {
  readonly sent: ReadonlySet<NodeName>;
  readonly answers: readonly Answer<ResponseOf<'prepare'>>[];
};

const askToPrepare = async (
  { settings, fleet }: Context,
  { launch, nodes, resources, cancelled }: Plan,
  { ticketOf }: Tickets,
): Promise<Prepared> => {
  const sent = new Set<NodeName>();
  const answers = await askAll(nodes, async (node) => {
    const session = await fleet.session(node, cancelled);
    const request = { ticket: ticketOf(node), launch, ...(resources === undefined ? {} : { resources }) };
    sent.add(node);
    return await session.call('prepare', request, {
      timeoutMs: settings.nodes.requestTimeoutMs,
      signal: cancelled,
    });
  });
  return { sent, answers };
};

/** Undoes what this launch set up; sandboxes that were there before, or that another launch uses by now, stay. */
const undoPrepare = async (
  context: Context,
  { launch }: Plan,
  { lease: { lease } }: Tickets,
  { sent, answers }: Prepared,
): Promise<void> => {
  const nodes = answers
    .filter(({ node }) => sent.has(node))
    .filter((answer) => (answer.ok ? answer.value.created : DOUBTFUL.includes(answer.error.code)))
    .map(({ node }) => node);
  for (const left of failures(await stopNodes(context, { lease, launch }, nodes))) {
    context.tell(`could not undo the preparation: ${left.message}`);
  }
};

const requireWanted = (cancelled: AbortSignal): void => {
  if (!cancelled.aborted) return;
  throw new XceError('cancelled', 'ended before anything was started', {
    unchanged: 'nothing was started on any node',
  });
};

/** Failures before anything has started, as one. What was given up is no fault of a node. */
const refusalOf =
  (cancelled: AbortSignal) =>
  (failed: readonly XceError[], what: string): XceError | undefined => {
    requireWanted(cancelled);
    return joinFailures(failed, what, {
      code: 'launch-refused',
      unchanged: 'nothing was started on any node',
    });
  };

/**
 * Every node must see the same storage as the ones before it: the log compares. Where they do not, what the first one
 * sees is recorded all the same: a workspace has been made there, and who walks it later must find that storage.
 */
const recordMounts = async (
  context: Context,
  ref: LeaseRef,
  prepared: readonly { readonly node: NodeName; readonly value: ResponseOf<'prepare'> }[],
): Promise<void> => {
  const seen = prepared.map(({ node, value: { mounts } }) => ({ node, mounts }));
  try {
    tellNotices(context, (await context.leases.recordMounts(ref, seen)).notices);
  } catch (error) {
    if (error instanceof XceError && error.code === 'mount-changed') {
      tellNotices(context, (await context.leases.recordMounts(ref, seen.slice(0, 1))).notices);
    }
    throw error;
  }
};

/** A worker of protocol 1.0 does not know the key and says nothing of it: the job would run without its limits. */
const requireResources = (
  resources: Resources | undefined,
  prepared: readonly { readonly node: NodeName; readonly value: ResponseOf<'prepare'> }[],
): void => {
  if (resources === undefined) return;
  const old = prepared.find(({ value }) => value.resources === undefined);
  if (old !== undefined) {
    throw new XceError('resource-unsupported', `the worker of ${old.node} knows no limits of one job`, {
      unchanged: 'nothing was started on any node',
      next: `install the same version on ${old.node}`,
    });
  }
};

/** Throws the first thing that keeps the steps from being started anywhere. */
const requirePrepared = async (
  context: Context,
  { ref, resources, cancelled }: Plan,
  { answers }: Prepared,
): Promise<void> => {
  const refusal = refusalOf(cancelled)(failures(answers), 'not every node is ready');
  if (refusal !== undefined) throw refusal;
  requireResources(resources, values(answers));
  await recordMounts(context, ref, values(answers));
  requireWanted(cancelled);
};

/** Prepares all nodes and does with them what must succeed before anything starts; else undoes what it did. */
const onPrepared = async <T>(
  context: Context,
  plan: Plan,
  tickets: Tickets,
  complete: () => Promise<T>,
): Promise<T> => {
  const prepared = await askToPrepare(context, plan, tickets);
  try {
    await requirePrepared(context, plan, prepared);
    return await complete();
  } catch (error) {
    await undoPrepare(context, plan, tickets, prepared);
    throw error;
  }
};

const chooseNodes = (lease: LeaseView, text: string | undefined): readonly NodeName[] => {
  const own = jobNodesOf(lease);
  return text === undefined
    ? own
    : requireNodes(parseNodeList(text), own, {
        among: `the nodes of lease ${lease.lease} (${foldNodes(own)})`,
        next: commandFor('lease show', { job: lease.job, attempt: lease.attempt }),
      });
};

const chooseStdin = (input: LaunchInput, nodes: readonly NodeName[]): readonly NodeName[] => {
  const steps = input.mpi === undefined ? nodes : nodes.slice(0, 1);
  switch (input.stdin) {
    case 'none':
      return [];
    case 'all':
      return steps;
    case undefined:
      return input.mpi === undefined ? [] : steps;
    default:
      return requireNodes([input.stdin], steps, {
        among: `none, all, or a node with a step (${foldNodes(steps)})`,
        next: 'xce-sandbox help launch',
      });
  }
};

/** Tasks are numbered through all nodes, those of one node in a row. */
const placeTasks = (nodes: readonly NodeName[], tasksPerNode: number): readonly Place[] => {
  if (tasksPerNode > LIMITS.tasksPerNodeMax) {
    throw new XceError(
      'usage',
      `${tasksPerNode} tasks on each node are over the limit of ${LIMITS.tasksPerNodeMax}`,
    );
  }
  return nodes.flatMap((node, index) =>
    Array.from({ length: tasksPerNode }, (_, own) => ({ node, task: index * tasksPerNode + own })),
  );
};

const NO_DAEMONS: DaemonPlan = { nodes: [], endWithHead: false };

/** The command of each step, and who reads what. Throws 'usage' or 'node-unknown' before any node is asked. */
const planSteps = (input: LaunchInput, nodes: readonly NodeName[]) => {
  if (input.mpi === undefined) {
    return {
      places: placeTasks(nodes, input.tasksPerNode ?? 1),
      kind: 'task' as const,
      argv: input.argv,
      daemons: NO_DAEMONS,
      stdinNodes: chooseStdin(input, nodes),
    };
  }
  const tasksPerNode = input.tasksPerNode ?? Math.ceil((input.ranks ?? nodes.length) / nodes.length);
  const slots = nodes.length * tasksPerNode;
  const ranks = input.ranks ?? slots;
  if (ranks > slots) {
    throw new XceError(
      'usage',
      `${ranks} ranks do not fit into ${tasksPerNode} on each of ${countOf(nodes.length, 'node')}`,
    );
  }
  return {
    places: nodes.slice(0, 1).map((node): Place => ({ node, task: null })),
    kind: 'head' as const,
    argv: headArguments(input.mpi, {
      nodes,
      ranks,
      tasksPerNode,
      options: input.mpiOptions,
      argv: input.argv,
    }),
    daemons: daemonsOf(input.mpi, { nodes, ranks, tasksPerNode }),
    stdinNodes: chooseStdin(input, nodes),
  };
};

/** Where the steps of one launch run, and what they have in common. */
type StepPlanOf = ReturnType<typeof planSteps>;

/** The variables that tell a task which of them it is. */
const taskVariables = ({ places }: StepPlanOf, { task }: Place): readonly Buffer[] =>
  task === null ? [] : [Buffer.from(`XCE_TASK=${task}`), Buffer.from(`XCE_TASKS=${places.length}`)];

/**
 * What a worker would refuse in any step, and one node would find sooner than another: the size of arguments and
 * environment, variables that a job may not set. Throws 'usage' or 'too-large'.
 */
const requireCommand = (context: Context, input: LaunchInput, steps: StepPlanOf, lease: LeaseView): void => {
  const { argv } = steps;
  const wanted = input.environment.find(
    (variable) => variable.toString('latin1', 0, OWN_PREFIX.length) === OWN_PREFIX,
  );
  if (wanted !== undefined) {
    throw new XceError(
      'usage',
      `environment: ${escapeBytes(wanted.subarray(0, wanted.indexOf('=')))} is not for a job to set: what begins with ${OWN_PREFIX} comes from the suite`,
    );
  }
  const longest = steps.places.reduce((long, place) => (place.node.length > long.node.length ? place : long));
  const environment = [...input.environment, ...taskVariables(steps, longest)];
  requireSize('arguments', argv, LIMITS.argvCountMax, LIMITS.argvBytesMax);
  requireSize('environment', environment, LIMITS.envCountMax, LIMITS.envBytesMax);
  const { instance } = context.settings.cluster;
  const nodes = lease.nodes.map(({ node }) => node);
  const { job, attempt, uid } = lease;
  encodeStepInput(
    {
      ...{ instance, job, attempt, lease: lease.lease, epoch: 1 as Epoch, uid, node: longest.node, nodes },
      ...{ writablePaths: [], workspaceRoot: null },
    },
    { step: 'x', argv, environment, directory: input.directory ?? null },
    { home: '/', site: { path: context.settings.sandbox.path, variables: [] } },
  );
};

/** As a message carries them. */
const requireSize = (what: string, list: readonly Buffer[], countMax: number, bytesMax: number): void => {
  const bytes = list.reduce((sum, item) => sum + item.length + 1, 0);
  if (list.length <= countMax && bytes <= bytesMax) return;
  throw new XceError(
    'too-large',
    `${what} too large: ${bytes} bytes in ${list.length} strings; a step takes ${bytesMax} bytes in ${countMax}`,
    { unchanged: 'nothing was started on any node' },
  );
};

const base64 = (bytes: Buffer): string => bytes.toString('base64');

/** Throws for everything that happens before the first step; afterwards the outcome says what it came to. */
export const launchJob = async (
  context: Context,
  input: LaunchInput,
  ports: LaunchPorts,
): Promise<LaunchResult> => {
  const { progress, settings } = context;
  const { cancelled } = ports;
  const found = await context.leases.showRunning(requireLeaseRef(input.selection));
  const ref: LeaseRef = { lease: found.lease };
  const nodes = chooseNodes(found, input.nodes);
  const steps = planSteps(input, nodes);
  const name = randomBytes(6).toString('hex');
  requireCommand(context, input, steps, found);
  const outputPlan = planOutput(input.output, found, steps.places);
  const { tickets, output, sink } = await progress.phase(
    `prepare ${countOf(nodes.length, 'node')}`,
    async () => {
      const tickets = await makeTickets(context, found, nodes, refusalOf(cancelled), cancelled);
      const plan: Plan = { ref, launch: name, nodes, resources: input.resources, cancelled };
      return await onPrepared(context, plan, tickets, async () => {
        const { ticketOf } = tickets;
        if (input.directory !== undefined)
          await requireDirectory(context, { launch: name, ticketOf }, nodes, input.directory, cancelled);
        requireWanted(cancelled);
        const output = await openOutput(outputPlan);
        return { tickets, output, sink: ports.makeSink(output.writers) };
      });
    },
  );
  const { lease } = tickets;
  // A step that waits for its turn may begin after the first tickets have ended.
  let newest = tickets;
  const argv = steps.argv.map(base64);
  const environment = input.environment.map(base64);
  const stdinNodes = new Set(steps.stdinNodes);
  const launch = startLaunch(
    {
      lease: lease.lease,
      launch: name,
      nodes,
      steps: steps.places.map((place) => ({
        ...place,
        kind: steps.kind,
        head: () => ({
          ticket: newest.ticketOf(place.node),
          launch: name,
          step: place.task === null ? name : `${name}${place.task.toString(36)}`,
          argv,
          environment: [...environment, ...taskVariables(steps, place).map(base64)],
          directory: input.directory === undefined ? null : base64(input.directory),
          stdin: stdinNodes.has(place.node),
        }),
      })),
      daemons: steps.daemons,
      stdin: { nodes: steps.stdinNodes, ...ports.stdin },
      endsOnBadExit: input.endsOnBadExit,
    },
    {
      fleet: context.fleet,
      sink,
      report: ports.report,
      requestTimeoutMs: settings.nodes.requestTimeoutMs,
      stopTimeoutMs: settings.sandbox.stopTimeoutMs,
      // A worker that waits in vain says what was missing, and ends the launcher so.
      daemonStartMs: settings.nodes.connectTimeoutMs + settings.mpi.agentTimeoutMs + DAEMON_MARGIN_MS,
    },
  );
  const renewal = keepRenewing(context, tickets, nodes, {
    onRenewed: (renewed) => {
      newest = renewed;
    },
    onFailure: ({ code, message }) => launch.end(code, `the lease was not renewed in time: ${message}`),
  });
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
    const outcome = await launch.outcome;
    // What was not written is missing, whatever the job says.
    await output.close();
    return { lease: lease.lease, job, uid, nodes, outcome };
  } finally {
    limit?.clear();
    await renewal.stop();
  }
};
