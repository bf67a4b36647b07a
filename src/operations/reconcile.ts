/**
 * Compares the lease log with what the nodes and the storage have, and ends what is over: leases whose time is up or
 * whose release stopped half way, and sandboxes of leases that have ended. A lease that may run is never touched, and
 * what only an operator can know is told and left.
 */
import { randomBytes } from 'node:crypto';
import { countOf } from '../base/count.ts';
import { XceError } from '../base/errors.ts';
import type { LeaseNumber, NodeName } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import type { StorageSettings } from '../config/settings.ts';
import { askAll, failures, joinFailures } from '../launch/fleet.ts';
import type { LeaseView } from '../lease/view.ts';
import { mountOf } from '../os/mounts.ts';
import { pause } from '../os/watch.ts';
import type { CallOptions, RpcSession } from '../rpc/session.ts';
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
import { drainNode, releaseLease } from './lease-release.ts';
import { tellNotices } from './notices.ts';
import { askWorkers } from './status.ts';

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

const MEND_STORAGE = 'mend what is named, then repeat';
/** Gates that are looked at before anything else has a turn. */
const GATES_AT_ONCE = 512;

const lookAtNodes = async (context: Context, nodes: readonly NodeName[]): Promise<readonly NodeLook[]> => {
  const timeout = { timeoutMs: context.settings.nodes.requestTimeoutMs };
  const answers = await askWorkers(context, nodes, async (session) => {
    const { sandboxes } = await session.call('status', {}, timeout);
    return { sandboxes, strays: await straysOf(session, timeout) };
  });
  return answers.map((answer) =>
    answer.ok
      ? { node: answer.node, ok: true, ...answer.value }
      : { node: answer.node, ok: false, message: answer.error.message },
  );
};

/** A worker of an older version does not tell of them, nor does one whose systemd gives no answer. */
const straysOf = async (
  session: RpcSession,
  timeout: CallOptions,
): Promise<readonly number[] | { readonly unknown: string }> => {
  try {
    return (await session.call('strays', {}, timeout)).leases;
  } catch (error) {
    if (!(error instanceof XceError) || error.code === 'bug') throw error;
    return { unknown: error.message };
  }
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
    return {
      gates: [],
      silent: [{ storage: storage.name, message: error.message, next: error.facts.next ?? MEND_STORAGE }],
    };
  }
};

/** Everything that a lease in the log, a worker or a storage says, in an order in which no change looks like a fault. */
const look = async (
  context: Context,
  unsure: ReadonlySet<LeaseNumber> = new Set(),
): Promise<readonly Difference[]> => {
  const { leases, settings, clock } = context;
  const sinceWallMs = clock.wallMs();
  const before = await leases.list();
  const named = before.flatMap((lease) => lease.nodes.map(({ node }) => node));
  const nodes = await lookAtNodes(context, [...new Set([...settings.nodes.hosts, ...named])]);
  const stores: GateLooks[] = [];
  for (const storage of settings.storage) stores.push(await lookAtStorage(context, storage));
  const now = await leases.list();
  const held = new Set<number>([...before, ...now].map(({ lease }) => lease));
  const unknown = nodes
    .flatMap((one) =>
      one.ok
        ? [...('unknown' in one.strays ? [] : one.strays), ...one.sandboxes.map(({ lease }) => lease)]
        : [],
    )
    .filter((lease) => !held.has(lease));
  const gateOf = ({ workspace, job, attempt }: LeaseView): string | null =>
    workspace === null
      ? null
      : workspacePaths(workspace.path, { instance: settings.cluster.instance, job, attempt }).gate;
  return findDifferences({
    before,
    now,
    nodes,
    // One that was opened meanwhile was covered then.
    gates: stores.flatMap(({ gates }) => gates).filter(({ path, gid }) => groupOfShutGate(path) === gid),
    silent: stores.flatMap(({ silent }) => silent),
    gateOf,
    ended: await leases.endedAmong(new Set(unknown as LeaseNumber[])),
    sinceWallMs,
    unsure,
  });
};

/** Ends on these nodes what is left of a lease that has ended. The certificates prove it to us, and are for no log. */
const drainOn = async (
  context: Context,
  nodes: readonly NodeName[],
  epoch: number,
  { lease, uid, job, attempt }: DrainTarget,
): Promise<void> => {
  const answers = await askAll(nodes, async (node) => {
    const nonce = randomBytes(LIMITS.nonceBytes).toString('hex');
    await drainNode(context, node, { epoch, lease, uid, job, attempt, nonce });
  });
  const failed = joinFailures(failures(answers), `lease ${lease} is not ended everywhere`);
  if (failed !== undefined) throw failed;
};

/** Nodes that have something of the lease again have to certify again, and files are walked after that. */
const rejoin = async (context: Context, lease: LeaseNumber, nodes: readonly NodeName[]): Promise<void> => {
  if (nodes.length === 0) return;
  tellNotices(context, (await context.leases.retry({ lease }, [])).notices);
  for (const node of nodes) tellNotices(context, (await context.leases.join({ lease }, node)).notices);
};

const mendOne = async (context: Context, epoch: number, difference: Difference): Promise<void> => {
  const { mend, lease, drain, nodes } = difference;
  if (mend === 'release' && lease !== null) {
    await rejoin(context, lease, difference.rejoin);
    await releaseLease(context, { job: undefined, attempt: undefined, lease });
  } else if (drain !== null) {
    await context.progress.phase(`drain lease ${drain.lease}`, () => drainOn(context, nodes, epoch, drain));
  }
};

/** Codes that say that this controller cannot go on, whichever lease it is about. */
const isOfController = ({ code }: XceError): boolean =>
  code === 'bug' || code === 'cancelled' || code.startsWith('log-');

/** Mends one after the other; a lease once. Throws what ends the command, with what was mended until then. */
const mendAll = async (
  context: Context,
  epoch: number,
  differences: readonly Difference[],
): Promise<readonly Mended[]> => {
  const mended: Mended[] = [];
  const released = new Set<LeaseNumber>();
  for (const difference of differences) {
    const { mend, lease } = difference;
    if (mend === null || (mend === 'release' && lease !== null && released.has(lease))) continue;
    if (mend === 'release' && lease !== null) released.add(lease);
    try {
      await mendOne(context, epoch, difference);
      mended.push({ difference, failed: null });
    } catch (error) {
      if (!(error instanceof XceError)) throw error;
      const { code, message, facts } = error;
      if (isOfController(error)) {
        throw new XceError(code, message, { ...facts, detail: { ...facts.detail, mended }, cause: error });
      }
      mended.push({ difference, failed: { code, message } });
    }
  }
  return mended;
};

/**
 * Lists what differs; with `apply` mends first what can be mended without an operator's word, one after the other.
 * Throws 'log-fenced' and what else a commit throws, with what was mended until then. What is left is no error here:
 * see requireAgreement.
 */
export const reconcile = async (context: Context, apply: boolean): Promise<ReconcileResult> => {
  if (!apply) return { differences: await look(context), mended: [] };
  const { result, position, notices } = await context.leases.expireAll();
  tellNotices(context, notices);
  const unsure = new Set(
    result.outcomes.flatMap(({ lease, outcome }) => (outcome === 'unsure' ? [lease] : [])),
  );
  const found = await look(context, unsure);
  const mended = await mendAll(context, position.epoch, found);
  return { differences: mended.length === 0 ? found : await look(context, unsure), mended };
};

/** Throws 'reconcile-differs' while something is wrong. */
export const requireAgreement = (result: ReconcileResult): void => {
  const wrong = result.differences.filter(isWrong);
  if (wrong.length === 0) return;
  const counts = new Map<DifferenceKind, number>();
  for (const { kind } of wrong) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  const told = [...counts].map(([kind, count]) => `${count} ${kind}`).join(', ');
  throw new XceError('reconcile-differs', `${countOf(wrong.length, 'difference')}: ${told}`, {
    unchanged: 'leases that may run, and what is not told as mended',
    detail: result,
  });
};
