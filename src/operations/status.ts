import { countOf } from '../base/count.ts';
import { type ErrorCode, XceError } from '../base/errors.ts';
import { isInRange } from '../base/id-range.ts';
import type { NodeName } from '../base/ids.ts';
import { type Answer, askAll, tellFailures } from '../launch/fleet.ts';
import type { LeaseView } from '../lease/view.ts';
import { parseNodeList } from '../nodes/hostlist.ts';
import { requireNodes } from '../nodes/resolve.ts';
import type { ResponseOf } from '../rpc/message.ts';
import type { RpcSession } from '../rpc/session.ts';
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
      readonly error: { readonly code: ErrorCode; readonly message: string };
    };

export type StatusResult = {
  readonly leases: readonly LeaseView[];
  readonly pool: { readonly size: number; readonly leased: number };
  readonly nodes: readonly NodeStatus[];
};

/** Nodes that have not certified for a lease. */
const waitedFor = (leases: readonly LeaseView[]): readonly NodeName[] =>
  leases.flatMap(({ nodes }) => nodes.flatMap(({ node, certified }) => (certified ? [] : [node])));

/** Asks each of these workers the same, and tells so. */
export const askWorkers = <T>(
  { fleet, progress }: Context,
  nodes: readonly NodeName[],
  ask: (session: RpcSession) => Promise<T>,
): Promise<readonly Answer<T>[]> =>
  progress.phase(`ask ${countOf(nodes.length, 'worker')}`, () =>
    askAll(nodes, async (node) => await ask(await fleet.session(node))),
  );

/** Leases as the log has them, and what each worker has on its node. No answer is no error here: see requireAnswers. */
export const readStatus = async (context: Context, nodeText: string | undefined): Promise<StatusResult> => {
  const { settings, leases } = context;
  const { hosts } = settings.nodes;
  const held = await leases.list();
  // Also those that a lease waits for and that the configuration no longer names.
  const known = [...new Set([...hosts, ...waitedFor(held)])];
  const nodes = nodeText === undefined ? known : requireNodes(parseNodeList(nodeText), known);
  const answers = await askWorkers(context, nodes, (session) =>
    session.call('status', {}, { timeoutMs: settings.nodes.requestTimeoutMs }),
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

/**
 * Throws what the first node failed with unless every node that matters has answered: one that was asked for by name,
 * one that has not certified for a lease, and where none of them answers at all, any.
 */
export const requireAnswers = (result: StatusResult, wereNamed: boolean): void => {
  const held = new Set(waitedFor(result.leases));
  const isAllSilent = result.nodes.every(({ reachable }) => !reachable);
  const silent = result.nodes.flatMap((status) =>
    !status.reachable && (wereNamed || isAllSilent || held.has(status.node)) ? [status] : [],
  );
  const [first] = silent;
  if (first === undefined) return;
  const reasons = tellFailures(
    silent.map(({ node, error }) => ({ message: error.message, facts: { at: node } })),
  );
  throw new XceError(first.error.code, `no answer from ${countOf(silent.length, 'node')}: ${reasons}`, {
    unchanged: 'this command only looks',
    next: 'on the node: systemctl status xce-sandbox-worker',
    detail: result,
  });
};
