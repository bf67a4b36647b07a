import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { stopJob } from '../../../src/operations/stop.ts';
import { errorOf, LEASE, selection, setUp, useFakeTime } from './scene.ts';

beforeEach(useFakeTime);
afterEach(() => {
  vi.useRealTimers();
});

test('a stop asks every node of the lease, says where there was something, and leaves the lease', async () => {
  const { context, at, asked, leases, log } = await setUp();
  const requests: unknown[] = [];
  at('n2').on('stop', (request) => {
    requests.push(request);
    return { stopped: false };
  });
  const commits = log.commits;
  expect(await stopJob(context, selection)).toEqual({
    lease: 1,
    job: '42',
    uid: 70_000,
    stopped: ['n1', 'n3'],
    idle: ['n2'],
  });
  expect(requests).toEqual([{ lease: 1 }]);
  expect(asked('stop')).toEqual(['n1', 'n2', 'n3']);
  expect((await leases.show(LEASE)).status).toBe('active');
  expect(log.commits).toBe(commits);
});

test('a stop that does not reach every node stops the others, and fails with each reason', async () => {
  const { context, at, asked } = await setUp();
  at('n1').die();
  at('n3').on('stop', () => new Promise(() => undefined));
  const stopped = errorOf(stopJob(context, selection));
  await vi.advanceTimersByTimeAsync(60_000);
  const error = await stopped;
  expect(error).toMatchObject({ code: 'worker-unreachable', exitStatus: 69 });
  expect(error.message).toMatch(/^not stopped everywhere: n1: .*ECONNREFUSED; n3: no answer to stop/);
  expect(error.facts.detail).toMatchObject({
    reasons: [
      { node: 'n1', code: 'worker-unreachable' },
      { node: 'n3', code: 'timeout' },
    ],
  });
  expect(error.facts.unchanged).toBe('the lease and its uid; on the other nodes the job was ended');
  expect(asked('stop')).toEqual(['n2', 'n3']);
});

test('a stop that reaches no node says nothing of others', async () => {
  const { context, at } = await setUp({ names: ['n1'] });
  at('n1').die();
  const { facts } = await errorOf(stopJob(context, selection));
  expect(facts.unchanged).toBe('the lease and its uid');
});

test('a stop of a lease that is not there asks nobody', async () => {
  const { context, journal } = await setUp();
  const none = { ...selection, job: '43' as typeof selection.job };
  expect((await errorOf(stopJob(context, none))).code).toBe('lease-missing');
  expect((await errorOf(stopJob(context, { ...selection, job: undefined }))).code).toBe('usage');
  expect(journal).toEqual([]);
});
