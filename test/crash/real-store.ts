import type { InstanceName } from '../../src/base/ids.ts';
import { leaseMachine } from '../../src/lease/machine.ts';
import { LeaseStore, type LeaseStoreSettings } from '../../src/lease/store.ts';
import { bootClock } from '../../src/os/boot-clock.ts';
import { readBootId } from '../../src/os/clock.ts';
import type { LogFiles } from '../../src/os/log-files.ts';
import type { StoragePort } from '../../src/wal/storage.ts';
import { IDENTITY, openLogAt, type RealPlace } from './real-log.ts';

export type Timeouts = { readonly lockTimeoutMs: number; readonly holdTimeoutMs: number };
export type Pool = LeaseStoreSettings['pool'];

export const LEASE_TTL_MS = 600_000;

/** Leases on a real log, as a process of its host opens them. The name service knows no uid of the pool. */
export const openRealStore = (
  place: RealPlace,
  pool: Pool,
  timeouts: Timeouts,
  { port, files }: { readonly port?: StoragePort; readonly files?: LogFiles } = {},
) => {
  const log = openLogAt(place, leaseMachine, timeouts, port, files);
  const store = new LeaseStore(
    {
      log,
      nameService: { lookUp: async () => ({ answer: 'absent' }) },
      clock: bootClock,
      bootId: readBootId(),
    },
    {
      cluster: { name: IDENTITY.cluster, instance: IDENTITY.instance as InstanceName, pki: '/pki' },
      pool,
      lease: {
        directory: place.directory,
        storage: place.storage,
        probeListen: { address: '127.0.0.1', port: 7714 },
        lockTimeoutMs: timeouts.lockTimeoutMs,
        storageTimeoutMs: 30_000,
        skewMs: 5000,
        ttlMs: LEASE_TTL_MS,
        rememberDays: 7,
      },
    },
  );
  return { log, store };
};
