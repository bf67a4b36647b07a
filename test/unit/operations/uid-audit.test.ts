import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type { JobId } from '../../../src/base/ids.ts';
import type { Context } from '../../../src/operations/context.ts';
import { releaseLease } from '../../../src/operations/lease-release.ts';
import { normaliseLease } from '../../../src/operations/normalise.ts';
import { auditUids, requireClean } from '../../../src/operations/uid-audit.ts';
import type { Answer } from '../../../src/os/name-service.ts';
import { request } from '../lease/scene.ts';
import { setUpClean } from './clean-scene.ts';
import { errorOf, LEASE, selection, setUp, useFakeTime, withParts } from './scene.ts';

beforeEach(useFakeTime);
afterEach(() => {
  vi.useRealTimers();
});

const TAKEN = { answer: 'present', reason: "passwd knows 70000 as 'eve'" } as const;
const SILENT = { answer: 'unknown', reason: 'name service not answering (slow)' } as const;

const codeOf = (call: () => void): string => {
  try {
    call();
  } catch (error) {
    return (error as { code: string }).code;
  }
  return 'none';
};

describe('a release', () => {
  test('of a uid that the directory knows flags the lease after the drain, and hands nothing over', async () => {
    const { context, names, status, asked, journal } = await setUpClean();
    names.set(70_000, TAKEN);
    const error = await errorOf(releaseLease(context, selection));
    expect(error).toMatchObject({ code: 'uid-taken', exitStatus: 77 });
    expect(error.message).toBe("uid 70000 of lease 1 is somebody's: passwd knows 70000 as 'eve'");
    expect(await status()).toEqual(['quarantined', 'uid-taken', null]);
    expect(asked('drain')).toEqual(['n1', 'n2', 'n3']);
    expect(journal).not.toContain('log normalise');

    names.clear();
    expect(await releaseLease(context, selection)).toMatchObject({ status: 'free' });
  });

  test('is refused where the name service gives no answer, and goes on once it does', async () => {
    const { context, names, status, journal } = await setUpClean();
    names.set(70_000, SILENT);
    expect(await errorOf(releaseLease(context, selection))).toMatchObject({
      code: 'name-service',
      exitStatus: 69,
    });
    expect(await status()).toEqual(['draining', undefined, undefined]);
    expect(journal).not.toContain('log normalise');
    names.clear();
    expect(await releaseLease(context, selection)).toMatchObject({ status: 'free' });
  });
});

describe('normalise', () => {
  test.each([
    ['uid-taken', TAKEN],
    ['name-service', SILENT],
  ])('changes no owner with %s', async (code, answer) => {
    const { context, names, journal } = await setUpClean();
    names.set(70_000, answer);
    expect((await errorOf(normaliseLease(context, selection, 'apply'))).code).toBe(code);
    expect(journal).not.toContain('log normalise');
  });

  test('looks only, without asking anybody', async () => {
    const { context, names } = await setUpClean();
    names.set(70_000, SILENT);
    expect(await normaliseLease(context, selection, 'plan')).toMatchObject({ status: 'complete' });
  });
});

describe('an audit', () => {
  const setUpMany = async (count: number) => {
    const scene = await setUp();
    for (let index = 1; index < count; index += 1)
      await scene.leases.allocate(
        request({ job: `job ${index}`.replace(' ', '-') as JobId, nodes: ['n1' as never] }),
      );
    return scene;
  };

  test("of uids that are nobody's is clean", async () => {
    const { context } = await setUpMany(3);
    const result = await auditUids(context);
    expect(result).toEqual({ leases: 3, absent: 3, found: [], skipped: 0 });
    expect(codeOf(() => requireClean(result))).toBe('none');
  });

  test("flags a lease whose uid is somebody's, and ends its right to run", async () => {
    const { context, names, leases, journal } = await setUpMany(3);
    names.set(70_001, TAKEN);
    const result = await auditUids(context);
    expect(result).toMatchObject({ absent: 2, found: [{ lease: 2, uid: 70_001, answer: 'present' }] });
    expect(codeOf(() => requireClean(result))).toBe('uid-taken');
    expect((await leases.show({ lease: 2 as never })).quarantine?.code).toBe('uid-taken');
    expect((await errorOf(leases.renew({ lease: 2 as never }, 60_000))).code).toBe('lease-state');
    journal.length = 0;
    await auditUids(context);
    expect(journal).toEqual([]);
  });

  test('passes over a lease that has ended since it was listed', async () => {
    const { context, names, leases } = await setUpClean();
    const listed = await leases.list();
    await releaseLease(context, selection);
    names.set(70_000, TAKEN);
    const late = withParts(context, {
      leases: {
        list: async () => listed,
        quarantine: leases.quarantine.bind(leases),
      } as unknown as Context['leases'],
    });
    const result = await auditUids(late);
    expect(result).toEqual({ leases: 1, absent: 1, found: [], skipped: 0 });
  });

  test('says that an unknown answer is no answer, and flags nothing for it', async () => {
    const { context, names, leases } = await setUpMany(2);
    names.set(70_001, SILENT);
    const result = await auditUids(context);
    expect(codeOf(() => requireClean(result))).toBe('name-service');
    expect((await leases.list()).map(({ status }) => status)).toEqual(['active', 'active']);
  });

  test('asks a bounded number at once, and gives up on a name service that is down', async () => {
    const { context } = await setUpMany(10);
    let together = 0;
    let most = 0;
    const leases = Array.from({ length: 100 }, (_, index) => ({ lease: index + 1, uid: 70_000 + index }));
    const slow = withParts(context, {
      leases: { list: async () => leases } as unknown as Context['leases'],
      nameService: {
        lookUp: async () => {
          together += 1;
          most = Math.max(most, together);
          await Promise.resolve();
          together -= 1;
          return SILENT;
        },
      },
    });
    const result = await auditUids(slow);
    expect(most).toBe(8);
    expect(result.found.length).toBeLessThan(50);
    expect(result.found.length + result.skipped).toBe(100);
    expect(codeOf(() => requireClean(result))).toBe('name-service');
  });
});

test('the record of a sandbox on this host is not taken for somebody, and hides nobody', async () => {
  const { context } = await setUp();
  const asked: unknown[] = [];
  const answers = new Map<unknown, Answer>([
    ['all', TAKEN],
    ['no records', { answer: 'absent' }],
  ]);
  const onNode = withParts(context, {
    hasUserRecord: () => true,
    nameService: {
      lookUp: async (_, whom = 'all') => {
        asked.push(whom);
        return answers.get(whom) ?? SILENT;
      },
    },
  });
  expect((await auditUids(onNode)).found).toEqual([]);
  answers.set('no records', TAKEN);
  expect((await auditUids(onNode)).found).toMatchObject([{ answer: 'present' }]);
  expect(asked).toEqual(['no records', 'no records']);
});

test('the record of a sandbox that comes or goes under the look-up is not taken for somebody', async () => {
  const { context, names, leases } = await setUp();
  names.set(70_000, TAKEN);
  let isThere = false;
  const racing = withParts(context, {
    hasUserRecord: () => {
      isThere = !isThere;
      return isThere;
    },
  });
  const { found } = await auditUids(racing);
  expect(found).toMatchObject([{ answer: 'unknown' }]);
  expect((await leases.show(LEASE)).status).toBe('active');
});
