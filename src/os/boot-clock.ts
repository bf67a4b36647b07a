import { openSync, readSync } from 'node:fs';
import { XceError } from '../base/errors.ts';
import type { Clock } from './clock.ts';

export type BootClockPorts = {
  /** Milliseconds since boot, suspend included. Costs a system call and the reading of a text. */
  readUptimeMs(): number;
  wallMs(): number;
  /** Milliseconds since any moment, which stand still while the machine is suspended. */
  runningMs(): number;
};

/** Both clocks that cost nothing, by their whole milliseconds, differ by less when nothing was suspended or set. */
const APART_MS = 2;
/** After so long the time since boot is read again, whatever the clocks say. */
const READ_AGAIN_MS = 100;

/**
 * Between two readings of the time since boot the running time goes on from it. A suspend moves the wall clock and not
 * the running time, and the next call reads again; only one of a machine whose wall clock was set back by as much in
 * the same moment stays hidden for READ_AGAIN_MS.
 */
export const bootClockOf = ({ readUptimeMs, wallMs, runningMs }: BootClockPorts): Clock => {
  let readAtMs = Number.NEGATIVE_INFINITY;
  /** Wall clock minus running time when it was read. */
  let apartMs = 0;
  /**
   * Time since boot minus running time. The text is rounded down, and read before the running time, so the greatest is
   * nearest; a suspend adds to it.
   */
  let suspendedMs = Number.NEGATIVE_INFINITY;
  return {
    wallMs,
    monotonicMs: () => {
      const askedMs = runningMs();
      const nowApartMs = wallMs() - askedMs;
      if (Math.abs(nowApartMs - apartMs) < APART_MS && askedMs - readAtMs <= READ_AGAIN_MS) {
        return Math.floor(askedMs + suspendedMs);
      }
      const uptimeMs = readUptimeMs();
      // Behind the time since boot, never before it: where the process is held up in between, the difference comes out
      // too small, and the next reading mends that. One too great would stay, and end every lease and ticket early.
      const nowMs = runningMs();
      suspendedMs = Math.max(suspendedMs, uptimeMs - nowMs);
      readAtMs = askedMs;
      apartMs = nowApartMs;
      return Math.floor(nowMs + suspendedMs);
    },
  };
};

const UPTIME_BYTES_MAX = 64;
const buffer = Buffer.alloc(UPTIME_BYTES_MAX);
let uptime: number | undefined;

const readUptimeMs = (): number => {
  // The kernel makes the text anew for each read from its start.
  uptime ??= openSync('/proc/uptime', 'r');
  const length = readSync(uptime, buffer, 0, UPTIME_BYTES_MAX, 0);
  const match = /^(\d+)\.(\d\d) /.exec(buffer.toString('latin1', 0, length));
  if (match === null) throw new XceError('os', '/proc/uptime cannot be read');
  return Number(match[1]) * 1000 + Number(match[2]) * 10;
};

/**
 * A clock whose monotonic time is the time since boot, suspend included, and the same for every process of one
 * boot (proc(5), uptime; within 10 ms). Ends of tickets survive a restart of the worker by it.
 */
/** See BootClockPorts. Not performance.now(), which takes milliseconds to load. */
export const runningMs = (): number => {
  const [seconds, nanoseconds] = process.hrtime();
  return seconds * 1000 + nanoseconds / 1e6;
};

export const bootClock: Clock = bootClockOf({ readUptimeMs, wallMs: () => Date.now(), runningMs });
