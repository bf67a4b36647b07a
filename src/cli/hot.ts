/**
 * `lease renew` without the command framework, for hooks that call it often: it is the same operation, the same
 * rendering and the same errors. Only an invocation that is plainly understood is run here. Of any other one, nothing
 * has been read or written when `runHot` returns undefined, and the whole command line (main.ts) is to run it.
 */
import { parseDurationMs } from '../base/duration.ts';
import { asUnexpected } from '../base/errors.ts';
import { parseAttempt, parseJobId, parseLeaseNumber } from '../base/ids.ts';
import { openJobContext } from '../operations/job-context.ts';
import { type LeaseSelection, requireLeaseRef } from '../operations/lease-reference.ts';
import { renewLease } from '../operations/lease-renew.ts';
import { endAbruptly } from '../os/abrupt-end.ts';
import { hasStuckCalls } from '../os/log-deadline.ts';
import { mayBeTerminal } from '../os/standard-output.ts';
import { finishOutput, showResult, writeInPlace, writeTalk } from './print.ts';
import { renderLease } from './render-lease.ts';
import { reportError } from './report-error.ts';

type Words = {
  readonly isJson: boolean;
  /** Flag to value, each given once. */
  readonly values: ReadonlyMap<string, string>;
};

const FLAGS: ReadonlySet<string> = new Set(['--config', '--job', '--attempt', '--lease', '--ttl']);

/** `--flag value`, `--flag=value` and `--json`; undefined for everything else. */
const readWords = (argv: readonly string[]): Words | undefined => {
  const values = new Map<string, string>();
  let isJson = false;
  for (let at = 0; at < argv.length; at += 1) {
    const word = argv[at] ?? '';
    if (word === '--json' && !isJson) {
      isJson = true;
      continue;
    }
    const equals = word.indexOf('=');
    const isJoined = equals !== -1;
    const flag = isJoined ? word.slice(0, equals) : word;
    const value = isJoined ? word.slice(equals + 1) : argv[at + 1];
    if (!isJoined) at += 1;
    if (!FLAGS.has(flag) || values.has(flag)) return undefined;
    if (value === undefined || value === '' || value.startsWith('-')) return undefined;
    values.set(flag, value);
  }
  return { isJson, values };
};

/** Undefined unless exactly one lease is named, in one way. */
const readSelection = ({ values }: Words): LeaseSelection | undefined => {
  const texts = { job: values.get('--job'), attempt: values.get('--attempt'), lease: values.get('--lease') };
  const job = parseJobId(texts.job ?? '');
  const attempt = parseAttempt(texts.attempt ?? '');
  const lease = parseLeaseNumber(texts.lease ?? '');
  const isRead =
    (job === undefined) === (texts.job === undefined) &&
    (attempt === undefined) === (texts.attempt === undefined) &&
    (lease === undefined) === (texts.lease === undefined);
  const isOne = (job === undefined) !== (lease === undefined) && (job !== undefined || attempt === undefined);
  return isRead && isOne ? { job, attempt, lease } : undefined;
};

/** What a terminal shows has colours, which the whole command line knows about. */
const wantsColours = (): boolean =>
  mayBeTerminal(1) || mayBeTerminal(2) || process.env['FORCE_COLOR'] !== undefined;

const renew = async (
  selection: LeaseSelection,
  ttlMs: number | undefined,
  { isJson, values }: Words,
): Promise<void> => {
  const context = openJobContext({
    configFlag: values.get('--config'),
    ref: requireLeaseRef(selection),
    tell: (text) => writeTalk(`xce-sandbox: ${text}\n`),
  });
  try {
    await showResult(isJson, await renewLease(context, { selection, ttlMs }), renderLease);
  } finally {
    await context.close();
  }
};

const statusOf = async (work: () => Promise<void>, argv: readonly string[]): Promise<number> => {
  try {
    await work();
    await finishOutput();
    return 0;
  } catch (error) {
    return await reportError(asUnexpected(error), argv);
  }
};

/** `argv` is what stands behind the name of the program. Returns the exit status, as main.ts does. */
export const runHot = async (argv: readonly string[]): Promise<number | undefined> => {
  const [topic, command, ...rest] = argv;
  const words = topic === 'lease' && command === 'renew' ? readWords(rest) : undefined;
  const selection = words === undefined ? undefined : readSelection(words);
  if (words === undefined || selection === undefined) return undefined;
  const ttl = words.values.get('--ttl');
  const ttlMs = ttl === undefined ? undefined : parseDurationMs(ttl);
  if ((ttl !== undefined && ttlMs === undefined) || wantsColours()) return undefined;
  writeInPlace();
  const status = await statusOf(() => renew(selection, ttlMs, words), argv);
  return hasStuckCalls() ? endAbruptly(status) : status;
};
