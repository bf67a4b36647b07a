import { posix } from 'node:path';
import { formatDuration } from '../base/duration.ts';
import { XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import type { Attempt, JobId } from '../base/ids.ts';
import { isWithin } from '../base/paths.ts';
import type { Settings } from '../config/settings.ts';
import type { LeaseRoot, LeaseWorkspace, Submitter } from '../lease/event.ts';
import type { Allocated } from '../lease/job-leases.ts';
import { commandFor } from '../lease/reference.ts';
import type { LeaseView } from '../lease/view.ts';
import { parseNodeList } from '../nodes/hostlist.ts';
import { requireNodes } from '../nodes/resolve.ts';
import type { Context } from './context.ts';
import { tellNotices } from './notices.ts';

export type AllocateInput = {
  readonly job: JobId;
  readonly attempt: Attempt;
  /** When the scheduler started the attempt, Unix seconds; null where it does not say. */
  readonly schedulerStartS: number | null;
  /** `UID` or `UID:GID`. */
  readonly submitter: string;
  /** Hostlist expression. */
  readonly nodes: string;
  readonly ttlMs: number | undefined;
  /** Further paths on shared storage that the job may write. */
  readonly writablePaths: readonly string[];
  /** Name of the [storage] for the workspace; undefined is the first that has one, 'none' is none. */
  readonly workspace: string | undefined;
};

export type AllocateResult = { readonly outcome: 'granted' | 'repeated' } & LeaseView;

const parseSubmitter = async (context: Context, text: string): Promise<Submitter> => {
  const [, uidText = '', gidText] = /^([1-9][0-9]{0,9})(?::([1-9][0-9]{0,9}))?$/.exec(text) ?? [];
  if (uidText === '') {
    throw new XceError('submitter', `'${escapeText(text)}' is not UID or UID:GID`, {
      next: 'give the uid of a person, and behind a colon a gid if wanted; never root',
    });
  }
  const uid = Number(uidText);
  const account = await context.accounts.findByUid(uid);
  if (account === undefined) {
    throw new XceError('submitter', `uid ${uid} is unknown to the name service`, {
      unchanged: 'no uid was leased',
      next: `check with: getent passwd ${uid}`,
    });
  }
  return { uid, gid: gidText === undefined ? account.gid : Number(gidText) };
};

const findRoots = (settings: Settings, paths: readonly string[]): readonly LeaseRoot[] =>
  paths.map((path) => {
    const normal = posix.normalize(path).replace(/(.)\/$/, '$1');
    const storage = settings.storage.find(({ path: top }) => isWithin(normal, top));
    if (storage === undefined) {
      throw new XceError('usage', `${escapeText(path)} is not below the path of any [storage]`, {
        unchanged: 'no uid was leased',
        next: 'xce-sandbox config show',
      });
    }
    return { path: normal, storage: storage.name };
  });

const findWorkspace = (settings: Settings, name: string | undefined): LeaseWorkspace | null => {
  if (name === 'none') return null;
  const storage = settings.storage.find((one) =>
    name === undefined ? one.workspace !== undefined : one.name === name,
  );
  if (name === undefined && storage === undefined) return null;
  if (storage?.workspace === undefined) {
    throw new XceError('usage', `there is no [storage ${escapeText(name ?? '')}] with a workspace`, {
      unchanged: 'no uid was leased',
      next: 'xce-sandbox config show',
    });
  }
  return { storage: storage.name, path: storage.workspace };
};

/** A lease that is repeated is the one that was granted, whatever time is asked for now. */
const tellKeptTime = (context: Context, { created, lease }: Allocated, { ttlMs }: AllocateInput): void => {
  if (created || ttlMs === undefined || ttlMs === lease.ttlMs) return;
  const renew = commandFor('lease renew', { job: lease.job, attempt: lease.attempt });
  context.tell(
    `lease ${lease.lease} keeps its time of ${formatDuration(lease.ttlMs)}; to change it: ${renew} --ttl ${formatDuration(ttlMs)}`,
  );
};

/** Grants the job attempt its one lease, or repeats the one it has. */
export const allocateLease = async (context: Context, input: AllocateInput): Promise<AllocateResult> => {
  const { settings } = context;
  const request = {
    job: input.job,
    attempt: input.attempt,
    schedulerStartS: input.schedulerStartS,
    nodes: requireNodes(parseNodeList(input.nodes), settings.nodes.hosts),
    roots: findRoots(settings, input.writablePaths),
    workspace: findWorkspace(settings, input.workspace),
    ttlMs: input.ttlMs ?? settings.lease.ttlMs,
    submitter: await parseSubmitter(context, input.submitter),
  };
  const { result, notices } = await context.leases.allocate(request);
  tellNotices(context, notices);
  tellKeptTime(context, result, input);
  return { outcome: result.created ? 'granted' : 'repeated', ...result.lease };
};
