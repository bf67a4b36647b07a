import { asUnexpected, type XceError } from '../base/errors.ts';
import { endAbruptly } from '../os/abrupt-end.ts';
import { hasStuckCalls } from '../os/log-deadline.ts';
import { mayBeTerminal } from '../os/standard-output.ts';
import { type CommandName, findCommand } from './command-names.ts';
import type { Colours } from './print.ts';
import { finishOutput, ownStandardStreams } from './print.ts';
import { reportError } from './report-error.ts';

/** A command as this program knows it; what it says of itself is for oclif. */
export type CommandClass = { run(argv: readonly string[]): Promise<unknown> };

/** What is said where no command runs: help, the version, and what is wrong with the words. */
export type Talk = {
  show(argv: readonly string[]): Promise<void>;
  /** Undefined for any error that is not about the words. */
  asUsageError(error: unknown, argv: readonly string[]): Promise<XceError | undefined>;
};

/** Commands by their names; each is loaded only where it is run. */
export type CommandTable = Readonly<
  Partial<Record<CommandName, () => Promise<{ readonly default: CommandClass }>>>
>;

/** What only the whole command line has; each is loaded only where it is used. */
export type Extras = {
  readonly talk: () => Promise<Talk>;
  readonly colours: () => Promise<Colours>;
};

/** Colours and spinners are for terminals; whoever wants them elsewhere has to say so. */
const wantsStreams = (): boolean =>
  mayBeTerminal(1) || mayBeTerminal(2) || process.env['FORCE_COLOR'] !== undefined;

/** Of oclif, which looks at nothing else and comes before anything is done. */
const isAboutWords = (error: unknown): boolean => error instanceof Error && 'oclif' in error;

const asXceError = async (error: unknown, argv: readonly string[], extras?: Extras): Promise<XceError> => {
  const talk = isAboutWords(error) ? await extras?.talk() : undefined;
  return (await talk?.asUsageError(error, argv)) ?? asUnexpected(error);
};

const runCommand = async (
  argv: readonly string[],
  commands: CommandTable,
  extras: Extras | undefined,
): Promise<number | undefined> => {
  const found = findCommand(argv);
  const load = found === undefined ? undefined : commands[found.name];
  const hasStreams = wantsStreams();
  if (extras === undefined && (load === undefined || hasStreams)) return undefined;
  if (hasStreams) ownStandardStreams(await extras?.colours());
  try {
    const status =
      load === undefined
        ? await (await extras?.talk())?.show(argv)
        : await (await load()).default.run(found?.rest ?? []);
    await finishOutput();
    return typeof status === 'number' ? status : 0;
  } catch (error) {
    if (extras === undefined && isAboutWords(error)) return undefined;
    return await reportError(await asXceError(error, argv, extras), argv);
  }
};

/**
 * Runs one command line. Returns the exit status: 0, the job's status for `launch`, or the one that the error
 * table gives. Nothing else decides exit statuses. Does not return when a call on the storage is stuck. Undefined
 * without `extras` where the command line needs them; nothing has been read or written then.
 */
export const runCommandLine = async (
  argv: readonly string[],
  commands: CommandTable,
  extras?: Extras,
): Promise<number | undefined> => {
  const status = await runCommand(argv, commands, extras);
  return hasStuckCalls() && status !== undefined ? endAbruptly(status) : status;
};
