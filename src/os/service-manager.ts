/**
 * What a daemon tells its service manager (sd_notify(3)), and how often it wants to hear (sd_watchdog_enabled(3)).
 */
import { sendDatagram } from './datagram.ts';

type Environment = Readonly<Record<string, string | undefined>>;

/** The interval in milliseconds within which the service manager wants to hear of this process, if it does. */
export const readWatchdogMs = (environment: Environment, pid: number): number | undefined => {
  const owner = environment['WATCHDOG_PID'];
  if (owner !== undefined && owner !== String(pid)) return undefined;
  const text = environment['WATCHDOG_USEC'] ?? '';
  if (!/^[1-9]\d{0,15}$/.test(text)) return undefined;
  return Math.max(1, Math.floor(Number(text) / 1000));
};

/** Sends assignments such as `READY=1` to the service manager. Without effect where there is none. Throws XceError 'os'. */
export const notifyServiceManager = (environment: Environment, assignments: readonly string[]): void => {
  const path = environment['NOTIFY_SOCKET'];
  if (path === undefined || path === '') return;
  sendDatagram(path, Buffer.from(`${assignments.join('\n')}\n`));
};
