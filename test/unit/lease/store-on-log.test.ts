/** The lease store on the real log, in a directory of this machine: what MemoryLog promises, kept. */
import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, truncateSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { afterEach, describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { LeaseEvent } from '../../../src/lease/event.ts';
import { leaseMachine } from '../../../src/lease/machine.ts';
import type { LeaseState } from '../../../src/lease/state.ts';
import { LeaseStore } from '../../../src/lease/store.ts';
import { bootClock } from '../../../src/os/boot-clock.ts';
import { readBootId } from '../../../src/os/clock.ts';
import { logFiles } from '../../../src/os/log-files.ts';
import { EpochLog } from '../../../src/wal/epoch-log.ts';
import { attempt, IDENTITY, job, leaseNumber, node, request, uid } from './scene.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

const settings = {
  cluster: { name: IDENTITY.cluster, instance: IDENTITY.instance, pki: '/pki' },
  pool: { first: uid(70_000), last: uid(70_099) },
  lease: {
    directory: '/log',
    storage: 'local' as const,
    probeListen: { address: '127.0.0.1', port: 7714 },
    lockTimeoutMs: 20_000,
    storageTimeoutMs: 30_000,
    skewMs: 5000,
    ttlMs: 60_000,
    rememberDays: 7,
  },
};

type Host = { readonly log: EpochLog<LeaseState, LeaseEvent>; readonly store: LeaseStore };

/** A log directory, and processes of hosts that use it. */
const makeSite = () => {
  const top = mkdtempSync(join(tmpdir(), 'xce-lease-store-'));
  cleanups.push(() => rmSync(top, { recursive: true }));
  const directory = join(top, 'log');
  mkdirSync(directory);
  const look = async () => ({ type: 'ext4', source: 'test', path: directory });
  const open = (host: string): Host => {
    const log = new EpochLog(
      {
        files: logFiles,
        clock: bootClock,
        bootId: readBootId(),
        processId: process.pid,
        randomBytes,
        wait: (milliseconds) => wait(milliseconds),
        storage: { look, admit: look, probe: look },
      },
      {
        directory,
        runDirectory: join(top, host, 'run'),
        memoryPath: join(top, host, 'state', 'seen.json'),
        cluster: IDENTITY.cluster,
        instance: IDENTITY.instance,
        host,
        lockTimeoutMs: 20_000,
        holdTimeoutMs: 20_000,
        tailBytesMin: 1 << 20,
      },
      leaseMachine,
    );
    cleanups.push(() => log.close());
    const nameService = { lookUp: async () => ({ answer: 'absent' }) as const };
    const store = new LeaseStore({ log, nameService, clock: bootClock, bootId: readBootId() }, settings);
    return { log, store };
  };
  return { directory, open };
};

const codeOf = async (call: Promise<unknown>): Promise<string> => {
  try {
    await call;
  } catch (error) {
    if (error instanceof XceError) return error.code;
    throw error;
  }
  return 'no refusal';
};

/** What does not change with time. */
const lasting = async ({ store }: Host) =>
  (await store.list()).map(({ remainingMs: _, expiry: __, ...rest }) => rest);

describe('leases on the real log', () => {
  test('survive the process, a compaction and a change of the owner', async () => {
    const site = makeSite();
    const first = site.open('c1');
    await first.log.init();
    await first.store.allocate(request());
    await first.store.allocate(request({ job: job('43'), nodes: [node('n7')] }));
    await first.store.beginDrain({ job: job('43') }, []);
    await first.store.allocate(request({ attempt: attempt(1) }));
    const before = await lasting(first);
    expect(before.map(({ status }) => status)).toEqual(['quarantined', 'draining', 'active']);

    expect(await lasting(site.open('c1'))).toEqual(before);
    await first.log.compact();
    expect(await lasting(site.open('c1'))).toEqual(before);

    const second = site.open('c2');
    expect(await codeOf(second.store.renew({ lease: leaseNumber(3) }, 60_000))).toBe('log-fenced');
    await second.log.takeover();
    expect(await lasting(second)).toEqual(before);
    const renewed = await second.store.renew({ lease: leaseNumber(3) }, 90_000);
    expect(renewed.result.epoch).toBe(3);
    const why = { code: 'operator', text: 'late', node: null } as const;
    expect(await codeOf(first.store.quarantine({ lease: leaseNumber(3) }, why))).toBe('log-fenced');
    expect((await second.store.show({ lease: leaseNumber(3) })).status).toBe('active');
  }, 30_000);

  test('many processes of one host that allocate at once get different uids', async () => {
    const site = makeSite();
    const hosts = Array.from({ length: 4 }, () => site.open('c1'));
    await hosts[0]?.log.init();
    const granted = await Promise.all(
      Array.from({ length: 24 }, async (_, index) => {
        const { store } = hosts[index % hosts.length] ?? site.open('c1');
        return (await store.allocate(request({ job: job(`j${index}`) }))).result.lease;
      }),
    );
    expect(new Set(granted.map((lease) => lease.uid)).size).toBe(24);
    expect(granted.map((lease) => lease.lease).sort((a, b) => a - b)).toEqual(
      Array.from({ length: 24 }, (_, index) => index + 1),
    );
  }, 30_000);

  test('a record that a crash cut short does not count, and its job can ask again', async () => {
    const site = makeSite();
    const before = site.open('c1');
    await before.log.init();
    await before.store.allocate(request());
    await before.store.allocate(request({ job: job('43') }));
    const path = join(site.directory, 'leases.wal.1');
    truncateSync(path, statSync(path).size - 3);

    const after = site.open('c1');
    // What this host acknowledged itself may not vanish without a word.
    expect(await codeOf(after.store.show({ job: job('42') }))).toBe('log-rollback');
    const other = site.open('c2');
    await other.log.takeover();
    const again = await other.store.allocate(request({ job: job('43') }));
    expect(again.result).toMatchObject({ created: true, lease: { lease: 2, uid: 70_001 } });
    expect(readdirSync(site.directory).sort()).toEqual(['leases.wal.1', 'leases.wal.2']);
  }, 30_000);

  test('a refused allocation leaves the log byte for byte', async () => {
    const site = makeSite();
    const host = site.open('c1');
    await host.log.init();
    await host.store.allocate(request());
    const size = statSync(join(site.directory, 'leases.wal.1')).size;
    expect(await codeOf(host.store.allocate(request({ nodes: [node('n9')] })))).toBe('lease-conflict');
    await host.store.allocate(request());
    expect(statSync(join(site.directory, 'leases.wal.1')).size).toBe(size);
  }, 30_000);
});
