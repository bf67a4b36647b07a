import { randomBytes } from 'node:crypto';
import { dirname, join } from 'node:path';
import { LIMITS } from '../../src/base/limits.ts';
import { readBootId, systemClock } from '../../src/os/clock.ts';
import { judgeClient } from '../../src/os/gluster-client.ts';
import { type LogFiles, logFiles } from '../../src/os/log-files.ts';
import { mountOf } from '../../src/os/mounts.ts';
import { EpochLog } from '../../src/wal/epoch-log.ts';
import { HostRecordFile } from '../../src/wal/host-record.ts';
import type { Machine } from '../../src/wal/machine.ts';
import { createStorage } from '../../src/wal/probe.ts';
import type { StoragePort } from '../../src/wal/storage.ts';
import { startSecond } from '../support/probe-process.ts';
import { type GrantEvent, type Grants, grantMachine } from './world.ts';

/** Where one controller has its parts, as the configuration names them. */
export type RealPlace = {
  readonly host: string;
  readonly storage: 'local' | 'shared';
  /** The log itself, on that storage. */
  readonly directory: string;
  /** Both on a disk of the host. */
  readonly runDirectory: string;
  readonly memoryPath: string;
  /** Events after which the owner goes on in a new file; default: what a real log has. */
  readonly tailBytesMin?: number;
};

/** A log below one directory of this machine's disk. */
export const localPlace = (root: string, host: string): RealPlace => ({
  host,
  storage: 'local',
  directory: join(root, 'log'),
  runDirectory: join(root, 'run', host, 'controller'),
  memoryPath: join(root, 'var', host, 'seen.json'),
});

export const IDENTITY = { cluster: 'c', instance: 'main' } as const;

const wait = (milliseconds: number): Promise<void> =>
  new Promise((resolve) => setTimeout(resolve, milliseconds));

const openStorage = (storage: RealPlace['storage'], memoryPath: string): StoragePort => {
  const recordPath = join(dirname(memoryPath), 'storage.json');
  const record = new HostRecordFile(logFiles, recordPath, IDENTITY, process.pid);
  const { wallMs } = systemClock;
  const ports = { files: logFiles, mountOf, judgeClient, randomBytes, wait, wallMs, startSecond, record };
  return createStorage(ports, storage);
};

/** A log of that place, as a process of its host opens it. */
export const openLogAt = <State, Event>(
  { storage, tailBytesMin = LIMITS.logTailBytesMin, ...place }: RealPlace,
  machine: Machine<State, Event>,
  timeouts = { lockTimeoutMs: 30_000, holdTimeoutMs: 30_000 },
  port: StoragePort = openStorage(storage, place.memoryPath),
  files: LogFiles = logFiles,
  hostFiles = files,
): EpochLog<State, Event> =>
  new EpochLog(
    {
      files,
      hostFiles,
      clock: systemClock,
      bootId: readBootId(),
      processId: process.pid,
      randomBytes,
      wait,
      storage: port,
    },
    { ...place, ...IDENTITY, ...timeouts, tailBytesMin },
    machine,
  );

/** The log of grants. */
export const openRealLog = (place: RealPlace, port?: StoragePort): EpochLog<Grants, GrantEvent> =>
  openLogAt(place, grantMachine, undefined, port);
