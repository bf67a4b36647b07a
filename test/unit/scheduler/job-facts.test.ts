import { describe, expect, test } from 'vitest';
import type { Attempt, JobId } from '../../../src/base/ids.ts';
import { type GivenFacts, readJobFacts, requireJob } from '../../../src/scheduler/job-facts.ts';

const OWN = { job: 'MY_JOB', attempt: 'MY_TRY', uid: 'MY_UID', nodes: 'MY_NODES', ends: 'MY_END' };
const NOTHING: GivenFacts = {
  scheduler: undefined,
  job: undefined,
  attempt: undefined,
  submitter: undefined,
  nodes: undefined,
};
/** As slurmctld 24.11 sets them for PrologSlurmctld. */
const SLURM = {
  SLURM_JOB_ID: '4711',
  SLURM_JOB_RESTART_COUNT: '2',
  SLURM_JOB_START_TIME: '1796100000',
  SLURM_JOB_END_TIME: '1796103600',
  SLURM_JOB_UID: '1001',
  SLURM_JOB_GID: '1002',
  SLURM_JOB_NODELIST: 'n[1-3]',
};

const read = (environment: Readonly<Record<string, string>>, given: Partial<GivenFacts> = {}) =>
  readJobFacts(environment, OWN, { ...NOTHING, ...given });
const refusal = (message: RegExp) =>
  expect.objectContaining({ code: 'hook-facts', message: expect.stringMatching(message) });

describe('the facts of a job', () => {
  test('are what Slurm says', () => {
    expect(read(SLURM)).toEqual({
      scheduler: 'slurm',
      job: '4711',
      attempt: 2,
      startedS: 1_796_100_000,
      endsS: 1_796_103_600,
      submitter: '1001:1002',
      nodes: 'n[1-3]',
    });
  });

  test('are what the site says of its own batch system', () => {
    const environment = { MY_JOB: 'j.1', MY_TRY: '1', MY_UID: '1001', MY_NODES: 'n1', MY_END: '1796103600' };
    expect(read(environment)).toEqual({
      scheduler: 'xce',
      job: 'j.1',
      attempt: 1,
      startedS: null,
      endsS: 1_796_103_600,
      submitter: '1001',
      nodes: 'n1',
    });
  });

  test.each(['1234[7].pbs01.example', '1234[].pbs01.example', '1234.pbs01'])(
    'have the job id of PBS byte for byte: %s',
    (job) => {
      expect(read({ PBS_JOBID: job })).toMatchObject({ scheduler: 'pbs', job, attempt: 0, submitter: null });
    },
  );

  test('have what a flag gives in place of the variable', () => {
    const given = {
      job: '9' as JobId,
      attempt: 5 as Attempt,
      submitter: '7',
      nodes: 'm1',
      scheduler: 'flux',
    } as const;
    expect(read(SLURM, given)).toEqual({ ...given, startedS: null, endsS: null });
  });

  test('have no time where Slurm says 0, and no attempt before the first', () => {
    expect(read({ SLURM_JOB_ID: '1', SLURM_JOB_END_TIME: '0', SLURM_JOB_RESTART_COUNT: '' })).toMatchObject({
      endsS: null,
      attempt: 0,
    });
  });

  test.each([
    [{}, /whose hook is this\? no batch system has set its job id/],
    [{ SLURM_JOB_ID: '' }, /no batch system/],
    [{ SLURM_JOB_ID: '1', FLUX_JOB_ID: '2' }, /it could be that of slurm or flux/],
    [
      { ...SLURM, SLURM_JOB_RESTART_COUNT: '-1' },
      /^SLURM_JOB_RESTART_COUNT: '-1' is not a count of requeues$/,
    ],
    [{ ...SLURM, SLURM_JOB_RESTART_COUNT: '1e3' }, /^SLURM_JOB_RESTART_COUNT: /],
    [{ ...SLURM, SLURM_JOB_END_TIME: 'Unknown' }, /^SLURM_JOB_END_TIME: 'Unknown' is not a time in seconds$/],
    [{ ...SLURM, SLURM_JOB_ID: '1 2\u001b[2J' }, /^SLURM_JOB_ID: '1 2\\x1b\[2J' is not a job id$/],
  ])('are refused where they are not clear: %j', (environment, message) => {
    expect(() => read(environment as Record<string, string>)).toThrow(refusal(message));
  });

  test('name the variable or the flag that is missing', () => {
    expect(() => read(SLURM, { scheduler: 'xce' })).toThrow(refusal(/which job it is: MY_JOB is not set/));
    const of = (environment: Record<string, string>) => requireJob(read(environment), OWN);
    expect(() => of({ PBS_JOBID: '1.pbs' })).toThrow(refusal(/^nothing says who submitted the job$/));
    expect(() => of({ FLUX_JOB_ID: '1', FLUX_JOB_USERID: '7' })).toThrow(
      refusal(/^nothing says on which nodes it runs$/),
    );
    expect(of(SLURM)).toEqual({ submitter: '1001:1002', nodes: 'n[1-3]' });
  });
});
