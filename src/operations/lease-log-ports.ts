/** The lease log of this machine, from the configuration. */
import { decodeEvent, type LeaseEvent } from '../lease/event.ts';
import { leaseMachine } from '../lease/machine.ts';
import { describeRecord, type SnapshotEntry } from '../lease/snapshot.ts';
import type { LeaseState } from '../lease/state.ts';
import { pause } from '../os/watch.ts';
import { checkLog, type LogReport } from '../wal/check.ts';
import { type DumpEnd, type DumpPorts, dumpEpoch } from '../wal/dump.ts';
import type { EntryCodec, LogEntry } from '../wal/entries.ts';
import type { EpochDirectoryOptions } from '../wal/epoch-directory.ts';
import type { EpochLog } from '../wal/epoch-log.ts';
import { type Followed, followLog } from '../wal/follow.ts';
import type { ControllerStorage } from '../wal/probe.ts';
import { filesOf, type LogSettings, memoryPathOf, openLog, storageWith } from './epoch-log-ports.ts';
import { probeProgram, startProbeProcess } from './probe-process.ts';

/** The storage of the log as this host sees it. */
export const openLogStorage = (settings: LogSettings): ControllerStorage =>
  storageWith(settings, (directory, probe) => startProbeProcess(probeProgram(), directory, probe));

export const openLeaseLog = (settings: LogSettings): EpochLog<LeaseState, LeaseEvent> =>
  openLog(settings, openLogStorage(settings), leaseMachine);

/** What reads the log without taking part in it needs. */
const readingPorts = (settings: LogSettings): DumpPorts => ({
  files: filesOf(settings),
  storage: openLogStorage(settings),
  wait: pause,
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

export type LeaseFollowed = Followed<LeaseEvent>;

/** What becomes part of the log from now on, until `nextPoll` resolves to false; see followLog. */
export const followLeaseLog = (
  settings: LogSettings,
  nextPoll: () => Promise<boolean>,
): AsyncGenerator<readonly LeaseFollowed[], void> =>
  followLog({ ...readingPorts(settings), nextPoll }, placeOf(settings), decodeEvent);
