/** The kernel's list of processes (proc(5)), as root sees it: every process of this pid namespace and below. */
import { readdirSync, readFileSync } from 'node:fs';
import { errnoOf, XceError } from '../base/errors.ts';

/** Kernel threads and processes together; a table beyond that is a machine in trouble. */
const PROCESSES_MAX = 1 << 22;
const COMMAND_BYTES_MAX = 4096;

/** Ids of all processes at about this moment. Throws XceError 'os'. */
export const listProcessIds = (): readonly number[] => {
  let names: string[];
  try {
    names = readdirSync('/proc');
  } catch (error) {
    throw new XceError('os', `cannot list /proc: ${errnoOf(error) ?? String(error)}`, { cause: error });
  }
  const ids = names.filter((name) => /^[1-9][0-9]{0,9}$/.test(name)).map(Number);
  if (ids.length > PROCESSES_MAX) throw new XceError('os', `there are more than ${PROCESSES_MAX} processes`);
  return ids;
};

const readOf = (pid: number, name: string): Buffer | undefined => {
  try {
    return readFileSync(`/proc/${pid}/${name}`);
  } catch (error) {
    const errno = errnoOf(error);
    // The process ended between the list and the look.
    if (errno === 'ENOENT' || errno === 'ESRCH') return undefined;
    throw new XceError('os', `cannot read /proc/${pid}/${name}: ${errno ?? String(error)}`, { cause: error });
  }
};

/** The text of /proc/PID/status, or undefined when there is no such process any more. Throws XceError 'os'. */
export const readProcessStatus = (pid: number): string | undefined =>
  readOf(pid, 'status')?.toString('latin1');

/** The arguments of a process as bytes, NUL between them; empty for one without (a zombie). */
export const readProcessCommand = (pid: number): Buffer =>
  (readOf(pid, 'cmdline') ?? Buffer.alloc(0)).subarray(0, COMMAND_BYTES_MAX);
