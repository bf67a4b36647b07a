/**
 * A leased uid and the name service. Nobody may have the uid while a lease holds it: whoever got it in the directory
 * meanwhile would own what the job wrote. So it is looked up again before any file changes its owner, and by
 * `lease audit` for all leases; a lease whose uid is somebody's is flagged and ends.
 */
import { countOf } from '../base/count.ts';
import { XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import { commandFor } from '../lease/reference.ts';
import type { LeaseView } from '../lease/view.ts';
import type { Answer } from '../os/name-service.ts';
import type { Context } from './context.ts';
import { tellNotices } from './notices.ts';

/** How often the user record of the lease may come or go under the look-ups. */
const LOOKS_MAX = 3;

/**
 * What the name service says of a lease's uid. Where this host is a node of the lease, the record of its own sandbox
 * is nobody else's: then all but the records of systemd are asked.
 */
const lookUpLease = async (context: Context, lease: LeaseView): Promise<Answer> => {
  let isOwn = context.hasUserRecord(lease);
  for (let look = 0; look < LOOKS_MAX; look += 1) {
    const found = await context.nameService.lookUp(lease.uid, isOwn ? 'no records' : 'all');
    const isOwnNow = context.hasUserRecord(lease);
    if (found.answer !== 'present' || isOwn === isOwnNow) return found;
    isOwn = isOwnNow;
  }
  return { answer: 'unknown', reason: 'the sandbox of the lease on this host came or went each time' };
};

const flag = async (context: Context, lease: LeaseView, reason: string): Promise<void> => {
  const { notices } = await context.leases.quarantine(
    { lease: lease.lease },
    { code: 'uid-taken', text: escapeText(reason), node: null },
  );
  tellNotices(context, notices);
};

/** False for a lease that has ended since it was listed: whoever has its uid now may have it. */
const flagIfThere = async (context: Context, lease: LeaseView, reason: string): Promise<boolean> => {
  try {
    await flag(context, lease, reason);
    return true;
  } catch (error) {
    if (error instanceof XceError && error.code === 'lease-ended') return false;
    throw error;
  }
};

const next = (lease: LeaseView): string => commandFor('lease release', lease);

/** Throws 'uid-taken' once the lease is flagged, and 'name-service' where nothing is proven. */
export const requireNobodys = async (context: Context, lease: LeaseView): Promise<void> => {
  const { answer, reason } = await lookUpLease(context, lease);
  if (answer === 'absent') return;
  const name = `uid ${lease.uid} of lease ${lease.lease}`;
  if (answer === 'unknown') {
    throw new XceError('name-service', `${name} may be somebody's: ${reason}`, {
      unchanged: 'no file changed its owner, and the uid stays leased',
      next: `once the name service answers, and finds [directory] control_uid: ${next(lease)}`,
      detail: { lease: lease.lease, uid: lease.uid },
    });
  }
  await flag(context, lease, reason);
  throw new XceError('uid-taken', `${name} is somebody's: ${reason}`, {
    unchanged: `no file changed its owner, and uid ${lease.uid} is kept in quarantine`,
    next: `give that account another uid, then: ${next(lease)}`,
    detail: { lease: lease.lease, uid: lease.uid },
  });
};

/** Each look-up runs a few short processes. */
const LOOK_UPS_AT_ONCE = 8;
/** A name service that gives no answer so often is down, and each question takes its time. */
const UNKNOWN_MAX = 32;

export type AuditedUid = {
  readonly lease: number;
  readonly uid: number;
  readonly job: string;
  readonly attempt: number;
  readonly answer: 'present' | 'unknown';
  readonly reason: string;
};

export type AuditResult = {
  readonly leases: number;
  readonly absent: number;
  /** By lease number. Those that are present are in quarantine now. */
  readonly found: readonly AuditedUid[];
  /** Nobody was asked about these any more, since too many questions had no answer. */
  readonly skipped: number;
};

/** Asks about the uid of every lease. A result that is not clean is no error here: see requireClean. */
export const auditUids = async (context: Context): Promise<AuditResult> => {
  const leases = await context.leases.list();
  const found: AuditedUid[] = [];
  let unknown = 0;
  let asked = 0;
  const take = async (update: (text: string) => void): Promise<void> => {
    while (asked < leases.length && unknown < UNKNOWN_MAX) {
      const lease = leases[asked];
      asked += 1;
      if (lease === undefined) return;
      update(`${asked} of ${leases.length}`);
      const { answer, reason } = await lookUpLease(context, lease);
      if (answer === 'absent') continue;
      if (answer === 'unknown') unknown += 1;
      else if (!(await flagIfThere(context, lease, reason))) continue;
      const { uid, job, attempt } = lease;
      found.push({ lease: lease.lease, uid, job, attempt, answer, reason });
    }
  };
  await context.progress.phase(`look up the uids of ${countOf(leases.length, 'lease')}`, async (update) => {
    await Promise.all(Array.from({ length: LOOK_UPS_AT_ONCE }, () => take(update)));
  });
  return {
    leases: leases.length,
    absent: asked - found.length,
    found: found.sort((one, other) => one.lease - other.lease),
    skipped: leases.length - asked,
  };
};

/** Throws 'uid-taken' or 'name-service' unless every uid was proven to be nobody's. */
export const requireClean = (result: AuditResult): void => {
  const present = result.found.filter(({ answer }) => answer === 'present');
  const [first] = present.length > 0 ? present : result.found;
  if (first === undefined) return;
  const count = present.length > 0 ? present.length : result.found.length + result.skipped;
  throw new XceError(
    present.length > 0 ? 'uid-taken' : 'name-service',
    `leased uids that ${present.length > 0 ? 'are' : 'may be'} somebody's: ${count}; lease ${first.lease}: ${first.reason}`,
    {
      unchanged: 'every uid stays leased',
      next:
        present.length > 0
          ? 'give those accounts other uids'
          : 'repeat once the name service answers, and finds [directory] control_uid',
      detail: result,
    },
  );
};
