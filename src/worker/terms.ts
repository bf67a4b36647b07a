/** What a ticket says of the sandbox itself, in the words of the backend. */
import { XceError } from '../base/errors.ts';
import type { TicketClaims } from '../lease/ticket.ts';
import type { Resources } from '../rpc/message.ts';
import type { SandboxSpec } from '../sandbox/backend.ts';
import { DEFAULT_RESOURCES, isSameResources } from '../sandbox/resources.ts';

/** All that the names of a sandbox's parts are made of. */
export type SandboxIdentity = Pick<SandboxSpec, 'instance' | 'job' | 'attempt' | 'lease' | 'uid'>;

export const identityOf = (claims: TicketClaims): SandboxIdentity => ({
  instance: claims.instance,
  job: claims.job,
  attempt: claims.attempt,
  lease: claims.lease,
  uid: claims.uid,
});

export const specOf = (claims: TicketClaims): SandboxSpec => ({
  ...identityOf(claims),
  epoch: claims.epoch,
  node: claims.node,
  nodes: claims.nodes,
  writablePaths: claims.roots.map((root) => root.path),
  workspaceRoot: claims.workspace === null ? null : claims.workspace.path,
});

const termsOf = (claims: TicketClaims): string =>
  JSON.stringify([
    identityOf(claims),
    claims.submitterUid,
    claims.submitterGid,
    claims.roots.map((root) => root.path),
    claims.workspace,
  ]);

/** A newer ticket of a lease may differ in time, epoch and nodes, never in what the sandbox is made from. */
export const requireSameTerms = (known: TicketClaims, claims: TicketClaims): void => {
  if (termsOf(known) !== termsOf(claims)) {
    throw new XceError('lease-conflict', `lease ${claims.lease} has a sandbox here that is made otherwise`);
  }
};

/** What a sandbox is asked for with. A request that says nothing takes it as it is; one that differs is refused. */
export const chooseResources = (
  lease: number,
  known: Resources | undefined,
  asked: Resources | undefined,
): Resources => {
  if (known === undefined || asked === undefined) return known ?? asked ?? DEFAULT_RESOURCES;
  if (!isSameResources(known, asked)) {
    throw new XceError('lease-conflict', `lease ${lease} has a sandbox here with other limits or devices`, {
      next: 'xce-sandbox stop',
    });
  }
  return known;
};

/** The same for a request that names no more than the identity. */
export const requireSameIdentity = (known: TicketClaims, identity: SandboxIdentity): void => {
  if (known.uid !== identity.uid || known.job !== identity.job || known.attempt !== identity.attempt) {
    throw new XceError('lease-conflict', `lease ${identity.lease} is of another uid, job or attempt here`);
  }
};
