import { describe, expect, test } from 'vitest';
import type { LeaseNumber } from '../../../src/base/ids.ts';
import { LEASE_STATUSES, type Lease, newLease } from '../../../src/lease/lease.ts';
import { LeaseTable } from '../../../src/lease/lease-table.ts';
import { UNTOUCHED_NODE } from '../../../src/lease/nodes.ts';
import { at, attempt, epoch, job, leaseNumber, node, request, uid } from './scene.ts';

const reclaim = { by: 'root', reason: 'power supply', wallMs: 9 };
const term = { ttlMs: 60_000, issued: { wallMs: 7, monotonicMs: 8, bootId: at(0).bootId } };

const lease = (number: number, id = `j${number}`, names = ['n1']): Lease =>
  newLease({
    ...request({ job: job(id), attempt: attempt(number), nodes: names.map(node) }),
    kind: 'allocate',
    lease: leaseNumber(number),
    uid: uid(70_000 + number),
    term,
    epoch: epoch(1),
  });

const addTo = (table: LeaseTable, one: Lease): void => table.add(one).nodes.become(one.nodes);

const tableOf = (...leases: readonly Lease[]): LeaseTable => {
  const table = new LeaseTable();
  for (const one of leases) addTo(table, one);
  return table;
};

const numbersOf = (leases: Iterable<Lease>): readonly LeaseNumber[] =>
  [...leases].map(({ number }) => number);

const end = (table: LeaseTable, number: number): void => {
  const row = table.row(leaseNumber(number));
  if (row !== undefined) table.remove(row);
};

describe('a table of leases', () => {
  test('gives every lease back as it was added, however many there are', () => {
    const leases = Array.from({ length: 100 }, (_, index) => lease(index + 1));
    const table = tableOf(...leases);
    expect([...table.values()]).toEqual(leases);
    expect(table.size).toBe(100);
    for (const one of leases) {
      expect(table.get(one.number)).toEqual(one);
      expect(table.rowOfUid(one.uid)?.read()).toEqual(one);
      expect(table.ofJob(one.job)).toEqual([one]);
    }
  });

  test('keeps every field of a lease that much has become of', () => {
    const much: Lease = {
      ...lease(1),
      schedulerStartS: 1_800_000_000,
      roots: [{ path: '/scratch/a', storage: 'scratch' }],
      status: 'quarantined',
      epoch: epoch(2 ** 40),
      mounts: [{ node: node('n1'), mount: { path: '/scratch/a', source: 's', type: 't', fsid: '1' } }],
      finished: [{ path: '/scratch/a', walked: 1, changed: 1 }],
      quarantine: { code: 'operator', text: 'why', node: null, wallMs: 9 },
    };
    expect([...tableOf(much).values()]).toEqual([much]);
  });

  test('finds nothing of a lease that has ended, and uses its row for another', () => {
    const table = tableOf(lease(1, 'j', ['n1', 'n2', 'n3']), lease(2));
    end(table, 1);
    expect([table.size, table.has(leaseNumber(1)), table.isHeld(uid(70_001))]).toEqual([1, false, false]);
    expect([table.get(leaseNumber(1)), table.rowOfUid(uid(70_001)), table.ofJob(job('j'))]).toEqual([
      undefined,
      undefined,
      [],
    ]);
    addTo(table, lease(3));
    expect([...table.values()]).toEqual([lease(2), lease(3)]);
  });

  test('refuses to end a lease twice', () => {
    const table = tableOf(lease(1), lease(2));
    const row = table.row(leaseNumber(1));
    if (row === undefined) throw new Error('it was added');
    table.remove(row);
    expect(() => table.remove(row)).toThrow(expect.objectContaining({ code: 'bug' }));
    expect(numbersOf(table.values())).toEqual([2]);
  });

  test.each([
    ['first', 1, [2, 3]],
    ['middle', 2, [1, 3]],
    ['last', 3, [1, 2]],
  ])('has the leases of a job in their order when the %s of them ends', (_, ended, left) => {
    const table = tableOf(lease(1, 'j'), lease(2, 'j'), lease(3, 'j'), lease(4));
    end(table, ended);
    expect(numbersOf(table.ofJob(job('j')))).toEqual(left);
    for (const number of left) end(table, number);
    expect(table.ofJob(job('j'))).toEqual([]);
    expect(numbersOf(table.values())).toEqual([4]);
  });

  test('changes with a row, and what was read before does not', () => {
    const table = tableOf(lease(1));
    const before = table.get(leaseNumber(1));
    const row = table.row(leaseNumber(1));
    if (row === undefined) throw new Error('it was added');
    row.statusIndex = LEASE_STATUSES.indexOf('draining');
    row.setTerm(1, term.issued.wallMs, term.issued.monotonicMs, term.issued.bootId);
    row.nodes.set(node('helper'), UNTOUCHED_NODE.helper);
    expect(before).toEqual(lease(1));
    expect(table.get(leaseNumber(1))).toMatchObject({ status: 'draining', term: { ttlMs: 1 } });
    expect(table.get(leaseNumber(1))?.nodes.names).toEqual(['n1', 'helper']);
  });

  test('does not share the nodes of what was added to it', () => {
    const one = lease(1, 'j', ['n1', 'n2']);
    const table = tableOf(one);
    one.nodes.set(node('n3'), UNTOUCHED_NODE.job);
    expect(table.get(leaseNumber(1))?.nodes.names).toEqual(['n1', 'n2']);
  });

  test('tells the leases of two jobs apart whose ids have the same FNV-1a', () => {
    const [one, other] = ['costarring', 'liquid'];
    const table = tableOf(lease(1, one), lease(2, other), lease(3, one));
    expect(numbersOf(table.ofJob(job(one)))).toEqual([1, 3]);
    expect(numbersOf(table.ofJob(job(other)))).toEqual([2]);
    expect(table.rowOfAttempt(job(one), attempt(2))).toBeUndefined();
    expect(table.rowOfAttempt(job(other), attempt(2))?.number).toBe(2);
    end(table, 3);
    end(table, 2);
    expect(numbersOf(table.ofJob(job(one)))).toEqual([1]);
    expect(table.ofJob(job(other))).toEqual([]);
  });

  test('has nothing of the nodes of a lease that has ended', () => {
    const names = Array.from({ length: 40 }, (_one, index) => `n${index}`);
    const one = lease(1, 'j', names);
    one.nodes.set(node('n1'), { ...UNTOUCHED_NODE.job, nonce: '5a'.repeat(16), reclaim });
    const table = tableOf(one, lease(2));
    expect(table.get(leaseNumber(1))?.nodes).toEqual(one.nodes);
    end(table, 1);
    const next = lease(3, 'k', [...names].reverse());
    addTo(table, next);
    expect([...table.values()]).toEqual([lease(2), next]);
  });
});
