import { readFileSync } from 'node:fs';
import { XceError } from '../base/errors.ts';
import type { Clock } from './clock.ts';

/**
 * A clock whose monotonic time is the time since boot, suspend included, and the same for every process of one
 * boot (proc(5), uptime; resolution 10 ms). Ends of tickets survive a restart of the worker by it.
 */
export const bootClock: Clock = {
  wallMs: () => Date.now(),
  monotonicMs: () => {
    const text = readFileSync('/proc/uptime', 'latin1');
    const match = /^(\d+)\.(\d\d) /.exec(text);
    if (match === null) throw new XceError('os', '/proc/uptime cannot be read');
    return Number(match[1]) * 1000 + Number(match[2]) * 10;
  },
};
