/** An operator attests that a node of a lease is fenced off. */
import { XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import type { NodeName } from '../base/ids.ts';
import { commandFor } from '../lease/reference.ts';
import type { ReclaimRequest } from '../lease/rules.ts';
import type { LeaseView } from '../lease/view.ts';
import { readLoginUid } from '../os/login-uid.ts';
import { challengeNodes } from './challenge.ts';
import type { Context } from './context.ts';
import { type LeaseSelection, requireLeaseRef } from './lease-reference.ts';
import { tellNotices } from './notices.ts';

export type ReclaimInput = {
  readonly selection: LeaseSelection;
  readonly node: NodeName;
  readonly reason: string;
  /** undefined: who logged in, as the kernel has it; root where nobody did. */
  readonly by: string | undefined;
};

const findOperator = async (context: Context): Promise<string> => {
  const uid = readLoginUid();
  if (uid === undefined || uid === 0) return 'root';
  const account = await context.accounts.findByUid(uid);
  return account === undefined ? `uid ${uid}` : `${account.name} (uid ${uid})`;
};

/**
 * A node that answers in the very boot that the lease was bound to is anything but fenced off, whatever the key of its
 * worker is by now.
 */
const requireGone = async (context: Context, lease: LeaseView, name: NodeName): Promise<void> => {
  const known = lease.nodes.find(({ node }) => node === name);
  if (known?.bootId == null) return;
  const { bindings } = await challengeNodes(context, [name], 'hello');
  const [answer] = bindings;
  if (answer?.bootId !== known.bootId) return;
  throw new XceError('lease-state', `${name} answers, in the boot that lease ${lease.lease} is bound to`, {
    at: name,
    unchanged: 'nothing was written to the lease log',
    next: `${commandFor('lease release', lease)}, or power ${name} off first`,
  });
};

/** The first word for a node stands until it certifies; whoever comes with another one is told. */
const tellEarlier = (context: Context, lease: LeaseView, said: ReclaimRequest): void => {
  const kept = lease.nodes.find(({ node }) => node === said.node)?.reclaim;
  if (kept == null || (kept.by === said.by && kept.reason === said.reason)) return;
  const when = new Date(kept.wallMs).toISOString();
  context.tell(
    `${said.node} was reclaimed before, by ${escapeText(kept.by)} at ${when}: ${escapeText(kept.reason)}; that stands, and nothing new was recorded`,
  );
};

/** Throws 'node-unknown', 'lease-state' for a node that has certified or is not gone, and 'usage'. */
export const reclaimNode = async (context: Context, input: ReclaimInput): Promise<LeaseView> => {
  const lease = await context.leases.show(requireLeaseRef(input.selection));
  await requireGone(context, lease, input.node);
  const { node, reason, by = await findOperator(context) } = input;
  const { result, notices } = await context.leases.reclaim({ lease: lease.lease }, { node, by, reason });
  tellNotices(context, notices);
  tellEarlier(context, result, { node, by, reason });
  return result;
};
