/**
 * Launcher daemons that a job starts on its other nodes through the agent: agent ─ this worker ─ that node's
 * worker. The agent's socket proves the lease; names of nodes mean only the job's own.
 *
 * What the daemons do is told to the head that started them (a step of kind `head`), which waits for all of
 * them before it tells its own end: the head's exit status alone proves nothing. A daemon belongs to the head
 * in whose unit its agent runs; an agent of a batch script belongs to no head, and one whose unit cannot be
 * told counts for every head of the lease, because a failure must not go unseen.
 *
 * prterun ends its agents with SIGTERM while their daemons may still be ending by themselves. So an agent that
 * goes away gives its daemon a grace; then SIGTERM; then its own worker ends it.
 */

import { messageOf, XceError } from '../base/errors.ts';
import { type NodeName, parseNodeName } from '../base/ids.ts';
import type { TicketClaims } from '../lease/ticket.ts';
import { isDaemonProgram } from '../mpi/agent-command.ts';
import { resolveNodes } from '../nodes/resolve.ts';
import type { RequestOf, StreamEvent } from '../rpc/message.ts';
import type { ClientStream } from '../rpc/session.ts';
import type { ServerStream } from '../rpc/verbs.ts';
import { LOST } from '../sandbox/step-result.ts';
import type { ConnectWorker, Report } from './ports.ts';

const SIGTERM = 15;
/** Daemons of one lease at the same time: each mpirun of a batch script has one on each other node. */
const DAEMONS_PER_NODE = 8;
const DAEMONS_MIN = 64;
/** Nothing is known of how it ended. */
/** One head's stream, from the start of its step to its end. */
export type Head = {
  /** The agents of this step may now report. */
  open(): void;
  /** Takes no more daemons and resolves when those it has have ended and were told of. */
  settle(): Promise<void>;
};

type HeadEntry = {
  readonly step: string;
  readonly stream: ServerStream;
  readonly opened: Promise<void>;
  readonly daemons: Set<Promise<void>>;
};

export type DaemonPorts = {
  readonly connect: ConnectWorker;
  /** The step of the lease whose unit the process is in, as its unit's name says; undefined if it is in none. */
  readonly stepOfProcess: (pid: number) => string | undefined;
  readonly report: (report: Report) => void;
  readonly startTimeoutMs: number;
  readonly graceMs: number;
};

/** Throws 'mpi-agent' unless the program is one that launchers start on other nodes. */
export const requireDaemon = (argv: readonly Buffer[]): void => {
  const program = argv[0]?.toString('latin1') ?? '';
  if (!isDaemonProgram(program)) {
    throw new XceError('mpi-agent', 'only prted, orted and hydra_pmi_proxy are started for a launcher');
  }
};

const requireNodeOfJob = (name: string, nodes: readonly NodeName[]): NodeName => {
  const parsed = parseNodeName(name);
  const found = parsed === undefined ? undefined : resolveNodes([parsed], nodes).nodes?.[0];
  if (found === undefined) {
    throw new XceError('node-unknown', 'the launcher asked for a node that is not one node of this job');
  }
  return found;
};

export class Daemons {
  readonly #ports: DaemonPorts;
  /** By lease. */
  readonly #heads = new Map<number, Set<HeadEntry>>();
  /** Agents served now, by lease. */
  readonly #running = new Map<number, number>();

  constructor(ports: DaemonPorts) {
    this.#ports = ports;
  }

  /** To be called before the step of the head starts. */
  addHead(lease: number, step: string, stream: ServerStream): Head {
    let open = (): void => undefined;
    const opened = new Promise<void>((resolve) => {
      open = resolve;
    });
    const entry: HeadEntry = { step, stream, opened, daemons: new Set() };
    const heads = this.#heads.get(lease) ?? new Set();
    this.#heads.set(lease, heads);
    heads.add(entry);
    return {
      open,
      settle: async () => {
        heads.delete(entry);
        if (heads.size === 0) this.#heads.delete(lease);
        open();
        await Promise.all(entry.daemons);
      },
    };
  }

  /**
   * Serves one agent: starts its daemon on the node it asks for and stays with both until they have ended.
   * `launchOf` knows which launch a step of this node belongs to.
   */
  async serve(
    claims: TicketClaims,
    agentPid: number,
    request: RequestOf<'daemon'>,
    argv: readonly Buffer[],
    stream: ServerStream,
    launchOf: (step: string) => string | undefined,
  ): Promise<void> {
    requireDaemon(argv);
    const node = requireNodeOfJob(request.node, claims.nodes);
    const running = this.#running.get(claims.lease) ?? 0;
    const runningMax = Math.max(DAEMONS_MIN, DAEMONS_PER_NODE * claims.nodes.length);
    if (running >= runningMax) {
      throw new XceError('worker-busy', `lease ${claims.lease} has ${runningMax} launcher daemons already`);
    }
    const step = this.#ports.stepOfProcess(agentPid);
    const heads = this.#headsOf(claims.lease, step);
    let over = (): void => undefined;
    const ended = new Promise<void>((resolve) => {
      over = resolve;
    });
    for (const head of heads) head.daemons.add(ended);
    this.#running.set(claims.lease, running + 1);
    try {
      const launch = step === undefined ? undefined : launchOf(step);
      await this.#relay(heads, node, { ...claims, launch }, request, stream);
    } finally {
      const rest = (this.#running.get(claims.lease) ?? 1) - 1;
      if (rest === 0) this.#running.delete(claims.lease);
      else this.#running.set(claims.lease, rest);
      for (const head of heads) head.daemons.delete(ended);
      over();
    }
  }

  #headsOf(lease: number, step: string | undefined): readonly HeadEntry[] {
    const heads = [...(this.#heads.get(lease) ?? [])];
    return step === undefined ? heads : heads.filter((head) => head.step === step);
  }

  async #relay(
    heads: readonly HeadEntry[],
    node: NodeName,
    claims: TicketClaims & { readonly launch: string | undefined },
    { argv, environment }: RequestOf<'daemon'>,
    stream: ServerStream,
  ): Promise<void> {
    const session = await this.#ports.connect(node, stream.signal);
    try {
      const { lease, epoch, uid, launch } = claims;
      const owner = launch === undefined ? {} : { launch };
      const remote = await session.stream(
        'spawn',
        { lease, epoch, uid, ...owner, argv, environment },
        { timeoutMs: this.#ports.startTimeoutMs, signal: stream.signal },
      );
      await this.#follow(heads, node, remote, stream);
    } finally {
      session.close();
    }
  }

  async #follow(
    heads: readonly HeadEntry[],
    node: NodeName,
    remote: ClientStream,
    stream: ServerStream,
  ): Promise<void> {
    const grace = this.#endAfterAgent(remote, stream);
    feed(stream, remote);
    stream.onCommand((command) => remote.sendCommand(command));
    let started = false;
    let outcome = LOST;
    try {
      for await (const frame of remote) {
        if (frame.channel !== 'event') {
          if (!stream.signal.aborted) await toAgent(stream, stream.write(frame.channel, frame.bytes));
        } else if (frame.event.event === 'started') {
          started = true;
          await this.#tell(heads, { event: 'daemon-started', node, unit: frame.event.unit });
          await toAgent(stream, stream.sendEvent(frame.event));
        } else if (frame.event.event === 'ended') {
          outcome = frame.event.outcome;
        }
      }
    } finally {
      grace.cancel();
      if (started) await this.#tell(heads, { event: 'daemon-ended', node, outcome });
    }
    // Nobody is there to be told of an end that came after the agent's own.
    if (!stream.signal.aborted) await stream.sendEvent({ event: 'ended', outcome });
  }

  /** The agent has gone: a grace for the daemon's own end, then SIGTERM, then the other worker ends it. */
  #endAfterAgent(remote: ClientStream, stream: ServerStream): { cancel(): void } {
    const { graceMs } = this.#ports;
    let timer: NodeJS.Timeout | undefined;
    const terminate = (): void => {
      remote.sendCommand({ command: 'signal', signal: SIGTERM });
      timer = setTimeout(() => remote.cancel(), graceMs);
    };
    const begin = (): void => {
      timer = setTimeout(terminate, graceMs);
    };
    if (stream.signal.aborted) begin();
    else stream.signal.addEventListener('abort', begin, { once: true });
    return {
      cancel: () => {
        clearTimeout(timer);
        stream.signal.removeEventListener('abort', begin);
      },
    };
  }

  async #tell(heads: readonly HeadEntry[], event: StreamEvent): Promise<void> {
    await Promise.all(
      heads.map(async (head) => {
        await head.opened;
        try {
          await head.stream.sendEvent(event);
        } catch (error) {
          // The head's caller has gone, and with it the head; the daemon's own end does not depend on it.
          this.#ports.report({
            level: 'notice',
            message: `${event.event} was not told: ${messageOf(error)}`,
          });
        }
      }),
    );
  }
}

/** Something for the agent; one that has gone is no failure of the daemon. */
const toAgent = async (stream: ServerStream, sent: Promise<void>): Promise<void> => {
  try {
    await sent;
  } catch (error) {
    if (!stream.signal.aborted) throw error;
  }
};

/** The agent's input for the daemon. The daemon may end without reading it. */
const feed = (stream: ServerStream, remote: ClientStream): void => {
  const copy = async (): Promise<void> => {
    for await (const bytes of stream.stdin) await remote.writeStdin(bytes as Buffer);
    remote.endStdin();
  };
  copy().catch(() => remote.endStdin());
};
