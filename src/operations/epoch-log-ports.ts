/** What an EpochLog of this machine is made of; how its storage is probed is for the caller. */
import { join } from 'node:path';
import { LIMITS } from '../base/limits.ts';
import type { Settings } from '../config/settings.ts';
import type { LeaseEvent } from '../lease/event.ts';
import { bootClock } from '../os/boot-clock.ts';
import { readBootId } from '../os/clock.ts';
import { judgeClient } from '../os/gluster-client.ts';
import { answerWithin, filesWithin, hostFilesWithin } from '../os/log-deadline.ts';
import { hostFiles, type LogFiles, logFiles } from '../os/log-files.ts';
import { placeOf } from '../os/mount-table.ts';
import { randomBytes } from '../os/random.ts';
import { pause } from '../os/watch.ts';
import { EpochLog } from '../wal/epoch-log.ts';
import { HostRecordFile } from '../wal/host-record.ts';
import type { Machine, View } from '../wal/machine.ts';
import { type ControllerStorage, createStorage } from '../wal/probe.ts';

export type LogSettings = Pick<Settings, 'cluster' | 'lease' | 'worker'>;

/** Files of the log, which may lie on this host's own disk. No call on them keeps a command for ever. */
export const filesOf = ({ lease }: Pick<LogSettings, 'lease'>): LogFiles =>
  lease.storage === 'local'
    ? hostFilesWithin(lease.storageTimeoutMs, hostFiles)
    : filesWithin(lease.storageTimeoutMs, logFiles);

/** The storage of the log as this host sees it. */
export const storageWith = (
  settings: LogSettings,
  startSecond: Parameters<typeof createStorage>[0]['startSecond'],
): ControllerStorage => {
  const { cluster, lease, worker } = settings;
  return createStorage(
    {
      files: filesOf(settings),
      mountOf: placeOf,
      judgeClient: (mount) =>
        answerWithin(lease.storageTimeoutMs, `read of ${mount.path}`, () => judgeClient(mount)),
      randomBytes,
      wait: pause,
      wallMs: bootClock.wallMs,
      startSecond,
      record: new HostRecordFile(
        hostFiles,
        join(worker.stateDirectory, 'controller', 'storage.json'),
        { cluster: cluster.name, instance: cluster.instance },
        process.pid,
      ),
    },
    lease.storage,
  );
};

export const openLog = <State>(
  settings: LogSettings,
  storage: ControllerStorage,
  machine: Machine<State, LeaseEvent> | View<State, LeaseEvent>,
): EpochLog<State, LeaseEvent> => {
  const { cluster, lease, worker } = settings;
  return new EpochLog(
    {
      files: filesOf(settings),
      hostFiles,
      clock: bootClock,
      bootId: readBootId(),
      processId: process.pid,
      randomBytes,
      wait: pause,
      storage,
    },
    {
      directory: lease.directory,
      runDirectory: join(worker.runDirectory, 'controller'),
      memoryPath: memoryPathOf(settings),
      cluster: cluster.name,
      instance: cluster.instance,
      host: worker.node,
      isLocal: lease.storage === 'local',
      lockTimeoutMs: lease.lockTimeoutMs,
      holdTimeoutMs: lease.lockTimeoutMs,
      tailBytesMin: LIMITS.logTailBytesMin,
    },
    machine,
  );
};

export const memoryPathOf = ({ worker }: LogSettings): string =>
  join(worker.stateDirectory, 'controller', 'seen.json');
