import { describe, expect, test } from 'vitest';
import type { EventOf, LeaseEvent } from '../../../src/lease/event.ts';
import { LEASE_STATUSES, type LeaseStatus } from '../../../src/lease/lease.ts';
import type { LeaseRow } from '../../../src/lease/lease-table.ts';
import { UNTOUCHED_NODE } from '../../../src/lease/nodes.ts';
import { type ExistingEvent, previewLease } from '../../../src/lease/state.ts';
import { type LeaseEventKind, TRANSITIONS } from '../../../src/lease/transitions.ts';
import {
  applyEvent,
  at,
  bytesOf,
  codeOf,
  epoch,
  job,
  leaseNumber,
  node,
  request,
  Scene,
  T0,
  uid,
} from './scene.ts';

/** The table as a person reads it: `-` is refused. The code has its own. */
const TABLE = `
            renew  bind   join   mounts drain    ask    certify normalise normalised free quarantine  reclaim
active      active active active active draining -      -       -         -          -    quarantined quarantined
draining    -      same   same   -      -        same   same    normalising -        -    quarantined quarantined
normalising -      same   same   -      -        same   same    -         same       free quarantined quarantined
quarantined -      -      -      -      draining -      -       -         -          -    same        same
`;
const [kindsRow = '', ...rows] = TABLE.trim().split('\n');
const kinds = kindsRow.trim().split(/\s+/) as LeaseEventKind[];
const expected = rows.flatMap((row) => {
  const [status = '', ...cells] = row.split(/\s+/);
  return kinds.map((kind, index) => {
    const cell = cells[index] ?? '';
    return { status: status as LeaseStatus, kind, next: cell === 'same' ? status : cell };
  });
});

const n1 = node('n1');
const hex = (digit: string, bytes: number) => digit.repeat(bytes * 2);
const number = leaseNumber(1);
const { wallMs, monotonicMs, bootId } = at(0);
const term = { ttlMs: 60_000, issued: { wallMs, monotonicMs, bootId } };

/** An event of each kind, and what must hold of the lease beside its status. */
const EVENTS: { [Kind in LeaseEventKind]: EventOf<Kind> } = {
  renew: { kind: 'renew', lease: number, term, epoch: epoch(1) },
  bind: { kind: 'bind', lease: number, node: n1, binding: { workerKey: hex('a', 32), bootId } },
  join: { kind: 'join', lease: number, node: node('helper') },
  mounts: {
    kind: 'mounts',
    lease: number,
    node: n1,
    mounts: [{ path: '/scratch/xce', source: 's', type: 't', fsid: '1' }],
  },
  drain: { kind: 'drain', lease: number, nonces: [{ node: n1, nonce: hex('0', 16) }] },
  ask: { kind: 'ask', lease: number, nonces: [{ node: n1, nonce: hex('1', 16) }] },
  certify: { kind: 'certify', lease: number, node: n1, digest: hex('d', 32), certificate: 'c' },
  normalise: { kind: 'normalise', lease: number },
  normalised: { kind: 'normalised', lease: number, path: '/scratch/xce', walked: 1, changed: 1 },
  free: { kind: 'free', lease: number, wallMs: T0 },
  quarantine: {
    kind: 'quarantine',
    lease: number,
    quarantine: { code: 'operator', text: 'why', node: null, wallMs: T0 },
  },
  reclaim: {
    kind: 'reclaim',
    lease: number,
    node: n1,
    reclaim: { by: 'root', reason: 'power supply', wallMs: T0 },
  },
};

/** A lease for which every event of the kind holds, as far as the status allows. */
const makeLease = (status: LeaseStatus, kind: LeaseEventKind): { scene: Scene; lease: LeaseRow } => {
  const scene = new Scene();
  const lease = scene.allocate(request({ nodes: [n1] }));
  const isProven = kind === 'normalise' || kind === 'free';
  lease.nodes.set(n1, {
    role: 'job',
    binding: { workerKey: hex('a', 32), bootId },
    nonce: hex('0', 16),
    certificate: isProven ? hex('d', 32) : null,
    reclaim: null,
  });
  if (isProven) lease.finished = [{ path: '/scratch/xce', walked: 1, changed: 1 }];
  lease.statusIndex = LEASE_STATUSES.indexOf(status);
  return { scene, lease };
};

describe('the table of transitions', () => {
  test('it names every status and every kind of event once', () => {
    expect(expected).toHaveLength(LEASE_STATUSES.length * Object.keys(EVENTS).length);
    expect(new Set(kinds)).toEqual(new Set(Object.keys(EVENTS)));
  });

  test.each(expected)('$status, $kind: $next', ({ status, kind, next }) => {
    const { scene, lease } = makeLease(status, kind);
    const event: LeaseEvent = EVENTS[kind];
    expect(TRANSITIONS[status][kind] ?? '-').toBe(next);
    if (next === '-') {
      expect(codeOf(() => applyEvent(scene.state, event))).toBe('log-corrupt');
      return;
    }
    applyEvent(scene.state, event);
    if (next === 'free') {
      expect(scene.state.leases.size).toBe(0);
      expect([...scene.state.freed]).toEqual([lease.uid]);
    } else expect(scene.lease(1).status).toBe(next);
  });
});

describe('an event that does not add up is corruption', () => {
  const refusedIn = (
    status: LeaseStatus,
    kind: LeaseEventKind,
    event: ExistingEvent,
    change?: (l: LeaseRow) => void,
  ) => {
    const { scene, lease } = makeLease(status, kind);
    change?.(lease);
    return codeOf(() => applyEvent(scene.state, event));
  };
  const forget = (lease: LeaseRow) => {
    const known = lease.nodes.get(n1);
    if (known !== undefined) lease.nodes.set(n1, { ...known, certificate: null });
  };

  test.each<[string, () => string]>([
    ['free without a certificate', () => refusedIn('normalising', 'free', EVENTS.free, forget)],
    [
      'free without a verify pass',
      () =>
        refusedIn('normalising', 'free', EVENTS.free, (l) => {
          l.finished = [];
        }),
    ],
    ['normalise without a certificate', () => refusedIn('draining', 'normalise', EVENTS.normalise, forget)],
    [
      'a verify pass of another path',
      () => refusedIn('normalising', 'normalised', { ...EVENTS.normalised, path: '/home' }),
    ],
    [
      'a certificate without a nonce',
      () => refusedIn('draining', 'certify', EVENTS.certify, (l) => l.nodes.set(n1, UNTOUCHED_NODE.job)),
    ],
    ['a second certificate', () => refusedIn('draining', 'free', EVENTS.certify)],
    ['a nonce for a node that has certified', () => refusedIn('draining', 'free', EVENTS.ask)],
    ['a reclaim of a node that has certified', () => refusedIn('normalising', 'free', EVENTS.reclaim)],
    [
      'free without a certificate of a reclaimed node',
      () =>
        refusedIn('normalising', 'free', EVENTS.free, (l) => {
          l.nodes.set(n1, { ...UNTOUCHED_NODE.job, reclaim: EVENTS.reclaim.reclaim });
        }),
    ],
    ['a node that joins twice', () => refusedIn('active', 'join', { ...EVENTS.join, node: n1 })],
    [
      'another worker key',
      () => refusedIn('active', 'bind', { ...EVENTS.bind, binding: { workerKey: hex('b', 32), bootId } }),
    ],
    [
      'a mount of another path',
      () =>
        refusedIn('active', 'mounts', {
          ...EVENTS.mounts,
          mounts: [{ path: '/home', source: 's', type: 't', fsid: '1' }],
        }),
    ],
    [
      'a node that is not of the lease',
      () => refusedIn('active', 'bind', { ...EVENTS.bind, node: node('n8') }),
    ],
    [
      'a lease that is not there',
      () => refusedIn('active', 'renew', { ...EVENTS.renew, lease: leaseNumber(2) }),
    ],
  ])('%s', (_, act) => {
    expect(act()).toBe('log-corrupt');
  });

  const again = (change: Partial<EventOf<'allocate'>>) => {
    const scene = new Scene();
    scene.allocate();
    const first: EventOf<'allocate'> = {
      ...request({ job: job('43') }),
      kind: 'allocate',
      lease: leaseNumber(2),
      uid: uid(70_001),
      term,
      epoch: epoch(1),
    };
    return codeOf(() => applyEvent(scene.state, { ...first, ...change }));
  };

  test('a grant is refused for each of its conditions alone', () => {
    expect(again({})).toBe('no refusal');
    expect(again({ uid: uid(70_000) })).toBe('log-corrupt');
    expect(again({ lease: leaseNumber(3) })).toBe('log-corrupt');
    expect(again({ job: job('42') })).toBe('log-corrupt');
    expect(again({ nodes: [] })).toBe('log-corrupt');
    expect(again({ nodes: [n1, n1] })).toBe('log-corrupt');
    expect(again({ roots: [{ storage: 'scratch', path: '/scratch/xce' }] })).toBe('log-corrupt');
  });

  test('a grant or a renewal of an older epoch', () => {
    const scene = new Scene();
    scene.allocate();
    applyEvent(scene.state, { ...EVENTS.renew, epoch: epoch(5) });
    expect(codeOf(() => applyEvent(scene.state, { ...EVENTS.renew, epoch: epoch(4) }))).toBe('log-corrupt');
    expect(scene.lease(1).epoch).toBe(5);
  });

  test('more attempts forgotten than there are', () => {
    expect(codeOf(() => applyEvent(new Scene().state, { kind: 'forget', count: 1 }))).toBe('log-corrupt');
  });
});

describe('a uid', () => {
  test('is held in every status and comes back last in the queue', () => {
    const scene = new Scene();
    const first = scene.allocate().read();
    scene.release(first);
    const second = scene.allocate(request({ job: job('43') }));
    expect([first.uid, second.uid]).toEqual([70_000, 70_001]);
    expect([...scene.state.freed]).toEqual([70_000]);
    expect(scene.state.leases.rowOfUid(second.uid)?.number).toBe(second.number);
    expect(scene.state.leases.ofJob(job('42'))).toEqual([]);
  });

  test('a helper that joins after its certificate must certify again', () => {
    const scene = new Scene();
    const lease = scene.allocate();
    scene.clean(lease);
    scene.normalise(lease);
    applyEvent(scene.state, { kind: 'join', lease: lease.number, node: n1 });
    expect(codeOf(() => applyEvent(scene.state, { kind: 'free', lease: lease.number, wallMs: T0 }))).toBe(
      'log-corrupt',
    );
  });
});

test('a preview of a lease changes neither the lease nor its collections', () => {
  const { scene, lease } = makeLease('normalising', 'normalised');
  const before = bytesOf(scene.state);
  const after = previewLease(lease.read(), [
    EVENTS.normalised,
    EVENTS.join,
    EVENTS.certify,
    EVENTS.quarantine,
  ]);
  expect(after?.status).toBe('quarantined');
  expect(bytesOf(scene.state).equals(before)).toBe(true);
});
