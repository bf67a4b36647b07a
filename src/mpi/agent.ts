/**
 * What the launch agent does: asks the worker of its own node to have a launcher's daemon started on another node
 * of the same job, and lives as long as that daemon does.
 *
 * It answers 0 only if the daemon ran and ended well by itself: a launcher whose agent exits 0 without a daemon
 * waits for ever.
 */
import { XceError } from '../base/errors.ts';
import { describeEnd, isOwnEnd, shellStatus } from '../launch/outcome.ts';
import type { ClientStream, RpcSession } from '../rpc/session.ts';
import { parseAgentArguments } from './agent-command.ts';

export type AgentPorts = {
  /** Connects to the worker of this node. */
  readonly connect: () => Promise<RpcSession>;
  /** From the call to the daemon's start; the worker has a shorter one of its own. */
  readonly startTimeoutMs: number;
  /** Resolves when more may come; rejects when nobody reads any more. */
  readonly write: (channel: 'stdout' | 'stderr', bytes: Uint8Array) => Promise<void>;
  /** Calls the listener once the launcher wants its agent to end. */
  readonly onEnd: (listener: () => void) => void;
};

/** What a shell shows for SIGTERM: nobody is told off for doing what its launcher asked for. */
const ENDED_STATUS = 143;

/** Passes the daemon's output on and returns its status as a shell would show it. */
const follow = async (stream: ClientStream, write: AgentPorts['write']): Promise<number> => {
  for await (const frame of stream) {
    if (frame.channel !== 'event') {
      await write(frame.channel, frame.bytes);
    } else if (frame.event.event === 'ended') {
      const { outcome } = frame.event;
      if (!isOwnEnd(outcome)) throw new XceError('sandbox-lost', `the daemon ${describeEnd(outcome)}`);
      return shellStatus(outcome);
    }
  }
  throw new XceError('protocol', 'the worker ended the stream without the end of the daemon');
};

/**
 * Returns the exit status of the agent. Throws XceError for anything but a daemon that ended by itself, or an agent
 * that its launcher ended.
 */
export const runAgent = async (args: readonly string[], ports: AgentPorts): Promise<number> => {
  const command = parseAgentArguments(args);
  if ('refused' in command) throw new XceError('mpi-agent', command.refused);
  const base64 = (text: string): string => Buffer.from(text).toString('base64');
  const session = await ports.connect();
  try {
    const stream = await session.stream(
      'daemon',
      { node: command.node, argv: command.argv.map(base64), environment: command.environment.map(base64) },
      { timeoutMs: ports.startTimeoutMs },
    );
    // The launcher ends its agents when its job is over; the worker then sees to the daemon.
    let isEnded = false;
    ports.onEnd(() => {
      isEnded = true;
      stream.cancel();
    });
    try {
      return await follow(stream, ports.write);
    } catch (error) {
      if (isEnded && error instanceof XceError && error.code === 'cancelled') return ENDED_STATUS;
      throw error;
    }
  } finally {
    session.close();
  }
};
