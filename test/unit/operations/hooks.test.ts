import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { JobId } from '../../../src/base/ids.ts';
import type { Settings } from '../../../src/config/settings.ts';
import type { Context } from '../../../src/operations/context.ts';
import { runEpilog } from '../../../src/operations/epilog.ts';
import { releaseLease } from '../../../src/operations/lease-release.ts';
import { runProlog } from '../../../src/operations/prolog.ts';
import { setUpClean } from './clean-scene.ts';
import { errorOf, JOB, selection, useFakeTime, withParts } from './scene.ts';

beforeEach(useFakeTime);
afterEach(() => {
  vi.useRealTimers();
});

const hookOf = (job: string, attempt = 0) => ({
  scheduler: 'slurm' as const,
  job: undefined,
  attempt: undefined,
  submitter: '1001:1001',
  nodes: 'n[1-3]',
  environment: {
    SLURM_JOB_ID: job,
    SLURM_JOB_RESTART_COUNT: String(attempt),
    SLURM_JOB_END_TIME: String(Math.floor(Date.now() / 1000) + 3600),
  },
});

const withHooks = (context: Context, hooks: Partial<Settings['hooks']>): Context =>
  withParts(context, {
    settings: { ...context.settings, storage: [], hooks: { ...context.settings.hooks, ...hooks } },
    accounts: { findByUid: async (uid) => ({ name: 'alice', uid, gid: uid }) },
  } as Partial<Context>);

describe('a prolog', () => {
  const setUpProlog = async () => {
    const scene = await setUpClean();
    const context = withHooks(scene.context, {});
    return {
      ...scene,
      context,
      run: (job = '50') => runProlog(context, { ...hookOf(job), ttlMs: undefined }),
    };
  };

  test('leases a uid until the end of the job and the grace, and asks every node who it is', async () => {
    const { run, purposes } = await setUpProlog();
    expect(await run()).toMatchObject({
      scheduler: 'slurm',
      outcome: 'granted',
      job: '50',
      attempt: 0,
      submitter: { uid: 1001, gid: 1001 },
      ttlMs: 4_200_000,
    });
    expect(purposes).toEqual(['hello', 'hello', 'hello']);
  });

  test('that is repeated changes nothing', async () => {
    const { run, log } = await setUpProlog();
    const { lease } = await run();
    const { length } = log.records;
    expect(await run()).toMatchObject({ outcome: 'repeated', lease });
    expect(log.records).toHaveLength(length);
  });

  test('fails where a node gives no answer, and leaves the lease to the epilog', async () => {
    const { run, at, leases } = await setUpProlog();
    at('n2').on('challenge', () => {
      throw new XceError('worker-unreachable', 'nobody listens');
    });
    const error = await errorOf(run());
    expect(error).toMatchObject({ code: 'hook-nodes', message: 'lease 2: n2: nobody listens' });
    expect(error.facts.detail).toEqual({
      lease: 2,
      nodes: [{ node: 'n2', code: 'worker-unreachable', message: 'n2: nobody listens' }],
    });
    expect(await leases.show({ job: '50' as JobId })).toMatchObject({ status: 'active' });
  });

  test('of an attempt that has ended is refused', async () => {
    const { run, context } = await setUpProlog();
    await run();
    await runEpilog(context, hookOf('50'));
    expect((await errorOf(run())).code).toBe('lease-ended');
  });

  test('ends at its deadline, whatever does not answer', async () => {
    const { at, context } = await setUpProlog();
    at('n2').on('challenge', () => new Promise(() => undefined));
    const late = errorOf(
      runProlog(withHooks(context, { deadlineMs: 7000 }), { ...hookOf('50'), ttlMs: undefined }),
    );
    await vi.advanceTimersByTimeAsync(7000);
    expect(await late).toMatchObject({
      code: 'timeout',
      message: 'the prolog has not ended within 7s',
    });
  });
});

describe('an epilog', () => {
  test('releases the lease of the attempt, and has nothing to do when it is repeated', async () => {
    const { context, log, told } = await setUpClean();
    const epilog = () => runEpilog(context, hookOf(JOB));
    expect(await epilog()).toMatchObject({
      outcome: 'released',
      released: { lease: 1, uid: 70_000, status: 'free' },
    });
    const { length } = log.records;
    expect(await epilog()).toEqual({ scheduler: 'slurm', job: JOB, attempt: 0, outcome: 'ended' });
    expect(log.records).toHaveLength(length);
    expect(told).toEqual(['nothing to release: attempt 0 of job 42 has ended and its uid was freed']);
  });

  test('without a prolog does nothing, and says so', async () => {
    const { context, log, told } = await setUpClean();
    const { length } = log.records;
    expect(await runEpilog(context, hookOf('77'))).toMatchObject({ outcome: 'never-leased' });
    expect(await runEpilog(context, hookOf(JOB, 1))).toMatchObject({ outcome: 'never-leased' });
    expect(log.records).toHaveLength(length);
    expect(told).toEqual([
      'nothing to release: attempt 0 of job 77 has no lease',
      'nothing to release: attempt 1 of job 42 has no lease',
    ]);
  });

  test('releases the run that has ended, although its batch system has counted on meanwhile', async () => {
    const { context, leases } = await setUpClean();
    const here = withHooks(context, {});
    const run = (attempt: number, startedS: number) => ({
      ...hookOf('50'),
      environment: {
        SLURM_JOB_ID: '50',
        SLURM_JOB_RESTART_COUNT: String(attempt),
        SLURM_JOB_START_TIME: String(startedS),
      },
    });
    const first = await runProlog(here, { ...run(0, 1000), ttlMs: undefined });
    // As Slurm calls it for the run that began at 1000.
    expect(await runEpilog(here, run(1, 1000))).toMatchObject({
      outcome: 'released',
      attempt: 0,
      released: { lease: first.lease },
    });
    const second = await runProlog(here, { ...run(1, 2000), ttlMs: undefined });
    expect(await runEpilog(here, run(1, 1000))).toMatchObject({ outcome: 'ended', attempt: 1 });
    expect(await leases.show({ lease: second.lease })).toMatchObject({ status: 'active' });
    // Its nodes had to boot first, and Slurm counts its time from then on.
    expect(await runEpilog(here, run(1, 2060))).toMatchObject({ outcome: 'released', attempt: 1 });
  });

  test('waits for a release that has taken its own over', async () => {
    const { context, at, certify } = await setUpClean();
    let asked = 0;
    let second: Promise<unknown> | undefined;
    at('n2').on('drain', async (request) => {
      asked += 1;
      // While the epilog waits for this node, somebody else begins to release.
      if (asked === 1) {
        second = releaseLease(context, selection);
        await vi.waitUntil(() => asked > 1);
      }
      return certify('n2', request);
    });
    const epilog = runEpilog(context, hookOf(JOB));
    await vi.advanceTimersByTimeAsync(2000);
    expect(await epilog).toMatchObject({ outcome: 'ended' });
    expect(await second).toMatchObject({ status: 'free' });
  });

  describe('that is held up', () => {
    let directory = '';
    beforeEach(() => {
      directory = mkdtempSync(join(tmpdir(), 'xce-hooks-'));
    });
    afterEach(() => {
      rmSync(directory, { recursive: true });
    });

    /** A program that writes down its arguments, a line each. */
    const program = (status: number): { readonly path: string; said(): readonly string[] } => {
      const path = join(directory, 'drain');
      const record = join(directory, 'said');
      writeFileSync(
        path,
        `#!/bin/sh\nprintf '%s\\n' "$@" >> ${record}\necho 'no such node' >&2\nexit ${status}\n`,
      );
      chmodSync(path, 0o755);
      return { path, said: () => readFileSync(record, 'utf8').split('\n').slice(0, -1) };
    };

    const setUpDirty = async () => {
      const scene = await setUpClean();
      scene.at('n2').on('drain', () => {
        throw new XceError('node-dirty', '2 processes of uid 70000');
      });
      return scene;
    };
    /** Real programs take real time. */
    const realTime = (): void => {
      vi.useRealTimers();
    };

    test('has exactly the nodes drained that are not certified, with the reason', async () => {
      const { context, told, status } = await setUpDirty();
      realTime();
      const { path, said } = program(0);
      const error = await errorOf(runEpilog(withHooks(context, { drain: path }), hookOf(JOB)));
      expect(error).toMatchObject({ code: 'release-blocked', facts: { detail: { drained: ['n2'] } } });
      const reason = 'xce-sandbox: n2: 2 processes of uid 70000';
      expect(said()).toEqual(['update', 'nodename=n2', 'state=drain', `reason=${reason}`]);
      expect(told).toContain(`drained n2: ${reason}`);
      expect(await status()).toEqual(['quarantined', 'node-dirty', 'n2']);
    });

    test('drains no node for what this controller is the cause of', async () => {
      const { context, at, status } = await setUpClean();
      for (const name of ['n1', 'n2', 'n3']) {
        at(name).on('drain', () => {
          throw new XceError('ticket-epoch', 'the request is of epoch 2, epoch 3 was seen');
        });
      }
      const error = await errorOf(runEpilog(withHooks(context, { drain: '/nonexistent' }), hookOf(JOB)));
      expect(error.code).toBe('release-blocked');
      expect(error.facts.detail).not.toHaveProperty('drained');
      expect((await status())[0]).toBe('quarantined');
    });

    test('says which node is to be drained by hand where the batch system refuses', async () => {
      const { context, told } = await setUpDirty();
      realTime();
      const { path } = program(1);
      const error = await errorOf(runEpilog(withHooks(context, { drain: path }), hookOf(JOB)));
      expect(error).toMatchObject({ code: 'release-blocked', facts: { detail: { drained: [] } } });
      expect(told).toContain(`n2 must be drained by hand: ${path}: ended with 1: no such node`);
    });

    test('drains nothing where the site has named no program', async () => {
      const { context } = await setUpDirty();
      const error = await errorOf(runEpilog(context, hookOf(JOB)));
      expect(error.code).toBe('release-blocked');
      expect(error.facts.detail).not.toHaveProperty('drained');
    });
  });
});
