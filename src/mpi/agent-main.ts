/**
 * The launch agent: what MPI launchers call in place of ssh. It runs inside the sandbox as the job, and its
 * worker knows it by the sandbox's socket and its uid.
 */
import { errnoOf, XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import { writeStandard } from '../os/standard-output.ts';
import { connectUnix } from '../rpc/client.ts';
import { runAgent } from './agent.ts';
import { AGENT_SOCKET } from './environment.ts';

const CONNECT_TIMEOUT_MS = 60_000;
/**
 * Longer than any worker waits for the daemon of another node, so that it is the worker who says what was missing.
 * A worker that hangs is noticed before, because it answers no ping.
 */
const START_TIMEOUT_MS = LIMITS.connectTimeoutMsMax + LIMITS.agentTimeoutMsMax + 60_000;

/** To the descriptors themselves: Node's streams take longer to load than everything else here. */
const write = async (channel: 'stdout' | 'stderr', bytes: Uint8Array): Promise<void> => {
  try {
    await writeStandard(channel === 'stdout' ? 1 : 2, bytes);
  } catch (error) {
    const reason = errnoOf(error) ?? (error instanceof Error ? error.message : String(error));
    throw new XceError('output', `cannot write to ${channel}: ${reason}`);
  }
};

/** Returns the exit status. */
export const main = async (args: readonly string[]): Promise<number> => {
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
    // Where stderr is broken, the status alone tells.
    await write('stderr', Buffer.from(`xce-sandbox-agent: ${error.message} [${error.code}]\n`)).catch(
      () => undefined,
    );
    return error.exitStatus;
  }
};
