/** The lease log of this machine, from the configuration. */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import type { Settings } from '../config/settings.ts';
import { decodeEvent, type LeaseEvent } from '../lease/event.ts';
import { leaseMachine } from '../lease/machine.ts';
import { describeRecord, type SnapshotEntry } from '../lease/snapshot.ts';
import type { LeaseState } from '../lease/state.ts';
import { bootClock } from '../os/boot-clock.ts';
import { clientQuorum } from '../os/client-quorum.ts';
import { readBootId } from '../os/clock.ts';
import { logFiles } from '../os/log-files.ts';
import { mountOf } from '../os/mounts.ts';
import { checkLog, type LogReport } from '../wal/check.ts';
import { type DumpEnd, type DumpPorts, dumpEpoch } from '../wal/dump.ts';
import type { EntryCodec, LogEntry } from '../wal/entries.ts';
import type { EpochDirectoryOptions } from '../wal/epoch-directory.ts';
import { EpochLog } from '../wal/epoch-log.ts';
import { HostRecordFile } from '../wal/host-record.ts';
import { type ControllerStorage, createStorage } from '../wal/probe.ts';
import { probeProgram, startProbeProcess } from './probe-process.ts';

type LogSettings = Pick<Settings, 'cluster' | 'lease' | 'worker'>;

const wait = (milliseconds: number): Promise<void> =>
  new Promise((resolve) => setTimeout(resolve, milliseconds));

/** The storage of the log as this host sees it. */
export const openLogStorage = ({ cluster, lease, worker }: LogSettings): ControllerStorage =>
  createStorage(
    {
      files: logFiles,
      mountOf,
      clientQuorum,
      randomBytes,
      wait,
      wallMs: bootClock.wallMs,
      startSecond: (directory, probe) => startProbeProcess(probeProgram(), directory, probe),
      record: new HostRecordFile(
        logFiles,
        join(worker.stateDirectory, 'controller', 'storage.json'),
        { cluster: cluster.name, instance: cluster.instance },
        process.pid,
      ),
    },
    lease.storage,
  );

export const openLeaseLog = (settings: LogSettings): EpochLog<LeaseState, LeaseEvent> => {
  const { cluster, lease, worker } = settings;
  return new EpochLog(
    {
      files: logFiles,
      clock: bootClock,
      bootId: readBootId(),
      processId: process.pid,
      randomBytes,
      wait,
      storage: openLogStorage(settings),
    },
    {
      directory: lease.directory,
      runDirectory: join(worker.runDirectory, 'controller'),
      memoryPath: memoryPathOf(settings),
      cluster: cluster.name,
      instance: cluster.instance,
      host: worker.node,
      lockTimeoutMs: lease.lockTimeoutMs,
      holdTimeoutMs: lease.lockTimeoutMs,
    },
    leaseMachine,
  );
};

const memoryPathOf = ({ worker }: LogSettings): string =>
  join(worker.stateDirectory, 'controller', 'seen.json');

/** What reads the log without taking part in it needs. */
const readingPorts = (settings: LogSettings): DumpPorts => ({
  files: logFiles,
  storage: openLogStorage(settings),
  wait,
});

const placeOf = ({ lease, cluster }: LogSettings): EpochDirectoryOptions => ({
  directory: lease.directory,
  cluster: cluster.name,
  instance: cluster.instance,
});

/** Looks at every epoch in the directory, also at those that count no more. */
export const checkLeaseLog = (settings: LogSettings): Promise<LogReport<LeaseState>> =>
  checkLog(
    readingPorts(settings),
    { ...placeOf(settings), memoryPath: memoryPathOf(settings) },
    leaseMachine,
  );

export type LeaseLogEntry = LogEntry<SnapshotEntry, LeaseEvent>;
const CODEC: EntryCodec<SnapshotEntry, LeaseEvent> = { describe: describeRecord, decode: decodeEvent };

/** The entries of an epoch, or of the newest complete one; see dumpEpoch. */
export const dumpLeaseEpoch = (
  settings: LogSettings,
  epoch: number | undefined,
): AsyncGenerator<readonly LeaseLogEntry[], DumpEnd> =>
  dumpEpoch(readingPorts(settings), placeOf(settings), CODEC, epoch);
