import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { clientQuorum } from '../../src/os/client-quorum.ts';
import { readBootId, systemClock } from '../../src/os/clock.ts';
import { logFiles } from '../../src/os/log-files.ts';
import { mountOf } from '../../src/os/mounts.ts';
import { EpochLog } from '../../src/wal/epoch-log.ts';
import { createStorage } from '../../src/wal/probe.ts';
import { type GrantEvent, type Grants, grantMachine } from './world.ts';

/** The log below a directory of this machine's disk, as a process of `host` opens it. */
export const openRealLog = (root: string, host: string): EpochLog<Grants, GrantEvent> =>
  new EpochLog(
    {
      files: logFiles,
      clock: systemClock,
      bootId: readBootId(),
      processId: process.pid,
      randomBytes,
      wait: (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds)),
      storage: createStorage({ files: logFiles, mountOf, clientQuorum, randomBytes }, 'local'),
    },
    {
      directory: join(root, 'log'),
      runDirectory: join(root, 'run', host, 'controller'),
      memoryPath: join(root, 'var', host, 'seen.json'),
      cluster: 'c',
      instance: 'main',
      host,
      lockTimeoutMs: 30_000,
      holdTimeoutMs: 30_000,
    },
    grantMachine,
  );
