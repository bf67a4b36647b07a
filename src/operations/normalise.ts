/** Hands the files of a lease to its submitter, root by root, on this host. */
import { XceError } from '../base/errors.ts';
import type { StorageSettings } from '../config/settings.ts';
import type { LeaseRef } from '../lease/reference.ts';
import type { NormaliseStart, ScopeResult } from '../lease/rules.ts';
import type { LeaseView } from '../lease/view.ts';
import { normaliseRoot } from '../normalise/normalise.ts';
import type { Mode, NormaliseReport } from '../normalise/report.ts';
import { sumCounts } from '../normalise/report.ts';
import { mountOf } from '../os/mounts.ts';
import { kindOf } from '../os/root-files.ts';
import { requireMounted } from '../sandbox/storage.ts';
import { workspacePaths } from '../sandbox/workspace.ts';
import type { Context } from './context.ts';
import { type LeaseSelection, requireLeaseRef } from './lease-reference.ts';
import { tellNotices } from './notices.ts';
import { requireNobodys } from './uid-audit.ts';

/** One path that the job could write. */
export type LeaseScope = {
  /** As the lease log names it: a workspace root, or a path that was leased for writing. */
  readonly path: string;
  /** Where the walk starts: the job's own directory below a workspace root, else the same. */
  readonly walkPath: string;
  /** Above the job's own directory: kept shut until nothing of the uid is left below. */
  readonly gate: string | null;
  readonly storagePath: string;
  readonly mount: { readonly source: string; readonly type: string; readonly fsid: string };
};

/** The storage must be mounted; what holds the path may be a further mount below it. */
const mountNow = (storage: StorageSettings, path: string): LeaseScope['mount'] => {
  const mounted = requireMounted(storage, mountOf);
  return kindOf(path) === 'none' ? mounted : mountOf(path);
};

export const leaseScopes = (context: Context, lease: LeaseView): readonly LeaseScope[] => {
  const { settings } = context;
  const { workspace } = lease;
  const places: readonly (Pick<LeaseScope, 'path' | 'walkPath' | 'gate'> & { readonly storage: string })[] = [
    ...(workspace === null
      ? []
      : [workspace].map(({ path, storage }) => {
          const key = { instance: settings.cluster.instance, job: lease.job, attempt: lease.attempt };
          const { gate, directory } = workspacePaths(path, key);
          return { path, storage, walkPath: directory, gate };
        })),
    ...lease.roots.map((root) => ({ ...root, walkPath: root.path, gate: null })),
  ];
  return places.map(({ path, storage: name, walkPath, gate }) => {
    const storage = settings.storage.find((one) => one.name === name);
    if (storage === undefined) {
      throw new XceError('normalise-refused', `there is no [storage ${name}] any more`, {
        at: path,
        unchanged: 'no file changed its owner',
        next: `put [storage ${name}] back into ${context.configPath}`,
      });
    }
    // Mounts are recorded before the first step starts, so without a record nothing of the job ran there. A node
    // may have made the workspace all the same, and where the storage is not mounted nobody would find it.
    const mount = lease.mounts.find((one) => one.path === path) ?? mountNow(storage, path);
    return { path, walkPath, gate, storagePath: storage.path, mount };
  });
};

/** A job that never started anywhere has no workspace: nothing to hand over, and nothing left. */
const isNeverMade = (lease: LeaseView, scope: LeaseScope, report: NormaliseReport): boolean =>
  report.refusal?.reason === 'missing' &&
  scope.path !== scope.walkPath &&
  !lease.mounts.some((one) => one.path === scope.path);

const walk = async (
  context: Context,
  lease: LeaseView,
  scope: LeaseScope,
  mode: Mode,
  update: (text: string) => void,
): Promise<NormaliseReport> => {
  const report = await normaliseRoot(
    {
      root: { path: scope.walkPath, storagePath: scope.storagePath, mount: scope.mount },
      uid: lease.uid,
      gid: lease.uid,
      to: lease.submitter,
      mode,
      otherPoolRange: context.settings.pool,
      onProgress: ({ pass, names, changed }) => update(`pass ${pass}: ${names} names, ${changed} changed`),
    },
    context.normalisePorts,
  );
  return isNeverMade(lease, scope, report) ? { ...report, status: 'complete', refusal: null } : report;
};

/** Hands one root over. `result` is there only if the last pass, a look, found nothing: the lease log records it. */
export const handOverRoot = async (
  context: Context,
  lease: LeaseView,
  scope: LeaseScope,
  update: (text: string) => void,
): Promise<{ readonly report: NormaliseReport; readonly result: Omit<ScopeResult, 'proof'> | undefined }> => {
  const report = await walk(context, lease, scope, 'apply', update);
  if (report.status !== 'complete') return { report, result: undefined };
  // Where nothing was ever made there is no gate either.
  if (scope.gate !== null && report.mount !== null) context.openGate(scope.gate);
  const { names, changed, left } = report;
  return {
    report,
    result: { path: scope.path, walked: sumCounts(names), changed: sumCounts(changed), left },
  };
};

export type NormaliseResult = {
  readonly lease: number;
  readonly job: string;
  readonly attempt: number;
  readonly uid: number;
  readonly mode: Mode;
  readonly status: 'complete' | 'partial' | 'refused';
  readonly roots: readonly NormaliseReport[];
};

/**
 * Plan and verify look, in any state of the lease. Apply changes owners: only when every node has certified that
 * no process of the uid lives. A result that is not `complete` is not an error here; the caller maps it.
 */
export const normaliseLease = async (
  context: Context,
  selection: LeaseSelection,
  mode: Mode,
): Promise<NormaliseResult> => {
  const { leases, progress } = context;
  const ref = requireLeaseRef(selection);
  const start = mode === 'apply' ? await beginApply(context, ref) : undefined;
  const lease = start?.lease ?? (await leases.show(ref));
  const roots: NormaliseReport[] = [];
  for (const scope of leaseScopes(context, lease)) {
    const report = await progress.phase(`${mode} ${scope.walkPath}`, async (update) => {
      if (start === undefined) return await walk(context, lease, scope, mode, update);
      const handedOver = await handOverRoot(context, lease, scope, update);
      if (handedOver.result !== undefined) {
        const result = { ...handedOver.result, proof: start.proof };
        tellNotices(context, (await leases.finishRoot({ lease: lease.lease }, result)).notices);
      }
      return handedOver.report;
    });
    roots.push(report);
  }
  const status = (['refused', 'partial'] as const).find((one) => roots.some((root) => root.status === one));
  const { job, attempt, uid } = lease;
  return { lease: lease.lease, job, attempt, uid, mode, status: status ?? 'complete', roots };
};

const beginApply = async (context: Context, ref: LeaseRef): Promise<NormaliseStart> => {
  await requireNobodys(context, await context.leases.show(ref));
  const { result, notices } = await context.leases.beginNormalise(ref);
  tellNotices(context, notices);
  return result;
};

/** Throws unless the walk came to the end that lets a uid go. */
export const requireComplete = (result: NormaliseResult): void => {
  if (result.status === 'complete' || (result.mode === 'plan' && result.status === 'partial')) return;
  const left = result.roots.reduce((sum, root) => sum + root.left, 0);
  const refused = result.roots.find((root) => root.refusal !== null)?.refusal;
  throw new XceError(
    refused?.code ?? 'normalise-partial',
    refused?.message ?? `${left} inodes of uid ${result.uid} are left`,
    {
      unchanged: `uid ${result.uid} stays leased`,
      next: 'mend what the report names, then repeat the command',
    },
  );
};
