/** To make a name seen: xce-sandbox-log(5), PROTOCOL. */
import { XceError } from '../base/errors.ts';
import type { LogFiles } from '../os/log-files.ts';
import { unlinkIfThere } from './failure.ts';

export type SettlePorts = {
  readonly files: LogFiles;
  wait(milliseconds: number): Promise<void>;
};

const WAIT_MS_MAX = 64;
/** A storage whose time does not move while it is changed for so long has none to go by. */
const WAITED_MS_MAX = 10_000;

/**
 * Changes a directory until its time of change is not the one it has now. A client that asks whether a directory has
 * changed is answered with that time (NFS version 3, and 4 on a server whose file system counts no changes), and the
 * time moves in ticks of the server's clock. What was made in the tick in which the client listed the directory stays
 * hidden from it until another change, however often it lists again: seen on NFS 3 in 8 of 60 tries.
 *
 * `scratch` is a name in the directory that is the caller's own; it is removed. Throws the system's error, and
 * 'storage-unfit' where the time does not move.
 */
export const settleNames = async (
  { files, wait }: SettlePorts,
  directory: string,
  scratch: string,
): Promise<void> => {
  const before = await files.changedAt(directory);
  let waitMs = 1;
  for (let waitedMs = 0; ; waitedMs += waitMs) {
    await unlinkIfThere(files, scratch);
    if ((await files.changedAt(directory)) !== before) return;
    if (waitedMs > WAITED_MS_MAX) {
      throw new XceError('storage-unfit', `changes of names in ${directory} do not move its time of change`, {
        at: directory,
      });
    }
    waitMs = Math.min(2 * waitMs, WAIT_MS_MAX);
    await wait(waitMs);
    await (await files.open(scratch, 'create')).close();
  }
};
