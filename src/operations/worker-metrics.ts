import { requireNodeName, requireNodes } from '../nodes/resolve.ts';
import { connectUnix } from '../rpc/client.ts';
import type { ResponseOf } from '../rpc/message.ts';
import { localSocket } from '../sandbox/box.ts';
import type { Context } from './context.ts';

export type Metrics = ResponseOf<'metrics'>;

/** What the worker of the node has counted; without a node, that of this host, asked over its own socket. */
export const readMetrics = async (context: Context, nodeText: string | undefined): Promise<Metrics> => {
  const { worker, nodes } = context.settings;
  const options = { timeoutMs: nodes.requestTimeoutMs };
  if (nodeText !== undefined) {
    const parsed = requireNodeName(nodeText);
    const [node = parsed] = requireNodes([parsed], nodes.hosts);
    const session = await context.fleet.session(node);
    return session.call('metrics', {}, options);
  }
  const session = await connectUnix(localSocket(worker.runDirectory), {
    timeoutMs: nodes.connectTimeoutMs,
  });
  try {
    return await session.call('metrics', {}, options);
  } finally {
    session.close();
  }
};
