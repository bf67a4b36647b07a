/** The lease log of this machine, from the configuration. */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import type { Settings } from '../config/settings.ts';
import type { LeaseEvent } from '../lease/event.ts';
import { leaseMachine } from '../lease/machine.ts';
import type { LeaseState } from '../lease/state.ts';
import { bootClock } from '../os/boot-clock.ts';
import { clientQuorum } from '../os/client-quorum.ts';
import { readBootId } from '../os/clock.ts';
import { logFiles } from '../os/log-files.ts';
import { mountOf } from '../os/mounts.ts';
import { checkLog, type LogReport } from '../wal/check.ts';
import { EpochLog } from '../wal/epoch-log.ts';
import { createStorage } from '../wal/probe.ts';

type LogSettings = Pick<Settings, 'cluster' | 'lease' | 'worker'>;

const storageOf = ({ lease }: LogSettings) =>
  createStorage({ files: logFiles, mountOf, clientQuorum, randomBytes }, lease.storage);

export const openLeaseLog = (settings: LogSettings): EpochLog<LeaseState, LeaseEvent> => {
  const { cluster, lease, worker } = settings;
  return new EpochLog(
    {
      files: logFiles,
      clock: bootClock,
      bootId: readBootId(),
      processId: process.pid,
      randomBytes,
      wait: (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds)),
      storage: storageOf(settings),
    },
    {
      directory: lease.directory,
      runDirectory: join(worker.runDirectory, 'controller'),
      memoryPath: join(worker.stateDirectory, 'controller', 'seen.json'),
      cluster: cluster.name,
      instance: cluster.instance,
      host: worker.node,
      lockTimeoutMs: lease.lockTimeoutMs,
      holdTimeoutMs: lease.lockTimeoutMs,
    },
    leaseMachine,
  );
};

/** Looks at every epoch in the directory, also at those that count no more. */
export const checkLeaseLog = (settings: LogSettings): Promise<LogReport> =>
  checkLog(
    { files: logFiles, storage: storageOf(settings) },
    {
      directory: settings.lease.directory,
      cluster: settings.cluster.name,
      instance: settings.cluster.instance,
    },
    leaseMachine,
  );
