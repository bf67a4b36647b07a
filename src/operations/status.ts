import { isInRange } from '../base/id-range.ts';
import type { NodeName } from '../base/ids.ts';
import { askAll } from '../launch/fleet.ts';
import type { LeaseView } from '../lease/view.ts';
import { parseNodeList } from '../nodes/hostlist.ts';
import { requireNodes } from '../nodes/resolve.ts';
import type { ResponseOf } from '../rpc/message.ts';
import type { Context } from './context.ts';

export type NodeStatus =
  | {
      readonly node: NodeName;
      readonly reachable: true;
      readonly sandboxes: ResponseOf<'status'>['sandboxes'];
    }
  | {
      readonly node: NodeName;
      readonly reachable: false;
      readonly error: { readonly code: string; readonly message: string };
    };

export type StatusResult = {
  readonly leases: readonly LeaseView[];
  readonly pool: { readonly size: number; readonly leased: number };
  readonly nodes: readonly NodeStatus[];
};

/** Leases as the log has them, and what each worker has on its node. */
export const readStatus = async (context: Context, nodeText: string | undefined): Promise<StatusResult> => {
  const { settings, fleet, leases, progress } = context;
  const { hosts } = settings.nodes;
  const nodes = nodeText === undefined ? hosts : requireNodes(parseNodeList(nodeText), hosts);
  const held = await leases.list();
  const answers = await progress.phase(`ask ${nodes.length} workers`, () =>
    askAll(nodes, async (node) => {
      const session = await fleet.session(node);
      return await session.call('status', {}, { timeoutMs: settings.nodes.requestTimeoutMs });
    }),
  );
  return {
    leases: held,
    pool: {
      size: settings.pool.last - settings.pool.first + 1,
      leased: held.filter(({ uid }) => isInRange(uid, settings.pool)).length,
    },
    nodes: answers.map((answer) =>
      answer.ok
        ? { node: answer.node, reachable: true, sandboxes: answer.value.sandboxes }
        : {
            node: answer.node,
            reachable: false,
            error: { code: answer.error.code, message: answer.error.message },
          },
    ),
  };
};
