/**
 * The batch systems whose hooks run `prolog` and `epilog`, and the variables in which each of them says what the
 * hooks need. xce-sandbox-hooks(7) has the table with its sources.
 */

export const SCHEDULERS = ['slurm', 'pbs', 'flux', 'xce'] as const;
export type SchedulerName = (typeof SCHEDULERS)[number];

/** Names of environment variables; null for what the batch system does not say in one. */
export type JobVariables = {
  readonly job: string;
  /** Counts the requeues from 0. */
  readonly attempt: string | null;
  /** Unix seconds. */
  readonly started: string | null;
  readonly ends: string | null;
  readonly uid: string | null;
  readonly gid: string | null;
  /** A hostlist expression. */
  readonly nodes: string | null;
};

/** Where the batch system is the site's own, the site names the variables. */
export type OwnVariables = Pick<JobVariables, 'job' | 'attempt' | 'ends' | 'uid' | 'nodes'>;

const KNOWN: Readonly<Record<Exclude<SchedulerName, 'xce'>, JobVariables>> = {
  slurm: {
    job: 'SLURM_JOB_ID',
    attempt: 'SLURM_JOB_RESTART_COUNT',
    started: 'SLURM_JOB_START_TIME',
    ends: 'SLURM_JOB_END_TIME',
    uid: 'SLURM_JOB_UID',
    gid: 'SLURM_JOB_GID',
    nodes: 'SLURM_JOB_NODELIST',
  },
  pbs: { job: 'PBS_JOBID', attempt: null, started: null, ends: null, uid: null, gid: null, nodes: null },
  flux: {
    job: 'FLUX_JOB_ID',
    attempt: null,
    started: null,
    ends: null,
    uid: 'FLUX_JOB_USERID',
    gid: null,
    nodes: null,
  },
};

export const variablesOf = (scheduler: SchedulerName, own: OwnVariables): JobVariables =>
  scheduler === 'xce' ? { ...own, started: null, gid: null } : KNOWN[scheduler];

/** The batch systems whose job id is in the environment. */
export const findSchedulers = (
  environment: Readonly<Record<string, string | undefined>>,
  own: OwnVariables,
): readonly SchedulerName[] =>
  SCHEDULERS.filter((scheduler) => (environment[variablesOf(scheduler, own).job] ?? '') !== '');
