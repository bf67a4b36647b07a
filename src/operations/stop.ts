import { countOf } from '../base/count.ts';
import type { NodeName } from '../base/ids.ts';
import { type Answer, askAll, failures, joinFailures } from '../launch/fleet.ts';
import type { RequestOf, ResponseOf } from '../rpc/message.ts';
import type { Context } from './context.ts';
import { type LeaseSelection, requireLeaseRef } from './lease-reference.ts';

export type StopResult = {
  readonly lease: number;
  readonly job: string;
  readonly uid: number;
  /** Nodes where a sandbox was ended, and where there was none. */
  readonly stopped: readonly NodeName[];
  readonly idle: readonly NodeName[];
};

/** Ends what these nodes have of a lease, or of one launch of it. */
export const stopNodes = (
  context: Context,
  what: RequestOf<'stop'>,
  nodes: readonly NodeName[],
): Promise<readonly Answer<ResponseOf<'stop'>>[]> =>
  askAll(nodes, async (node) => {
    const session = await context.fleet.session(node);
    return await session.call('stop', what, { timeoutMs: context.settings.nodes.requestTimeoutMs });
  });

/** Ends every step and sandbox of a lease on all its nodes. The lease stays as it is. */
export const stopJob = async (context: Context, selection: LeaseSelection): Promise<StopResult> => {
  const lease = await context.leases.show(requireLeaseRef(selection));
  const nodes = lease.nodes.map(({ node }) => node);
  const answers = await context.progress.phase(`stop on ${countOf(nodes.length, 'node')}`, () =>
    stopNodes(context, { lease: lease.lease }, nodes),
  );
  const failed = failures(answers);
  const others = failed.length < nodes.length ? '; on the other nodes the job was ended' : '';
  const failure = joinFailures(failed, 'not stopped everywhere', {
    unchanged: `the lease and its uid${others}`,
    next: 'its deadline ends a sandbox that cannot be reached; repeat the command to be sure',
  });
  if (failure !== undefined) throw failure;
  const where = (stopped: boolean): readonly NodeName[] =>
    answers.flatMap((answer) => (answer.ok && answer.value.stopped === stopped ? [answer.node] : []));
  return { lease: lease.lease, job: lease.job, uid: lease.uid, stopped: where(true), idle: where(false) };
};
