/**
 * How a step ended, from systemd's own facts about a unit that was held in memory until they were read. Other
 * witnesses lie: `systemd-run --wait` returns 0 for a unit ended by SIGTERM, SIGHUP, SIGINT or a stop, and 255 for
 * every other signal; properties read after a unit was collected show a success that never was (252 and 257).
 */
import { OUT_OF_MEMORY, type StepResult } from '../rpc/message.ts';

/** What systemd says of a service whose main process has ended. Times are microseconds of one clock. */
export type ServiceEnd = {
  readonly invocationId: string;
  readonly result: string;
  /** si_code of waitid(2): 1 exited, 2 killed, 3 dumped; 0 while no process has ended. */
  readonly code: number;
  readonly status: number;
  readonly mainExitUs: bigint;
  /** When the unit left its active state; 0 if it never had one. */
  readonly activeExitUs: bigint;
};

const CODES = ['none', 'exited', 'killed', 'dumped'] as const;

export const LOST: StepResult = { result: 'lost', code: 'none', status: 0, stopped: false };

/**
 * The result of a step. A unit that leaves its active state before its main process ends has been stopped; one
 * that leaves it because the process ended does so afterwards. Facts that are none count as lost: a guess here
 * would be a wrong exit status.
 */
export const toStepResult = (end: ServiceEnd): StepResult => {
  const code = CODES[end.code];
  if (code === undefined || !/^[a-z-]{1,64}$/.test(end.result)) return LOST;
  // systemd stops a unit that the kernel took a process from (OOMPolicy=); that is the end it came to by itself.
  const stopped = end.result !== OUT_OF_MEMORY && end.activeExitUs > 0n && end.activeExitUs < end.mainExitUs;
  if (code === 'none')
    return end.result === 'success' ? LOST : { result: end.result, code, status: 0, stopped };
  if (end.status < 0 || end.status > 255 || end.mainExitUs <= 0n) return LOST;
  return { result: end.result, code, status: end.status, stopped };
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

/** Why a unit did not start, as one phrase. */
export const describeEnd = (end: ServiceEnd): string => {
  if (end.code === 0) return end.result;
  if (end.code !== 1) return `killed by signal ${end.status}`;
  const setup = SETUP_FAILURES[end.status];
  return `exit status ${end.status}${setup === undefined ? '' : ` (${setup})`}`;
};
