/**
 * Runs a command on every node of a lease, or an MPI program across them.
 *
 *   challenge all -> bind in the log -> tickets -> prepare all -> mounts in the log -> steps -> outcome
 *
 * Nothing of the job starts before every node is ready; one refusal undoes what this launch had prepared. While
 * steps run, the lease and the nodes' tickets are renewed well before they end.
 */
import { randomBytes } from 'node:crypto';
import { XceError } from '../base/errors.ts';
import type { Epoch, NodeName } from '../base/ids.ts';
import { type Answer, askAll, failures, values } from '../launch/fleet.ts';
import { parseNodeList } from '../launch/hostlist.ts';
import type { LaunchOutcome } from '../launch/outcome.ts';
import type { OutputSink } from '../launch/output.ts';
import { requireNodes } from '../launch/resolve-nodes.ts';
import { type Launch, type LaunchEvent, type StdinPlan, startLaunch } from '../launch/run.ts';
import type { LeaseRef } from '../lease/reference.ts';
import { claimsOfLease } from '../lease/ticket.ts';
import type { LeaseView } from '../lease/view.ts';
import { prterunArguments } from '../mpi/prrte.ts';
import type { ResponseOf } from '../rpc/message.ts';
import { challengeNodes } from './challenge.ts';
import type { Context } from './context.ts';
import { type LeaseSelection, requireLeaseRef } from './lease-reference.ts';
import { tellNotices } from './notices.ts';

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

type Ticketed = { readonly lease: LeaseView; readonly tickets: ReadonlyMap<NodeName, string> };

/** Fails as a whole, naming every node that refused and the first of their codes. */
const requireAll = <T>(
  answers: readonly Answer<T>[],
  what: string,
): readonly { node: NodeName; value: T }[] => {
  const failed = failures(answers);
  const [first] = failed;
  if (first === undefined) return values(answers);
  throw new XceError('launch-refused', `${what}: ${failed.map((error) => error.message).join('; ')}`, {
    unchanged: 'nothing was started on any node',
    detail: { reasons: failed.map(({ code, message, facts }) => ({ node: facts.at, code, message })) },
    cause: first,
  });
};

/**
 * New tickets for the nodes: their nonces come first, then the commit that records the nodes and is acknowledged
 * in our own epoch, and only then the signatures.
 */
const makeTickets = async (
  context: Context,
  ref: LeaseRef,
  nodes: readonly NodeName[],
): Promise<Ticketed> => {
  const { settings, leases } = context;
  const { bindings, nonces, failed } = await challengeNodes(context, nodes);
  requireAll(
    failed.map((error) => ({ node: (error.facts.at ?? '') as NodeName, ok: false, error })),
    'not every node answers',
  );
  const { result: lease, position, notices } = await leases.bind(ref, bindings);
  tellNotices(context, notices);
  const tickets = new Map(
    [...nonces].map(([node, nonce]) => [
      node,
      context.signTicket(
        claimsOfLease(lease, {
          cluster: settings.cluster.name,
          instance: settings.cluster.instance,
          epoch: position.epoch as Epoch,
          node,
          nonce,
          issuedWallMs: context.clock.wallMs(),
        }),
      ),
    ]),
  );
  return { lease, tickets };
};

/** Undoes what this launch set up; sandboxes that were there before stay. */
const undoPrepare = async (
  context: Context,
  lease: LeaseView,
  prepared: readonly Answer<ResponseOf<'prepare'>>[],
): Promise<readonly XceError[]> => {
  const created = values(prepared)
    .filter(({ value }) => value.created)
    .map(({ node }) => node);
  // A node whose answer was lost may have prepared; stop is without effect where there is nothing.
  const doubtful = prepared.flatMap((answer) =>
    !answer.ok && ['timeout', 'worker-unreachable', 'cancelled'].includes(answer.error.code)
      ? [answer.node]
      : [],
  );
  return failures(await stopNodes(context, lease.lease, [...created, ...doubtful]));
};

export const stopNodes = (
  context: Context,
  lease: number,
  nodes: readonly NodeName[],
): Promise<readonly Answer<ResponseOf<'stop'>>[]> =>
  askAll(nodes, async (node) => {
    const session = await context.fleet.session(node);
    return await session.call('stop', { lease }, { timeoutMs: context.settings.nodes.requestTimeoutMs });
  });

const prepareNodes = async (
  context: Context,
  ref: LeaseRef,
  nodes: readonly NodeName[],
): Promise<Ticketed> => {
  const { leases, settings, fleet } = context;
  const ticketed = await makeTickets(context, ref, nodes);
  const { lease, tickets } = ticketed;
  const prepared = await askAll(nodes, async (node) => {
    const session = await fleet.session(node);
    return await session.call(
      'prepare',
      { ticket: tickets.get(node) ?? '' },
      { timeoutMs: settings.nodes.requestTimeoutMs },
    );
  });
  try {
    for (const { node, value } of requireAll(prepared, 'not every node is ready')) {
      tellNotices(context, (await leases.recordMounts(ref, node, value.mounts)).notices);
    }
    return ticketed;
  } catch (error) {
    for (const left of await undoPrepare(context, lease, prepared)) {
      context.tell(`could not undo the preparation: ${left.message}`);
    }
    throw error;
  }
};

/** Renews the lease and every node's ticket; any failure is the end of the launch, since deadlines would follow. */
const renewOnce = async (
  context: Context,
  ref: LeaseRef,
  ttlMs: number,
  nodes: readonly NodeName[],
): Promise<void> => {
  tellNotices(context, (await context.leases.renew(ref, ttlMs)).notices);
  const { tickets } = await makeTickets(context, ref, nodes);
  requireAll(
    await askAll(nodes, async (node) => {
      const session = await context.fleet.session(node);
      return await session.call(
        'renew',
        { ticket: tickets.get(node) ?? '' },
        { timeoutMs: context.settings.nodes.requestTimeoutMs },
      );
    }),
    'not every node took the renewed ticket',
  );
};

/**
 * Renews after each third of the time that is left. A renewal that fails is tried again after a third of the
 * rest; once less than an eighth of the term is left, it is the end of the launch.
 */
const keepRenewing = (
  context: Context,
  lease: LeaseView,
  nodes: readonly NodeName[],
  onFailure: (error: XceError) => void,
): { stop(): void } => {
  const { clock } = context;
  let endMs = clock.monotonicMs() + lease.remainingMs;
  let timer: NodeJS.Timeout;
  let stopped = false;
  const arm = (): void => {
    if (!stopped) timer = setTimeout(renew, Math.max(1, Math.floor((endMs - clock.monotonicMs()) / 3)));
  };
  const renew = (): void => {
    const startMs = clock.monotonicMs();
    renewOnce(context, { lease: lease.lease }, lease.ttlMs, nodes).then(
      () => {
        endMs = startMs + lease.ttlMs;
        arm();
      },
      (error: unknown) => {
        if (stopped) return;
        const known =
          error instanceof XceError ? error : new XceError('bug', String(error), { cause: error });
        context.tell(`the lease was not renewed: ${known.message}`);
        if (endMs - clock.monotonicMs() > lease.ttlMs / 8) arm();
        else onFailure(known);
      },
    );
  };
  arm();
  return {
    stop: () => {
      stopped = true;
      clearTimeout(timer);
    },
  };
};

const chooseNodes = (lease: LeaseView, text: string | undefined): readonly NodeName[] => {
  const own = lease.nodes.filter((node) => node.role === 'job').map(({ node }) => node);
  return text === undefined ? own : requireNodes(parseNodeList(text), own);
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
      return requireNodes([input.stdin], steps);
  }
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
  const { lease, tickets } = await progress.phase(`prepare ${nodes.length} nodes`, () =>
    prepareNodes(context, ref, nodes),
  );
  const stepNodes = input.mpi ? nodes.slice(0, 1) : nodes;
  const tasksPerNode = input.tasksPerNode ?? Math.ceil((input.ranks ?? nodes.length) / nodes.length);
  const argv = input.mpi
    ? prterunArguments({
        nodes,
        ranks: input.ranks ?? nodes.length * tasksPerNode,
        tasksPerNode,
        argv: input.argv,
      })
    : input.argv;
  const stdinNodes = chooseStdin(input, nodes);
  const base64 = (bytes: Buffer): string => bytes.toString('base64');
  const step = randomBytes(6).toString('hex');
  const launch = startLaunch(
    {
      lease: lease.lease,
      nodes,
      steps: stepNodes.map((node) => ({
        node,
        head: {
          ticket: tickets.get(node) ?? '',
          step,
          kind: input.mpi ? 'head' : 'task',
          argv: argv.map(base64),
          environment: input.environment.map(base64),
          directory: input.directory === undefined ? null : base64(input.directory),
          stdin: stdinNodes.includes(node),
        },
      })),
      daemonNodes: input.mpi ? nodes.slice(1) : [],
      stdin: { nodes: stdinNodes, ...ports.stdin },
    },
    {
      fleet: context.fleet,
      sink: ports.sink,
      report: ports.report,
      requestTimeoutMs: settings.nodes.requestTimeoutMs,
    },
  );
  ports.onRunning(launch);
  const renewal = keepRenewing(context, lease, nodes, (error) => launch.end(error.code, error.message));
  const limit =
    input.timeoutMs === undefined
      ? undefined
      : setTimeout(
          () => launch.end('timeout', `the time limit of ${input.timeoutMs} ms is over`),
          input.timeoutMs,
        );
  try {
    const { job, uid } = lease;
    return { lease: lease.lease, job, uid, nodes, outcome: await launch.outcome };
  } finally {
    renewal.stop();
    clearTimeout(limit);
  }
};
