/**
 * The launch agent: what MPI launchers call in place of ssh. It runs inside the sandbox as the job, asks the
 * worker of its own node (through the sandbox's socket, known by its uid) to have the launcher's daemon started
 * on another node of the same job, and lives as long as that daemon does.
 *
 * It exits 0 only if the daemon ran and ended with 0: a launcher whose agent exits 0 without a daemon waits for
 * ever.
 */
import { XceError } from '../base/errors.ts';
import { connectUnix } from '../rpc/client.ts';
import type { ClientStream } from '../rpc/session.ts';
import { parseAgentArguments } from './agent-command.ts';
import { AGENT_SOCKET } from './environment.ts';

/** From the call to the daemon's start; the worker has a shorter one of its own. */
const START_TIMEOUT_MS = 60_000;

/** Signals by which a launcher ends its agents, with their numbers on Linux. */
const ENDING = { SIGHUP: 1, SIGINT: 2, SIGTERM: 15 } as const;

const write = (stream: NodeJS.WriteStream, bytes: Uint8Array): Promise<void> =>
  new Promise((resolve, reject) => {
    stream.write(bytes, (error) => (error ? reject(error) : resolve()));
  });

/** Passes the daemon's output on and returns its status as a shell would show it. */
const follow = async (stream: ClientStream): Promise<number> => {
  for await (const frame of stream) {
    if (frame.channel !== 'event') {
      await write(frame.channel === 'stdout' ? process.stdout : process.stderr, frame.bytes);
    } else if (frame.event.event === 'ended') {
      const { outcome } = frame.event;
      if (outcome.code === 'none') throw new XceError('sandbox-lost', 'the daemon left no exit status');
      return outcome.code === 'exited' ? outcome.status : 128 + outcome.status;
    }
  }
  throw new XceError('protocol', 'the worker ended the stream without the end of the daemon');
};

const runAgent = async (args: readonly string[]): Promise<number> => {
  const command = parseAgentArguments(args);
  if ('refused' in command) throw new XceError('mpi-agent', command.refused);
  const base64 = (text: string): string => Buffer.from(text).toString('base64');
  const session = await connectUnix(AGENT_SOCKET, { timeoutMs: START_TIMEOUT_MS });
  try {
    const stream = await session.stream(
      'daemon',
      { node: command.node, argv: command.argv.map(base64), environment: command.environment.map(base64) },
      { timeoutMs: START_TIMEOUT_MS },
    );
    // The launcher ends its agents when its job is over; the worker then sees to the daemon.
    let endedBy: number | undefined;
    for (const [name, number] of Object.entries(ENDING)) {
      process.once(name, () => {
        endedBy = number;
        stream.cancel();
      });
    }
    try {
      return await follow(stream);
    } catch (error) {
      if (endedBy !== undefined && error instanceof XceError && error.code === 'cancelled')
        return 128 + endedBy;
      throw error;
    }
  } finally {
    session.close();
  }
};

/** Returns the exit status. */
export const main = async (args: readonly string[]): Promise<number> => {
  try {
    return await runAgent(args);
  } catch (error) {
    if (!(error instanceof XceError)) throw error;
    process.stderr.write(`xce-sandbox-agent: ${error.message} [${error.code}]\n`);
    return error.exitStatus;
  }
};
