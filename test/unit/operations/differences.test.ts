import { expect, test } from 'vitest';
import type { Attempt, JobId, LeaseNumber, NodeName, Uid } from '../../../src/base/ids.ts';
import type { LeaseView } from '../../../src/lease/view.ts';
import { findDifferences, isWrong, type Looks, type NodeLook } from '../../../src/operations/differences.ts';

const GATE = '/scratch/xce/main/42.0';

const view = (changes: Partial<LeaseView> = {}): LeaseView => ({
  lease: 7 as LeaseNumber,
  uid: 70_000 as Uid,
  job: '42' as JobId,
  attempt: 0 as Attempt,
  schedulerStartS: null,
  submitter: { uid: 1001, gid: 1001 } as LeaseView['submitter'],
  status: 'active',
  epoch: 1 as LeaseView['epoch'],
  ttlMs: 60_000,
  issuedWallMs: 0,
  remainingMs: 5000,
  expiry: 'live',
  nodes: ['n1', 'n2'].map((node) => ({
    node: node as NodeName,
    role: 'job' as const,
    workerKey: null,
    bootId: null,
    certified: false,
    reclaim: null,
  })),
  roots: [],
  workspace: { storage: 'scratch', path: '/scratch/xce' },
  mounts: [],
  finished: [],
  quarantine: null,
  ...changes,
});

const box = (changes: Partial<Extract<NodeLook, { ok: true }>['sandboxes'][number]> = {}) => ({
  lease: 7,
  job: '42' as JobId,
  attempt: 0,
  uid: 70_000,
  state: 'ready' as const,
  ...changes,
});

const on = (
  node: string,
  sandboxes: readonly ReturnType<typeof box>[] = [],
  strays: number[] = [],
): NodeLook => ({
  node: node as NodeName,
  ok: true,
  sandboxes,
  strays,
});

const find = (looks: Partial<Looks>) => {
  const now = looks.now ?? looks.before ?? [];
  return findDifferences({
    before: now,
    nodes: [],
    gates: [],
    silent: [],
    gateOf: ({ workspace }) => (workspace === null ? null : GATE),
    ended: new Map(),
    sinceWallMs: 1000,
    unsure: new Set(),
    ...looks,
    now,
  });
};

const ENDED = new Map([
  [
    3 as LeaseNumber,
    {
      lease: 3 as LeaseNumber,
      uid: 70_003 as Uid,
      job: '40' as JobId,
      attempt: 1 as Attempt,
      schedulerStartS: null,
      endedWallMs: 0,
    },
  ],
]);

test('a lease that runs, with its sandboxes and its workspace, differs from nothing', () => {
  const nodes = [on('n1', [box()]), on('n2', [box()])];
  expect(find({ now: [view()], nodes, gates: [{ path: GATE, gid: 70_000 }] })).toEqual([]);
});

test.each<[string, Partial<LeaseView>, object]>([
  ['whose time is over', { remainingMs: 0, expiry: 'expired' }, { kind: 'lease-overdue', mend: 'release' }],
  [
    'whose time is over by a clock that proves nothing',
    { remainingMs: 0, expiry: 'unsure' },
    { kind: 'lease-unsure', mend: null },
  ],
  [
    'in quarantine',
    {
      status: 'quarantined',
      quarantine: { code: 'node-dirty', text: 'process 4711' } as LeaseView['quarantine'],
    },
    { kind: 'lease-quarantined', mend: 'release', text: 'process 4711' },
  ],
])('a lease %s is told, with its nodes and the command for it', (_, changes, told) => {
  const found = find({ now: [view(changes)], nodes: [on('n1', [box()])] });
  expect(found).toMatchObject([{ ...told, lease: 7, job: '42', nodes: ['n1', 'n2'] }]);
  expect(found.every(isWrong)).toBe(true);
});

test('a lease that nothing was launched for is told and is not wrong; with one sandbox it is not told', () => {
  const [found, ...others] = find({ now: [view()], nodes: [on('n1'), on('n2')] });
  expect(others).toEqual([]);
  expect(found).toMatchObject({ kind: 'lease-without-sandbox', mend: null });
  expect(found && isWrong(found)).toBe(false);
  expect(find({ now: [view()], nodes: [on('n1'), on('n2', [box()])] })).toEqual([]);
});

test('a sandbox of a lease that has ended is drained as what it was, on every node that has it', () => {
  const nodes = [on('n1', [box({ lease: 3, uid: 70_003 })]), on('n2', [box({ lease: 3, uid: 70_003 })])];
  expect(find({ nodes, ended: ENDED })).toMatchObject([
    {
      kind: 'sandbox-without-lease',
      nodes: ['n1', 'n2'],
      mend: 'drain',
      drain: { lease: 3, uid: 70_003, job: '40', attempt: 1 },
    },
  ]);
});

test('something by the name of a lease that the log does not remember is left to an operator', () => {
  for (const node of [on('n1', [box({ lease: 9 })]), on('n1', [], [9])]) {
    expect(find({ nodes: [node] })).toMatchObject([
      { kind: 'sandbox-without-lease', lease: 9, nodes: ['n1'], mend: null, drain: null },
    ]);
  }
});

test.each(['draining', 'normalising'] as const)(
  'a lease that is %s is told, and left to its release',
  (status) => {
    const [found, ...others] = find({ now: [view({ status })], nodes: [on('n1', [box()])] });
    expect(others).toEqual([]);
    expect(found).toMatchObject({ kind: 'lease-unfinished', mend: null });
    expect(found && isWrong(found)).toBe(false);
  },
);

test('a lease of which this host has measured that it cannot tell is unsure, whatever its clock says', () => {
  const now = [view({ expiry: 'unsure' })];
  expect(find({ now, nodes: [on('n1', [box()])] })).toEqual([]);
  expect(find({ now, nodes: [on('n1', [box()])], unsure: new Set([7 as LeaseNumber]) })).toMatchObject([
    { kind: 'lease-unsure', mend: null },
  ]);
});

test.each<[string, LeaseView, readonly NodeLook[], string]>([
  ['on a node that is none of the lease', view(), [on('n1', [box()]), on('n3', [box()])], 'n3'],
  ['of another uid than the lease', view(), [on('n1', [box({ uid: 70_001 })])], 'n1'],
  ['of another job than the lease', view(), [on('n1', [box({ job: '41' as JobId })])], 'n1'],
  ['of another attempt than the lease', view(), [on('n1', [box({ attempt: 1 })])], 'n1'],
])('a sandbox %s is one without lease, and nothing drains a lease that may run', (_, lease, nodes, node) => {
  expect(find({ now: [lease], nodes })).toMatchObject([
    { kind: 'sandbox-without-lease', lease: 7, nodes: [node], mend: null, drain: null },
  ]);
});

test('a node that has something again of what it certified has to certify again before the uid is free', () => {
  const certifiedBy = (name: string) => view().nodes.map((one) => ({ ...one, certified: one.node === name }));
  const quarantined = view({ status: 'quarantined', nodes: certifiedBy('n1') });
  const expected = { lease: 7, mend: 'release', drain: null, rejoin: ['n1'] };
  for (const look of [on('n1', [box()]), on('n1', [], [7])]) {
    expect(find({ now: [quarantined], nodes: [look] })).toMatchObject([
      { kind: 'lease-quarantined', ...expected },
      { kind: 'sandbox-without-lease', nodes: ['n1'], ...expected },
    ]);
  }
  const draining = view({ status: 'draining', nodes: certifiedBy('n1') });
  expect(find({ now: [draining], nodes: [on('n1', [box()])] })).toContainEqual(
    expect.objectContaining({ kind: 'sandbox-without-lease', mend: null }),
  );
});

test('nothing says that a job has not begun while one of its nodes gives no answer, or no whole one', () => {
  const silent: NodeLook = { node: 'n2' as NodeName, ok: false, message: 'n2: no connection' };
  const older: NodeLook = {
    node: 'n2' as NodeName,
    ok: true,
    sandboxes: [],
    strays: { unknown: 'no such verb' },
  };
  for (const look of [silent, older]) {
    const found = find({ now: [view()], nodes: [on('n1'), look] });
    expect(found).toMatchObject([{ kind: 'node-silent', nodes: ['n2'] }]);
  }
  const kept = find({ nodes: [{ ...older, sandboxes: [box({ lease: 9 })] }] });
  expect(kept.map(({ kind }) => kind)).toEqual(['sandbox-without-lease', 'node-silent']);
});

test('a lease that was made and freed while the nodes were asked is no difference', () => {
  const nodes = [on('n1', [box({ lease: 3, uid: 70_003 })])];
  const [[lease, attempt] = []] = [...ENDED];
  if (lease === undefined || attempt === undefined) throw new Error('one has ended');
  expect(find({ nodes, ended: new Map([[lease, { ...attempt, endedWallMs: 1001 }]]) })).toEqual([]);
  expect(find({ nodes, ended: new Map([[lease, { ...attempt, endedWallMs: 1000 }]]) })).toHaveLength(1);
});

test('what a release is still to end is no sandbox without lease', () => {
  const kinds = find({ now: [view({ status: 'quarantined' })], nodes: [on('n1', [], [7])] }).map(
    ({ kind }) => kind,
  );
  expect(kinds).toEqual(['lease-quarantined']);
});

test('what certified after its node was looked at was there, and is none of anybody else', () => {
  const before = view({ status: 'draining' });
  const now = { ...before, nodes: before.nodes.map((one) => ({ ...one, certified: true })) };
  const kinds = find({ before: [before], now: [now], nodes: [on('n1', [box()]), on('n2', [], [7])] });
  expect(kinds.map(({ kind }) => kind)).toEqual(['lease-unfinished']);
});

test('what a worker has no record of makes the node of a running lease dirty, and the lease is no idle one', () => {
  expect(find({ now: [view()], nodes: [on('n1', [], [7]), on('n2')] })).toMatchObject([
    { kind: 'node-dirty', lease: 7, nodes: ['n1'], mend: null },
  ]);
});

test('a lease that was made or freed while the nodes were asked is no difference', () => {
  const nodes = [on('n1', [box()])];
  const gates = [{ path: GATE, gid: 70_000 }];
  expect(find({ before: [view()], now: [], nodes, gates })).toEqual([]);
  expect(find({ before: [], now: [view()], nodes, gates })).toEqual([]);
});

test('a sandbox of a running lease that could not be ended cleanly makes its node dirty, and nobody ends the lease', () => {
  const found = find({ now: [view()], nodes: [on('n1', [box({ state: 'dirty' })]), on('n2', [box()])] });
  expect(found).toMatchObject([{ kind: 'node-dirty', lease: 7, nodes: ['n1'], mend: null }]);
});

test('a shut directory that a group may enter belongs to a lease', () => {
  const gates = [
    { path: '/scratch/xce/main/9.0', gid: 70_004 },
    { path: '/scratch/xce/main/8.0', gid: 0 },
  ];
  expect(find({ gates })).toMatchObject([{ kind: 'workspace-without-lease', mend: null }]);
});

test('a node and a storage that give no answer are told, for nothing proves that they agree', () => {
  const found = find({
    nodes: [{ node: 'n2' as NodeName, ok: false, message: 'n2: no connection' }],
    silent: [{ storage: 'scratch', message: 'not mounted', next: 'mount it' }],
  });
  expect(found).toMatchObject([{ kind: 'node-silent', nodes: ['n2'] }, { kind: 'storage-silent' }]);
  expect(found.every(isWrong)).toBe(true);
});
