/**
 * The directories of one sandbox outside of the workspace. All of them have parents that only root may write,
 * because systemd binds them by path: a job that owned the parent could put a link in their place (measured).
 */
import { join } from 'node:path';
import type { LeaseNumber } from '../base/ids.ts';

export type BoxPaths = {
  /** root 0711; inside it is /run/xce, read-only and without the mounts below. */
  readonly box: string;
  /** Socket of the job's agent; made by the worker, 0600 and owned by the uid. A new socket of a restarted
   * worker shows up in running steps, because the directory is bound and not the file. */
  readonly agentSocket: string;
  /** What the sandbox is, and the invocation of its anchor; written last. */
  readonly marker: string;
  /** Arguments of steps on their way in: root 0711, files 0440 root and the gid. */
  readonly inputs: string;
  /** Where /run/xce/home is mounted inside. */
  readonly homeMount: string;
  /** tmpfs with size and inode limit, root 0711. */
  readonly scratch: string;
  readonly tmp: string;
  readonly varTmp: string;
  readonly home: string;
  /** tmpfs with size limit, owned by the uid: /dev/shm inside. */
  readonly shm: string;
};

/** The worker's socket for root on its own node. */
export const localSocket = (runDirectory: string): string => join(runDirectory, 'worker.sock');

/** Holds the box of each lease, by its number. */
export const boxesDirectory = (runDirectory: string): string => join(runDirectory, 'box');

/** `runDirectory` is the run directory of the worker (`[worker] run_directory`). */
export const boxPaths = (runDirectory: string, lease: LeaseNumber): BoxPaths => {
  const box = join(boxesDirectory(runDirectory), String(lease));
  const scratch = join(box, 'scratch');
  return {
    box,
    agentSocket: join(box, 'agent.sock'),
    marker: join(box, 'sandbox.json'),
    inputs: join(box, 'input'),
    homeMount: join(box, 'home'),
    scratch,
    tmp: join(scratch, 'tmp'),
    varTmp: join(scratch, 'var-tmp'),
    home: join(scratch, 'home'),
    shm: join(box, 'shm'),
  };
};
