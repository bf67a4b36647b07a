/** The few things that the backend asks of systemd, each by one child with a fixed argument list. */
import { XceError } from '../../base/errors.ts';
import { escapeBytes } from '../../base/escape.ts';
import { type ChildResult, runChild } from '../../os/spawn.ts';

const SYSTEMCTL = '/usr/bin/systemctl';
export const SYSTEMD_RUN = '/usr/bin/systemd-run';
const BUSCTL = '/usr/bin/busctl';
const CALL_TIMEOUT_MS = 60_000;

/** The properties of a unit that decide whether it is the one we made. */
export type UnitState = {
  readonly loadState: string;
  readonly activeState: string;
  readonly invocationId: string;
  /** The uid that systemd really uses; undefined while there is none. */
  readonly uid: number | undefined;
  readonly gid: number | undefined;
};

export type ListedUnit = {
  readonly name: string;
  readonly load: string;
  readonly active: string;
  readonly sub: string;
};

const complaint = (result: ChildResult): string => {
  if (result.spawnErrno !== undefined) return `cannot be started: ${result.spawnErrno}`;
  if (result.timedOut) return 'gave no answer in time';
  const text = escapeBytes(result.stderr.subarray(0, 600)).replaceAll('\\n', ' ').trim();
  return text === '' ? `failed (${result.exitCode ?? result.signal ?? 'no status'})` : text;
};

const call = async (file: string, argv: readonly string[], timeoutMs = CALL_TIMEOUT_MS): Promise<string> => {
  const result = await runChild(file, argv, { timeoutMs });
  if (result.exitCode !== 0) throw new XceError('systemd', `${argv[0] ?? file}: ${complaint(result)}`);
  if (result.truncated) throw new XceError('systemd', `${argv[0] ?? file}: the answer is too long`);
  return result.stdout.toString('utf8');
};

/** The number in the first line of `systemctl --version`. Throws XceError 'systemd'. */
export const readSystemdVersion = async (): Promise<number> => {
  const number = /^systemd (\d+)/.exec(await call(SYSTEMCTL, ['--version']))?.[1];
  if (number === undefined) throw new XceError('systemd', 'systemctl --version names no version');
  return Number(number);
};

const parseId = (text: string | undefined): number | undefined =>
  text !== undefined && /^\d{1,10}$/.test(text) ? Number(text) : undefined;

/** State of one unit; a name that systemd does not know has loadState 'not-found'. Throws XceError 'systemd'. */
export const showUnit = async (unit: string): Promise<UnitState> => {
  const text = await call(SYSTEMCTL, [
    'show',
    '--property=LoadState,ActiveState,InvocationID,UID,GID',
    '--',
    unit,
  ]);
  const values = new Map(
    text.split('\n').map((line) => {
      const at = line.indexOf('=');
      return [line.slice(0, at), line.slice(at + 1)] as const;
    }),
  );
  return {
    loadState: values.get('LoadState') ?? '',
    activeState: values.get('ActiveState') ?? '',
    invocationId: values.get('InvocationID') ?? '',
    uid: parseId(values.get('UID')),
    gid: parseId(values.get('GID')),
  };
};

/** All loaded units whose names match a pattern, in whatever state. Throws XceError 'systemd'. */
export const listUnits = async (pattern: string): Promise<readonly ListedUnit[]> => {
  const text = await call(SYSTEMCTL, [
    'list-units',
    '--all',
    '--full',
    '--plain',
    '--no-legend',
    '--no-pager',
    '--',
    pattern,
  ]);
  return text
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .flatMap(([name, load, active, sub]) =>
      name === undefined || name === ''
        ? []
        : [{ name, load: load ?? '', active: active ?? '', sub: sub ?? '' }],
    );
};

/** Stops units and waits until they are; ones that are not loaded are fine. Throws XceError 'systemd'. */
export const stopUnits = async (units: readonly string[], timeoutMs: number): Promise<void> => {
  if (units.length === 0) return;
  const result = await runChild(SYSTEMCTL, ['stop', '--', ...units], { timeoutMs });
  // 5: one of the units was not loaded; the others were stopped all the same.
  if (result.exitCode === 0 || result.exitCode === 5) return;
  throw new XceError('systemd', `stop: ${complaint(result)}`);
};

/** Forgets failures of units whose names match. Throws XceError 'systemd'. */
export const resetFailed = async (pattern: string): Promise<void> => {
  await call(SYSTEMCTL, ['reset-failed', '--', pattern]);
};

export const reloadManager = async (): Promise<void> => {
  await call(SYSTEMCTL, ['daemon-reload']);
};

/** Sends a signal to the main process of a unit. False when there is no such unit or process any more. */
export const signalMain = async (unit: string, signal: number): Promise<boolean> => {
  const result = await runChild(SYSTEMCTL, ['kill', '--kill-whom=main', `--signal=${signal}`, '--', unit], {
    timeoutMs: CALL_TIMEOUT_MS,
  });
  return result.exitCode === 0;
};

export const startTransient = async (argv: readonly string[]): Promise<void> => {
  await call(SYSTEMD_RUN, argv);
};

export const callBus = async (argv: readonly string[]): Promise<void> => {
  await call(BUSCTL, argv);
};

/** Starts units and waits until they are active. Throws XceError 'systemd'. */
export const startUnits = async (units: readonly string[]): Promise<void> => {
  await call(SYSTEMCTL, ['start', '--', ...units]);
};
