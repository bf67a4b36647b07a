/**
 * Frees a uid by proof: every node of the lease certifies that nothing of it is left, then every root is handed
 * over and verified, then the uid is free. Whatever is missing puts the lease into quarantine with the reason; a
 * later release goes on from there. A node that an operator has reclaimed holds up the uid, but not the files.
 */
import { countOf } from '../base/count.ts';
import { assert, type ErrorCode, XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import type { LeaseNumber, NodeName } from '../base/ids.ts';
import { type Answer, askAll, tellFailures } from '../launch/fleet.ts';
import type { DrainNonce, QuarantineCode } from '../lease/event.ts';
import type { LeaseRef } from '../lease/reference.ts';
import { commandFor } from '../lease/reference.ts';
import type { QuarantineRequest } from '../lease/rules.ts';
import type { LeaseView } from '../lease/view.ts';
import { foldNodes } from '../nodes/hostlist.ts';
import type { Failure } from '../nodes/reasons.ts';
import type { NormaliseReport } from '../normalise/report.ts';
import type { RequestOf, ResponseOf } from '../rpc/message.ts';
import { challengeNodes } from './challenge.ts';
import type { Context } from './context.ts';
import { type LeaseSelection, requireLeaseRef } from './lease-reference.ts';
import { handOverRoot, leaseScopes } from './normalise.ts';
import { tellNotices } from './notices.ts';
import { requireNobodys } from './uid-audit.ts';

export type ReleaseResult = {
  readonly lease: LeaseNumber;
  readonly job: string;
  readonly attempt: number;
  readonly uid: number;
  readonly status: 'free';
  readonly nodes: readonly NodeName[];
  readonly roots: readonly NormaliseReport[];
};

type Missing = {
  readonly code: Exclude<QuarantineCode, 'superseded' | 'expired'>;
  readonly text: string;
  readonly node: NodeName | null;
  /** Whether the node itself is not clean, or gives no answer; else it is ours, or the file system's. */
  readonly isOfNode: boolean;
  /** Where more is to be done about it than to mend what the text says. */
  readonly cure?: string;
};

/** What a 'release-blocked' of releaseLease says of nodes that are not clean or give no answer. */
export const nodeFaultsOf = ({ facts }: XceError): readonly Failure[] =>
  ((facts.detail?.['missing'] ?? []) as readonly Missing[]).flatMap(({ isOfNode, node, text }) =>
    isOfNode && node !== null ? [{ message: text, facts: { at: node } }] : [],
  );

/** What is done first, when a worker has served a later epoch than the one that asks it. */
const RAISE_EPOCH =
  'the node has seen a later epoch than this controller writes in: xce-sandbox lease verify; if the log is the newest, xce-sandbox lease takeover on the controller that is to write, until its epoch is the higher one';

/** What the uid comes to, of a lease as it was before the release. */
const keptUid = ({ uid, lease, status }: LeaseView): string =>
  status === 'quarantined'
    ? `uid ${uid} is kept in quarantine and will not be leased`
    : `uid ${uid} stays with lease ${lease}, which is in quarantine now, and will not be leased to another`;

/** Only an operator can know that a node which gives no answer is off, and gives none any more. */
const reclaimAdvice = (lease: LeaseView, missing: readonly Missing[]): string => {
  const silent = missing.flatMap(({ code, node }) => (code === 'node-unreachable' ? (node ?? []) : []));
  const [first] = silent;
  if (first === undefined) return '';
  const node = silent.length === 1 ? first : 'NODE';
  return `; for a node that is lost, once it is certainly off: ${commandFor('lease reclaim', lease)} --node ${node} --reason TEXT`;
};

/**
 * Records why the uid stays away from everybody, and says so. `before` is the lease as the release found it; `told` is
 * what the refusal says.
 */
const keepInQuarantine = async (
  context: Context,
  before: LeaseView,
  reason: QuarantineRequest,
  told: {
    readonly message: string;
    readonly next: string;
    readonly detail: Readonly<Record<string, unknown>>;
  },
): Promise<never> => {
  const { lease, uid } = before;
  tellNotices(context, (await context.leases.quarantine({ lease }, reason)).notices);
  throw new XceError('release-blocked', told.message, {
    unchanged: keptUid(before),
    next: told.next,
    detail: { lease, uid, ...told.detail },
  });
};

const block = async (context: Context, before: LeaseView, missing: readonly Missing[]): Promise<never> => {
  const [first] = missing;
  if (first === undefined) throw new XceError('bug', 'a release is blocked by something');
  const text = tellFailures(
    missing.map((one) => ({ message: one.text, facts: one.node === null ? {} : { at: one.node } })),
  );
  const cures = [...new Set(missing.flatMap(({ cure }) => cure ?? []))];
  const mend = cures.length === 0 ? 'mend this' : cures.join('; ');
  const told = {
    message: `lease ${before.lease}: ${text}`,
    next: `${mend}, then: ${commandFor('lease release', before)}${reclaimAdvice(before, missing)}`,
    detail: { missing: missing.map(({ cure: _, ...one }) => one) },
  };
  return await keepInQuarantine(context, before, { code: first.code, text, node: first.node }, told);
};

/** Runs what looks at storage; a look that is refused blocks the release. */
const orBlock = async <T>(context: Context, before: LeaseView, look: () => T | Promise<T>): Promise<T> => {
  try {
    return await look();
  } catch (error) {
    if (!(error instanceof XceError) || error.code === 'bug') throw error;
    const code = error.code === 'mount-changed' ? error.code : 'normalise-refused';
    return await block(context, before, [
      { code, text: escapeText(error.message), node: null, isOfNode: false },
    ]);
  }
};

/** Codes that say nothing of what is on a node, only that its worker gave no answer to us. */
const UNREACHABLE: readonly ErrorCode[] = [
  'worker-unreachable',
  'timeout',
  'cancelled',
  'tls',
  'peer-unknown',
];

/** Codes that a node itself is the cause of. Others may be the fault of this controller, with every node. */
const OF_NODES: readonly ErrorCode[] = ['node-dirty', 'certificate', 'worker-unreachable', 'timeout'];

const asMissing = (error: XceError, node: NodeName): Missing => {
  const { code } = error;
  const isOwn = code === 'certificate' || code === 'node-dirty';
  return {
    code: isOwn ? code : UNREACHABLE.includes(code) ? 'node-unreachable' : 'node-dirty',
    text: escapeText(error.message),
    node,
    isOfNode: OF_NODES.includes(code),
    ...(code === 'ticket-epoch' ? { cure: RAISE_EPOCH } : {}),
  };
};

/** Has a node end what it has of a lease, look for the rest and certify. */
export const drainNode = async (
  { fleet, settings }: Context,
  node: NodeName,
  request: RequestOf<'drain'>,
): Promise<ResponseOf<'drain'>> => {
  const session = await fleet.session(node);
  const timeoutMs = settings.worker.drainTimeoutMs + settings.nodes.requestTimeoutMs;
  return await session.call('drain', request, { timeoutMs });
};

/** Asks every node that has not certified, with the nonce that the log has recorded for it. */
const drainNodes = (
  context: Context,
  lease: LeaseView,
  epoch: number,
  nonces: readonly DrainNonce[],
): Promise<readonly Answer<ResponseOf<'drain'>>[]> => {
  const nonceOf = new Map(nonces.map(({ node, nonce }) => [node, nonce]));
  return askAll(
    nonces.map(({ node }) => node),
    async (node) => {
      const nonce = nonceOf.get(node);
      assert(nonce !== undefined, 'each node that is asked has its nonce');
      const { lease: number, uid, job, attempt } = lease;
      return await drainNode(context, node, { epoch, lease: number, uid, job, attempt, nonce });
    },
  );
};

/** Nodes that were reclaimed and have not certified since. */
const awaited = (lease: LeaseView): readonly NodeName[] =>
  lease.nodes.filter((node) => node.reclaim !== null).map(({ node }) => node);

/** Everything is done that can be done without the reclaimed nodes. */
const waitForReturn = async (
  context: Context,
  before: LeaseView,
  nodes: readonly NodeName[],
): Promise<never> => {
  const names = `${nodes.length === 1 ? 'node' : 'nodes'} ${foldNodes(nodes)}`;
  const text = `files are handed over; uid ${before.uid} waits for ${names} to certify after its return`;
  const reason = { code: 'reclaimed', text, node: nodes[0] ?? null } as const;
  return await keepInQuarantine(context, before, reason, {
    message: text,
    next: `once it is back: ${commandFor('lease release', before)}`,
    detail: { waitsFor: nodes },
  });
};

/** What the log would not take from a node. */
type NodeProblem = { readonly node: NodeName; readonly problem: string; readonly cure?: string | undefined };

/** What keeps the nodes from having certified, all of them: those that a reclaim waits for may be silent. */
const listMissing = (
  lease: LeaseView,
  answers: readonly Answer<unknown>[],
  {
    foreign,
    refused,
  }: { readonly foreign: readonly NodeProblem[]; readonly refused: readonly NodeProblem[] },
): readonly Missing[] => {
  const gone: ReadonlySet<NodeName | null> = new Set(awaited(lease));
  const unfit = ({ node, problem, cure }: NodeProblem): Missing => ({
    code: 'certificate',
    text: problem,
    node,
    isOfNode: true,
    ...(cure === undefined ? {} : { cure }),
  });
  return [
    ...foreign.map(unfit),
    ...answers
      .flatMap((answer) => (answer.ok ? [] : [asMissing(answer.error, answer.node)]))
      .filter(({ code, node }) => code !== 'node-unreachable' || !gone.has(node)),
    ...refused.map(unfit),
  ];
};

/** Throws 'release-blocked' once the lease is in quarantine for what is missing. */
export const releaseLease = async (context: Context, selection: LeaseSelection): Promise<ReleaseResult> => {
  const { leases, progress } = context;
  const before = await leases.show(requireLeaseRef(selection));
  const ref: LeaseRef = { lease: before.lease };

  const certified = await progress.phase(`drain ${countOf(before.nodes.length, 'node')}`, async () => {
    const asked = before.nodes.filter((node) => !node.certified).map(({ node }) => node);
    const { bindings } = await challengeNodes(context, asked, 'hello');
    const begun =
      before.status === 'quarantined'
        ? await leases.retry(ref, bindings)
        : await leases.beginDrain(ref, bindings);
    tellNotices(context, begun.notices);
    const { lease, nonces, foreign } = begun.result;
    const answers = await drainNodes(context, lease, begun.position.epoch, nonces);
    const nonceOf = new Map(nonces.map(({ node, nonce }) => [node, nonce]));
    const certificates = answers.flatMap(({ node, ...answer }) =>
      answer.ok ? [{ node, nonce: nonceOf.get(node), certificate: answer.value.certificate }] : [],
    );
    const recorded = await leases.certify(ref, certificates);
    tellNotices(context, recorded.notices);
    // Whoever asked last gets the certificates that count; a quarantine from here would only stop that one.
    if (recorded.result.askedAnew.length > 0) {
      throw new XceError('lease-state', `another release of lease ${lease.lease} has begun since this one`, {
        unchanged: 'the lease is left to that one',
        next: commandFor('lease show', lease),
      });
    }
    const { refused } = recorded.result;
    const missing = listMissing(lease, answers, { foreign, refused });
    if (missing.length > 0) await block(context, before, missing);
    return recorded.result.lease;
  });

  await requireNobodys(context, certified);
  const begun = await leases.beginNormalise(ref);
  tellNotices(context, begun.notices);
  const { proof } = begun.result;
  const roots: NormaliseReport[] = [];
  const scopes = await orBlock(context, before, () => leaseScopes(context, certified));
  for (const scope of scopes) {
    roots.push(
      await progress.phase(`hand over ${scope.walkPath}`, async (update) => {
        const { report, result } = await orBlock(context, before, () =>
          handOverRoot(context, certified, scope, update),
        );
        if (result === undefined) {
          const why =
            report.refusal?.message ?? report.findings.find((one) => one.blocks)?.hint ?? 'inodes are left';
          const code = report.refusal?.code === 'mount-changed' ? 'mount-changed' : undefined;
          return await block(context, before, [
            {
              code: code ?? (report.status === 'refused' ? 'normalise-refused' : 'normalise-partial'),
              text: `${escapeText(scope.walkPath)}: ${report.left} inodes left: ${why}`,
              node: null,
              isOfNode: false,
            },
          ]);
        }
        tellNotices(context, (await leases.finishRoot(ref, { ...result, proof })).notices);
        return report;
      }),
    );
  }
  const missing = awaited(certified);
  if (missing.length > 0) return await waitForReturn(context, before, missing);
  const freed = await leases.free(ref);
  tellNotices(context, freed.notices);
  return {
    lease: certified.lease,
    job: certified.job,
    attempt: certified.attempt,
    uid: freed.result.uid,
    status: 'free',
    nodes: certified.nodes.map(({ node }) => node),
    roots,
  };
};
