import { XceError } from '../base/errors.ts';
import type { NodeName } from '../base/ids.ts';
import { askAll, failures } from '../launch/fleet.ts';
import type { NodeBinding } from '../lease/rules.ts';
import type { RequestOf } from '../rpc/message.ts';
import type { Context } from './context.ts';

export type Challenged = {
  /** Nodes that answered: the worker's key and boot, as the lease log records them. */
  readonly bindings: readonly NodeBinding[];
  /** The nonce that each of them gave; only for the purpose 'ticket' does a ticket answer it. */
  readonly nonces: ReadonlyMap<NodeName, string>;
  readonly failed: readonly XceError[];
};

/**
 * Asks each node who it is, and if a ticket is to follow for a nonce of its present boot. A node that answers for
 * another one has failed. `signal` gives the questions up.
 */
export const challengeNodes = async (
  context: Context,
  nodes: readonly NodeName[],
  purpose: RequestOf<'challenge'>['purpose'],
  signal?: AbortSignal,
): Promise<Challenged> => {
  const { settings, fleet } = context;
  const answers = await askAll(nodes, async (node) => {
    const session = await fleet.session(node, signal);
    const answer = await session.call(
      'challenge',
      { purpose },
      { timeoutMs: settings.nodes.requestTimeoutMs, ...(signal === undefined ? {} : { signal }) },
    );
    if (answer.node !== node || answer.instance !== settings.cluster.instance) {
      throw new XceError('peer-unknown', `it says it is ${answer.node}, instance ${answer.instance}`);
    }
    return answer;
  });
  return {
    bindings: answers.flatMap((answer) =>
      answer.ok
        ? [{ node: answer.node, workerKey: answer.value.workerKey, bootId: answer.value.bootId }]
        : [],
    ),
    nonces: new Map(answers.flatMap((answer) => (answer.ok ? [[answer.node, answer.value.nonce]] : []))),
    failed: failures(answers),
  };
};
