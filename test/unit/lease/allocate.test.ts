import { describe, expect, test } from 'vitest';
import { LIMITS } from '../../../src/base/limits.ts';
import { type AllocateRequest, decideAllocate } from '../../../src/lease/allocate.ts';
import { decideDrain, decideQuarantine } from '../../../src/lease/rules.ts';
import {
  at,
  attempt,
  bytesOf,
  codeOf,
  epoch,
  facts,
  job,
  node,
  nodes,
  OTHER_BOOT,
  request,
  Scene,
  uid,
} from './scene.ts';

const refusal = (scene: Scene, wanted: Partial<AllocateRequest>, how = facts()): string => {
  const before = bytesOf(scene.state);
  const events = scene.log.length;
  const code = codeOf(() => scene.allocate(request(wanted), how));
  if (code !== 'no refusal') {
    expect(bytesOf(scene.state).equals(before)).toBe(true);
    expect(scene.log).toHaveLength(events);
  }
  return code;
};

describe('one attempt, one lease', () => {
  test('a repeat returns the same lease and writes nothing, in whatever order it names its nodes', () => {
    const scene = new Scene();
    const first = scene.allocate(request());
    expect(scene.allocate(request({ nodes: nodes('n2', 'n1'), ttlMs: 5000 })).number).toBe(first.number);
    expect(scene.log).toHaveLength(1);
    expect(first.term.ttlMs).toBe(60_000);
  });

  test('ids that differ only beyond 53 bits, or only in brackets, are different jobs', () => {
    const scene = new Scene();
    const ids = [
      '18014398509481984',
      '18014398509481985',
      '1234[7].pbs01.example',
      '1234[8].pbs01.example',
      '1234[].pbs01.example',
      '1234.pbs01',
      '100_7',
      '107',
      '100+1',
    ];
    const leases = ids.map((id) => scene.allocate(request({ job: job(id) })));
    expect(new Set(leases.map((lease) => lease.uid)).size).toBe(ids.length);
    expect(leases.map((lease) => lease.job)).toEqual(ids);
  });

  test.each<[string, Partial<AllocateRequest>]>([
    ['submitter', { submitter: { uid: 1002, gid: 100 } }],
    ['group', { submitter: { uid: 1001, gid: 1001 } }],
    ['node more', { nodes: nodes('n1', 'n2', 'n3') }],
    ['node less', { nodes: nodes('n1') }],
    ['node', { nodes: nodes('n1', 'n3') }],
    ['root', { roots: [{ path: '/scratch/a', storage: 'scratch' }] }],
    ['workspace', { workspace: null }],
  ])('a repeat with another %s is a conflict', (_, change) => {
    const scene = new Scene();
    scene.allocate(request());
    expect(refusal(scene, change)).toBe('lease-conflict');
  });

  test('an attempt that drains, waits in quarantine or was released gets no lease again', () => {
    const scene = new Scene();
    const lease = scene.allocate(request());
    const ref = { lease: lease.number };
    scene.drain(lease);
    expect(refusal(scene, {})).toBe('lease-ended');
    const why = { code: 'operator', text: '', node: null } as const;
    scene.run(decideQuarantine(scene.state, facts(), ref, why));
    expect(refusal(scene, {})).toBe('lease-ended');
    const other = new Scene();
    other.release(other.allocate(request()));
    expect(refusal(other, {})).toBe('lease-ended');
  });

  test('an expired lease is not repeated', () => {
    const scene = new Scene();
    scene.allocate(request());
    expect(refusal(scene, {}, facts(at(60_000)))).toBe('lease-expired');
    expect(refusal(scene, {}, facts(at(59_999)))).toBe('no refusal');
  });
});

describe('a requeued job', () => {
  test('gets another uid while the earlier attempt goes to quarantine', () => {
    const scene = new Scene();
    const first = scene.allocate(request());
    const second = scene.allocate(request({ attempt: attempt(1), nodes: nodes('n3', 'n4') }));
    expect(second.uid).not.toBe(first.uid);
    expect(first.status).toBe('quarantined');
    expect(first.quarantine?.code).toBe('superseded');
    expect(second.status).toBe('active');
  });

  test('leaves a release of the earlier attempt that is under way alone', () => {
    const scene = new Scene();
    const first = scene.allocate(request());
    scene.drain(first);
    scene.allocate(request({ attempt: attempt(1) }));
    expect(first.status).toBe('draining');
    scene.release(first);
    expect(scene.state.leases.size).toBe(1);
  });

  test('cannot go back to an earlier attempt, living or ended, known or not', () => {
    const scene = new Scene();
    scene.allocate(request({ attempt: attempt(2) }));
    expect(refusal(scene, { attempt: attempt(1) })).toBe('lease-ended');
    scene.release(scene.lease(1));
    expect(refusal(scene, { attempt: attempt(0) })).toBe('lease-ended');
    expect(refusal(scene, { attempt: attempt(3) })).toBe('no refusal');
  });

  test('a reused job id is told by the start that the scheduler gives', () => {
    const scene = new Scene();
    scene.release(scene.allocate(request({ attempt: attempt(3), schedulerStartS: 1000 })));
    expect(refusal(scene, { attempt: attempt(3), schedulerStartS: 1000 })).toBe('lease-ended');
    expect(refusal(scene, { attempt: attempt(0), schedulerStartS: 900 })).toBe('lease-ended');
    expect(refusal(scene, { attempt: attempt(3), schedulerStartS: null })).toBe('lease-ended');
    expect(refusal(scene, { attempt: attempt(0), schedulerStartS: 2000 })).toBe('no refusal');
    expect(refusal(scene, { attempt: attempt(0), schedulerStartS: 3000 })).toBe('lease-conflict');
  });
});

describe('the choice of a uid', () => {
  const two = facts(undefined, { pool: { first: 70_000, last: 70_001 } });

  test('uids that were never used come before those that came back, and of those the oldest first', () => {
    const scene = new Scene();
    const pool = facts(undefined, { pool: { first: 70_000, last: 70_003 } });
    const take = (id: string) => scene.allocate(request({ job: job(id) }), pool);
    const [a, b, c] = [take('a'), take('b'), take('c')];
    scene.release(b);
    scene.release(a);
    scene.release(c);
    expect(['d', 'e', 'f', 'g'].map((id) => take(id).uid)).toEqual([70_003, 70_001, 70_000, 70_002]);
  });

  test('a uid in quarantine is not free, and a full pool refuses without writing', () => {
    const scene = new Scene();
    const first = scene.allocate(request({ job: job('1') }), two);
    scene.drain(first);
    const why = { code: 'normalise-partial', text: '1 left', node: null } as const;
    scene.run(decideQuarantine(scene.state, two, { lease: first.number }, why));
    expect(scene.allocate(request({ job: job('2') }), two).uid).toBe(70_001);
    for (let count = 0; count < 100; count += 1)
      expect(refusal(scene, { job: job('3') }, two)).toBe('pool-exhausted');
  });

  test('a pool of one uid serves the next job after a release', () => {
    const scene = new Scene();
    const one = facts(undefined, { pool: { first: 70_000, last: 70_000 } });
    const first = scene.allocate(request({ job: job('1') }), one);
    expect(refusal(scene, { job: job('2') }, one)).toBe('pool-exhausted');
    scene.release(first);
    expect(scene.allocate(request({ job: job('2') }), one).uid).toBe(70_000);
  });

  test('a full pool does not cost the earlier attempt its lease', () => {
    const scene = new Scene();
    const one = facts(undefined, { pool: { first: 70_000, last: 70_000 } });
    const first = scene.allocate(request(), one);
    expect(refusal(scene, { attempt: attempt(1) }, one)).toBe('pool-exhausted');
    expect(first.status).toBe('active');
  });

  test('a uid outside of the pool is not granted, even when it was looked up', () => {
    const scene = new Scene();
    const proven = { absent: [uid(69_999), uid(70_002)], present: new Set<never>(), wanted: 1 };
    const result = scene.run(decideAllocate(scene.state, two, request(), proven));
    expect(result).toEqual({ kind: 'look-up', candidates: [70_000] });
  });

  test('a candidate that another job took meanwhile is not granted twice', () => {
    const scene = new Scene();
    const taken = scene.allocate(request({ job: job('1') }), two).uid;
    const proven = { absent: [taken], present: new Set<never>(), wanted: 4 };
    const result = scene.run(decideAllocate(scene.state, two, request({ job: job('2') }), proven));
    expect(result).toEqual({ kind: 'look-up', candidates: [70_001] });
  });

  test('uids that the name service knows are passed over', () => {
    const scene = new Scene();
    const proven = { absent: [], present: new Set([uid(70_000)]), wanted: 4 };
    expect(scene.run(decideAllocate(scene.state, two, request(), proven))).toEqual({
      kind: 'look-up',
      candidates: [70_001],
    });
  });
});

describe('a request that is refused as it stands', () => {
  test.each<[string, Partial<AllocateRequest>, string]>([
    ['root as submitter', { submitter: { uid: 0, gid: 100 } }, 'submitter'],
    ['the group root', { submitter: { uid: 1001, gid: 0 } }, 'submitter'],
    ['a system account', { submitter: { uid: 999, gid: 999 } }, 'submitter'],
    ['nobody', { submitter: { uid: 65_534, gid: 65_534 } }, 'submitter'],
    ['a dynamic user of systemd', { submitter: { uid: 61_184, gid: 1001 } }, 'submitter'],
    ['a uid of the pool', { submitter: { uid: 70_009, gid: 1001 } }, 'submitter'],
    ['a gid of the pool', { submitter: { uid: 1001, gid: 70_000 } }, 'submitter'],
    ['(uid_t) -1', { submitter: { uid: 0xffff_ffff, gid: 1001 } }, 'submitter'],
    ['a fraction', { submitter: { uid: 1001.5, gid: 1001 } }, 'submitter'],
    ['no node', { nodes: [] }, 'too-large'],
    ['a node twice', { nodes: nodes('n1', 'n1') }, 'node-list'],
    ['a ttl under the limit', { ttlMs: LIMITS.ttlMsMin - 1 }, 'usage'],
    ['a ttl over the limit', { ttlMs: LIMITS.ttlMsMax + 1 }, 'usage'],
    ['a ttl that is not a number', { ttlMs: Number.NaN }, 'usage'],
    ['a relative path', { roots: [{ path: 'scratch', storage: 's' }] }, 'usage'],
    ['a path with ..', { roots: [{ path: '/scratch/../etc', storage: 's' }] }, 'usage'],
    ['a path with a slash at its end', { roots: [{ path: '/scratch/', storage: 's' }] }, 'usage'],
    ['the root directory', { roots: [{ path: '/', storage: 's' }] }, 'usage'],
    ['a path with NUL', { roots: [{ path: '/a\0b', storage: 's' }] }, 'usage'],
    ['a path that UTF-8 cannot carry', { roots: [{ path: '/a\ud800', storage: 's' }] }, 'usage'],
    ['a path without storage', { roots: [{ path: '/a', storage: '' }] }, 'usage'],
    ['the workspace as a root', { roots: [{ path: '/scratch/xce', storage: 'scratch' }] }, 'usage'],
    [
      'too many roots',
      { roots: Array.from({ length: 65 }, (_, index) => ({ path: `/s/${index}`, storage: 's' })) },
      'too-large',
    ],
    [
      'too many nodes',
      { nodes: Array.from({ length: LIMITS.leaseNodesMax + 1 }, (_, index) => node(`n${index}`)) },
      'too-large',
    ],
    [
      'node names beyond one ticket',
      {
        nodes: Array.from({ length: 6200 }, (_, index) =>
          node(`n${index}.${'x'.repeat(60)}.${'y'.repeat(63)}`),
        ),
      },
      'too-large',
    ],
  ])('%s', (_, change, code) => {
    expect(refusal(new Scene(), change)).toBe(code);
  });

  test('a controller whose epoch is over', () => {
    const scene = new Scene();
    scene.allocate(request(), facts(at(0), { epoch: epoch(5) }));
    expect(refusal(scene, { job: job('43') }, facts(at(0), { epoch: epoch(4) }))).toBe('log-fenced');
  });
});

test('a lease of another boot whose host has a wrong clock is still repeated while it may live', () => {
  const scene = new Scene();
  scene.allocate(request());
  const back = facts(at(-3_600_000, { bootId: OTHER_BOOT }));
  expect(scene.allocate(request(), back).number).toBe(1);
  expect(scene.lease(1).status).toBe('active');
  expect(
    scene.run(
      decideDrain(scene.state, back, { lease: scene.lease(1).number }, { bindings: [], seed: Buffer.of(1) }),
    ).lease.remainingMs,
  ).toBe(0);
});
