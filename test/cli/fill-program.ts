/** Fills the lease log of this host with as many active leases as the argument says, in one record. */
import type { Attempt, Epoch, JobId, LeaseNumber, NodeName, Uid } from '../../src/base/ids.ts';
import { openLeaseLog } from '../../src/operations/lease-log-ports.ts';
import { openConfig } from '../../src/operations/open-config.ts';
import { bootClock } from '../../src/os/boot-clock.ts';
import { readBootId } from '../../src/os/clock.ts';

const count = Number(process.argv[2]);
const { settings } = openConfig(undefined);
const log = openLeaseLog(settings);
const issued = { wallMs: bootClock.wallMs(), monotonicMs: bootClock.monotonicMs(), bootId: readBootId() };
try {
  await log.commit((_, { epoch }) => ({
    events: Array.from({ length: count }, (_unused, index) => ({
      kind: 'allocate' as const,
      lease: (index + 1) as LeaseNumber,
      uid: (settings.pool.first + index) as Uid,
      job: `fill-${index}` as JobId,
      attempt: 0 as Attempt,
      schedulerStartS: null,
      submitter: { uid: 1001, gid: 1001 },
      nodes: ['n1' as NodeName],
      roots: [],
      workspace: null,
      term: { ttlMs: settings.lease.ttlMs, issued },
      epoch: epoch as Epoch,
    })),
    result: undefined,
  }));
} finally {
  await log.close();
}
