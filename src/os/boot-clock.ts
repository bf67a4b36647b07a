import { openSync, readSync } from 'node:fs';
import { XceError } from '../base/errors.ts';
import type { Clock } from './clock.ts';

const UPTIME_BYTES_MAX = 64;
const buffer = Buffer.alloc(UPTIME_BYTES_MAX);
let uptime: number | undefined;

/**
 * A clock whose monotonic time is the time since boot, suspend included, and the same for every process of one
 * boot (proc(5), uptime; resolution 10 ms). Ends of tickets survive a restart of the worker by it.
 */
export const bootClock: Clock = {
  wallMs: () => Date.now(),
  monotonicMs: () => {
    // The kernel makes the text anew for each read from its start.
    uptime ??= openSync('/proc/uptime', 'r');
    const length = readSync(uptime, buffer, 0, UPTIME_BYTES_MAX, 0);
    const match = /^(\d+)\.(\d\d) /.exec(buffer.toString('latin1', 0, length));
    if (match === null) throw new XceError('os', '/proc/uptime cannot be read');
    return Number(match[1]) * 1000 + Number(match[2]) * 10;
  },
};
