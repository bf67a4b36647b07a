/**
 * How a unit ended, as the unit's own last hook wrote it down. `systemd-run --wait` is no witness: it returns 0
 * for a unit ended by SIGTERM, SIGHUP, SIGINT or `systemctl stop`, and 255 for every other signal (measured on
 * 252 and 257); properties read after the unit was collected show a success that never was.
 */
import type { StepResult } from '../rpc/message.ts';

/** INVOCATION_ID SERVICE_RESULT EXIT_CODE EXIT_STATUS; the last two are missing where no process ran. */
export const RECORD_BYTES_MAX = 256;

/** What the hook of a unit wrote. */
export type UnitRecord = { readonly invocationId: string; readonly result: StepResult };

/** Numbers of the signals as Linux has them on the architectures that Node runs on; systemd writes names. */
const SIGNALS: readonly string[] = (
  '0 HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN ' +
  'TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS'
).split(' ');
const ALIASES: Readonly<Record<string, string>> = { POLL: 'IO', IOT: 'ABRT', CLD: 'CHLD', UNUSED: 'SYS' };
const RTMIN = 34;

const parseSignal = (text: string): number | undefined => {
  const name = text.startsWith('SIG') ? text.slice(3) : text;
  const realTime = /^RTMIN(?:\+(\d{1,2}))?$/.exec(name);
  if (realTime !== null) return RTMIN + Number(realTime[1] ?? '0');
  const number = SIGNALS.indexOf(ALIASES[name] ?? name);
  return number > 0 ? number : undefined;
};

const parseStatus = (text: string): number | undefined => {
  if (!/^\d{1,3}$/.test(text)) return undefined;
  const status = Number(text);
  return status <= 255 ? status : undefined;
};

export const LOST: StepResult = { result: 'lost', code: 'none', status: 0, stopped: false };

/**
 * Reads one record; `stopped` says whether the unit was asked to stop while its main process ran. Undefined
 * for anything that is not exactly one record: a guess here would be a wrong exit status.
 */
export const parseUnitRecord = (bytes: Buffer, stopped: boolean): UnitRecord | undefined => {
  const fields = /^([0-9a-f]{32}) ([a-z-]{1,64}) ([a-z]*) ([A-Z0-9+]*)\n$/.exec(bytes.toString('latin1'));
  if (fields === null) return undefined;
  const [, invocationId = '', result = '', code = '', status = ''] = fields;
  if (code === '' && status === '')
    return { invocationId, result: { result, code: 'none', status: 0, stopped } };
  if (code === 'exited') {
    const number = parseStatus(status);
    return number === undefined
      ? undefined
      : { invocationId, result: { result, code, status: number, stopped } };
  }
  if (code === 'killed' || code === 'dumped') {
    const number = parseSignal(status);
    return number === undefined
      ? undefined
      : { invocationId, result: { result, code, status: number, stopped } };
  }
  return undefined;
};

/** Exit codes of a unit's process before it became the step's own (systemd.exec(5)), for messages. */
const SETUP_FAILURES: Readonly<Record<number, string>> = {
  200: 'CHDIR',
  203: 'EXEC',
  209: 'STDOUT',
  210: 'CHROOT',
  214: 'SETSCHEDULER',
  216: 'GROUP',
  217: 'USER',
  218: 'CAPABILITIES',
  219: 'CGROUP',
  220: 'SETSID',
  222: 'STDERR',
  225: 'NETWORK',
  226: 'NAMESPACE',
  227: 'NO_NEW_PRIVILEGES',
  228: 'SECCOMP',
  233: 'RUNTIME_DIRECTORY',
  241: 'NETWORK_NAMESPACE',
  244: 'KEYRING',
};

/** The outcome as one phrase. */
export const describeResult = (result: StepResult): string => {
  if (result.code === 'none') return result.result;
  if (result.code !== 'exited') return `${result.code} by signal ${result.status}`;
  const setup = SETUP_FAILURES[result.status];
  return `exit status ${result.status}${setup === undefined ? '' : ` (systemd: ${setup})`}`;
};
