/**
 * The launch agent: what MPI launchers call in place of ssh. It runs inside the sandbox as the job, and its
 * worker knows it by the sandbox's socket and its uid.
 */
import { errnoOf, XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import { connectUnix } from '../rpc/client.ts';
import { runAgent } from './agent.ts';
import { AGENT_SOCKET } from './environment.ts';

const CONNECT_TIMEOUT_MS = 60_000;
/**
 * Longer than any worker waits for the daemon of another node, so that it is the worker who says what was missing.
 * A worker that hangs is noticed before, because it answers no ping.
 */
const START_TIMEOUT_MS = LIMITS.connectTimeoutMsMax + LIMITS.agentTimeoutMsMax + 60_000;

const write = (channel: 'stdout' | 'stderr', bytes: Uint8Array): Promise<void> =>
  new Promise((resolve, reject) => {
    process[channel].write(bytes, (error) => {
      if (error)
        reject(new XceError('output', `cannot write to ${channel}: ${errnoOf(error) ?? error.message}`));
      else resolve();
    });
  });

/** Returns the exit status. */
export const main = async (args: readonly string[]): Promise<number> => {
  // Each write tells its own failure; as an event it would end the agent with a stack.
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => undefined);
  try {
    return await runAgent(args, {
      connect: () => connectUnix(AGENT_SOCKET, { timeoutMs: CONNECT_TIMEOUT_MS }),
      startTimeoutMs: START_TIMEOUT_MS,
      write,
      onEnd: (listener) => {
        for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.once(signal, listener);
      },
    });
  } catch (error) {
    if (!(error instanceof XceError)) throw error;
    process.stderr.write(`xce-sandbox-agent: ${error.message} [${error.code}]\n`);
    return error.exitStatus;
  }
};
