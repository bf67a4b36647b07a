import { XceError } from '../base/errors.ts';
import { escapeBytes } from '../base/escape.ts';
import { systemClock } from '../os/clock.ts';
import { mountOf } from '../os/mounts.ts';
import { pinnedInodes, pinSlash } from '../os/pinned.ts';
import { listProcessIds, readProcessCommand, readProcessStatus } from '../os/processes.ts';
import { describeStatus, processHasId } from '../sandbox/traces.ts';
import type { LiveProcess, NormalisePorts } from './ports.ts';

/** A process that forks all the time can be ahead of one look at the list. */
const LOOKS = 2;

/**
 * Processes of this host that have the uid as any of their uids, gids or groups. Zombies are not among them: they
 * cannot act any more. Throws XceError 'os' when a process does not show its uids.
 */
export const processesOf = (uid: number): readonly LiveProcess[] => {
  const found = new Map<number, LiveProcess>();
  for (let look = 0; look < LOOKS; look += 1) {
    for (const pid of listProcessIds()) {
      const status = readProcessStatus(pid);
      if (status === undefined) continue;
      const has = processHasId(status, uid);
      if (has === undefined) throw new XceError('os', `process ${pid} does not show its uids`);
      if (!has || ['Z', 'X'].includes(describeStatus(status).state)) continue;
      const command = escapeBytes(readProcessCommand(pid)).replaceAll('\\x00', ' ').trim();
      found.set(pid, { pid, command });
    }
  }
  return [...found.values()];
};

/** This machine. */
export const machinePorts: NormalisePorts = {
  pins: pinnedInodes,
  pinSlash,
  mountOf,
  processesOf,
  clock: systemClock,
};
