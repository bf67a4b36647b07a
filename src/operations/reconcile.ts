/**
 * Compares the lease log with what the nodes and the storage have, and ends what is over: leases whose time is up or
 * whose release stopped half way, and sandboxes of leases that have ended. A lease that may run is never touched, and
 * what only an operator can know is told and left.
 */
import { randomBytes } from 'node:crypto';
import { countOf } from '../base/count.ts';
import { messageOf, XceError } from '../base/errors.ts';
import type { LeaseNumber, NodeName } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import type { StorageSettings } from '../config/settings.ts';
import { askAll } from '../launch/fleet.ts';
import type { LeaseView } from '../lease/view.ts';
import { mountOf } from '../os/mounts.ts';
import { pause } from '../os/watch.ts';
import { requireMounted } from '../sandbox/storage.ts';
import { gatesIn, groupOfShutGate, workspacePaths } from '../sandbox/workspace.ts';
import type { Context } from './context.ts';
import {
  type Difference,
  type DifferenceKind,
  type DrainTarget,
  findDifferences,
  isWrong,
  type Looks,
  type NodeLook,
} from './differences.ts';
import { releaseLease } from './lease-release.ts';
import { tellNotices } from './notices.ts';

/** What became of one difference that was to be mended. */
export type Mended = {
  readonly difference: Difference;
  /** What it failed with; null where it was done. */
  readonly failed: { readonly code: string; readonly message: string } | null;
};

export type ReconcileResult = {
  /** What differs now: after what was mended. */
  readonly differences: readonly Difference[];
  readonly mended: readonly Mended[];
};

/** Gates that are looked at before anything else has a turn. */
const GATES_AT_ONCE = 512;

const lookAtNodes = (context: Context, nodes: readonly NodeName[]): Promise<readonly NodeLook[]> => {
  const { fleet, settings, progress } = context;
  const timeout = { timeoutMs: settings.nodes.requestTimeoutMs };
  return progress.phase(`ask ${countOf(nodes.length, 'worker')}`, async () => {
    const answers = await askAll(nodes, async (node) => {
      const session = await fleet.session(node);
      const { sandboxes } = await session.call('status', {}, timeout);
      const { leases } = await session.call('strays', {}, timeout);
      return { sandboxes, strays: leases };
    });
    return answers.map((answer) =>
      answer.ok
        ? { node: answer.node, ok: true, ...answer.value }
        : { node: answer.node, ok: false, message: answer.error.message },
    );
  });
};

type GateLooks = Pick<Looks, 'gates' | 'silent'>;

const lookAtStorage = async (context: Context, storage: StorageSettings): Promise<GateLooks> => {
  const root = storage.workspace;
  if (root === undefined) return { gates: [], silent: [] };
  try {
    requireMounted(storage, mountOf);
    return await context.progress.phase(`look through ${root}`, async (update) => {
      const gates: { path: string; gid: number }[] = [];
      for (const [index, path] of gatesIn(root, context.settings.cluster.instance).entries()) {
        if (index % GATES_AT_ONCE === 0) {
          update(countOf(index, 'directory'));
          await pause(0);
        }
        const gid = groupOfShutGate(path);
        if (gid !== undefined) gates.push({ path, gid });
      }
      return { gates, silent: [] };
    });
  } catch (error) {
    if (!(error instanceof XceError) || error.code === 'bug') throw error;
    return { gates: [], silent: [{ storage: storage.name, message: error.message }] };
  }
};

/** Everything that a lease in the log, a worker or a storage says, in an order in which no change looks like a fault. */
const look = async (context: Context): Promise<readonly Difference[]> => {
  const { leases, settings } = context;
  const before = await leases.list();
  const named = before.flatMap((lease) => lease.nodes.map(({ node }) => node));
  const nodes = await lookAtNodes(context, [...new Set([...settings.nodes.hosts, ...named])]);
  const stores: GateLooks[] = [];
  for (const storage of settings.storage) stores.push(await lookAtStorage(context, storage));
  const now = await leases.list();
  const seen = nodes.flatMap((one) =>
    one.ok ? [...one.strays, ...one.sandboxes.map(({ lease }) => lease)] : [],
  );
  const gateOf = ({ workspace, job, attempt }: LeaseView): string | null =>
    workspace === null
      ? null
      : workspacePaths(workspace.path, { instance: settings.cluster.instance, job, attempt }).gate;
  return findDifferences({
    before,
    now,
    nodes,
    gates: stores.flatMap(({ gates }) => gates),
    silent: stores.flatMap(({ silent }) => silent),
    gateOf,
    ended: await leases.endedAmong(new Set(seen as LeaseNumber[])),
    pool: settings.pool,
  });
};

/** Ends on these nodes what is left of a lease that has ended. The certificates prove it to us, and are for no log. */
const drainOn = async (
  context: Context,
  nodes: readonly NodeName[],
  epoch: number,
  { lease, uid, job, attempt }: DrainTarget,
): Promise<void> => {
  const { worker, nodes: settings } = context.settings;
  const timeoutMs = worker.drainTimeoutMs + settings.requestTimeoutMs;
  const answers = await askAll(nodes, async (node) => {
    const session = await context.fleet.session(node);
    const nonce = randomBytes(LIMITS.nonceBytes).toString('hex');
    await session.call('drain', { epoch, lease, uid, job, attempt, nonce }, { timeoutMs });
  });
  for (const answer of answers) if (!answer.ok) throw answer.error;
};

const mendOne = async (context: Context, epoch: number, difference: Difference): Promise<void> => {
  const { mend, lease, drain, nodes } = difference;
  if (mend === 'release' && lease !== null) {
    await releaseLease(context, { job: undefined, attempt: undefined, lease });
  } else if (drain !== null) {
    await context.progress.phase(`drain lease ${drain.lease}`, () => drainOn(context, nodes, epoch, drain));
  }
};

/**
 * Lists what differs; with `apply` mends first what can be mended without an operator's word, one after the other.
 * Throws 'log-fenced' and what else a commit throws before anything is mended. What is left is no error here: see
 * requireAgreement.
 */
export const reconcile = async (context: Context, apply: boolean): Promise<ReconcileResult> => {
  if (!apply) return { differences: await look(context), mended: [] };
  const expired = await context.leases.expireAll();
  tellNotices(context, expired.notices);
  const mended: Mended[] = [];
  for (const difference of await look(context)) {
    if (difference.mend === null) continue;
    try {
      await mendOne(context, expired.position.epoch, difference);
      mended.push({ difference, failed: null });
    } catch (error) {
      if (!(error instanceof XceError) || error.code === 'bug') throw error;
      mended.push({ difference, failed: { code: error.code, message: messageOf(error) } });
    }
  }
  return { differences: await look(context), mended };
};

/** Throws 'reconcile-differs' while something is wrong. */
export const requireAgreement = (result: ReconcileResult): void => {
  const wrong = result.differences.filter(isWrong);
  const [first] = wrong;
  if (first === undefined) return;
  const counts = new Map<DifferenceKind, number>();
  for (const { kind } of wrong) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  const told = [...counts].map(([kind, count]) => `${count} ${kind}`).join(', ');
  throw new XceError('reconcile-differs', `${countOf(wrong.length, 'difference')}: ${told}`, {
    unchanged: 'leases that may run, and what is not told as mended',
    detail: { ...result },
  });
};
