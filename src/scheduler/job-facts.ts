/** What the hooks of one job attempt know of it: from the command line, else from the batch system's environment. */
import { XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import { type Attempt, type JobId, parseAttempt, parseJobId } from '../base/ids.ts';
import { findSchedulers, type OwnVariables, type SchedulerName, variablesOf } from './schedulers.ts';

/** As the caller gives them; each wins over the variable of the same meaning. */
export type GivenFacts = {
  readonly scheduler: SchedulerName | undefined;
  readonly job: JobId | undefined;
  readonly attempt: Attempt | undefined;
  /** `UID` or `UID:GID`. */
  readonly submitter: string | undefined;
  /** Hostlist expression. */
  readonly nodes: string | undefined;
};

export type JobFacts = {
  readonly scheduler: SchedulerName;
  readonly job: JobId;
  readonly attempt: Attempt;
  /** When the batch system started the attempt, and when it will end it, in Unix seconds. */
  readonly startedS: number | null;
  readonly endsS: number | null;
  readonly submitter: string | null;
  readonly nodes: string | null;
};

type Environment = Readonly<Record<string, string | undefined>>;

const FIRST = 0 as Attempt;

const missing = (what: string, variable: string | null, flag: string): XceError =>
  new XceError(
    'hook-facts',
    variable === null ? `nothing says ${what}` : `nothing says ${what}: ${variable} is not set`,
    { unchanged: 'no lease was granted or ended', next: `give ${flag}` },
  );

const unreadable = (variable: string, text: string, what: string, flag: string): XceError =>
  new XceError('hook-facts', `${variable}: '${escapeText(text)}' is not ${what}`, {
    at: variable,
    unchanged: 'no lease was granted or ended',
    next: `give ${flag}`,
  });

/** The text of a variable that is set to something. */
const textOf = (environment: Environment, variable: string | null): string | undefined =>
  variable === null || environment[variable] === '' ? undefined : environment[variable];

const chooseScheduler = (
  environment: Environment,
  own: OwnVariables,
  given: SchedulerName | undefined,
): SchedulerName => {
  if (given !== undefined) return given;
  const found = findSchedulers(environment, own);
  const [first, second] = found;
  if (first !== undefined && second === undefined) return first;
  const problem =
    first === undefined ? 'no batch system has set its job id' : `it could be that of ${found.join(' or ')}`;
  throw new XceError('hook-facts', `whose hook is this? ${problem}`, {
    unchanged: 'no lease was granted or ended',
    next: 'give --scheduler, or set [hooks] scheduler',
  });
};

/** Seconds since 1970 as a batch system writes them; 0 stands for none. */
const readSeconds = (environment: Environment, variable: string | null): number | null => {
  const text = textOf(environment, variable);
  if (variable === null || text === undefined || text === '0') return null;
  if (!/^[1-9][0-9]{0,14}$/.test(text)) {
    throw unreadable(
      variable,
      text,
      'a time in seconds',
      `a time in seconds since 1970, or unset ${variable}`,
    );
  }
  return Number(text);
};

const readSubmitter = (
  environment: Environment,
  { uid, gid }: { readonly uid: string | null; readonly gid: string | null },
): string | null => {
  const user = textOf(environment, uid);
  const group = textOf(environment, gid);
  if (user === undefined) return null;
  return group === undefined ? user : `${user}:${group}`;
};

/** Throws 'hook-facts' where it is not clear which batch system calls, or which job attempt is meant. */
export const readJobFacts = (environment: Environment, own: OwnVariables, given: GivenFacts): JobFacts => {
  const scheduler = chooseScheduler(environment, own, given.scheduler);
  const variables = variablesOf(scheduler, own);
  const jobText = textOf(environment, variables.job);
  const job = given.job ?? parseJobId(jobText ?? '');
  if (job === undefined) {
    if (jobText === undefined) throw missing('which job it is', variables.job, '--job');
    throw unreadable(variables.job, jobText, 'a job id', '--job');
  }
  const attemptText = textOf(environment, variables.attempt);
  const attempt = given.attempt ?? (attemptText === undefined ? FIRST : parseAttempt(attemptText));
  if (attempt === undefined) {
    throw unreadable(variables.attempt ?? '', attemptText ?? '', 'a count of requeues', '--attempt');
  }
  const isNamed = given.job !== undefined || given.attempt !== undefined;
  return {
    scheduler,
    job,
    attempt,
    // Of the job that the environment is about, which the flags may have said is another.
    startedS: isNamed ? null : readSeconds(environment, variables.started),
    endsS: isNamed ? null : readSeconds(environment, variables.ends),
    submitter: given.submitter ?? readSubmitter(environment, variables),
    nodes: given.nodes ?? textOf(environment, variables.nodes) ?? null,
  };
};

/** What a prolog needs beyond the name of the attempt. Throws 'hook-facts'. */
export const requireJob = (
  { scheduler, submitter, nodes }: JobFacts,
  own: OwnVariables,
): { readonly submitter: string; readonly nodes: string } => {
  const variables = variablesOf(scheduler, own);
  if (submitter === null) throw missing('who submitted the job', variables.uid, '--submitter');
  if (nodes === null) throw missing('on which nodes it runs', variables.nodes, '--nodes');
  return { submitter, nodes };
};
