import { fileURLToPath } from 'node:url';
import { Config, Errors, run, settings } from '@oclif/core';
import { asUnexpected, type XceError } from '../base/errors.ts';
import { endAbruptly } from '../os/abrupt-end.ts';
import { hasStuckCalls } from '../os/log-deadline.ts';
import { terminalColours } from './colours.ts';
import { finishOutput, ownStandardStreams } from './print.ts';
import { reportError } from './report-error.ts';
import { toUsageError } from './usage-error.ts';

/** oclif runs code that it finds below HOME, XDG_DATA_HOME and other variables, unless it is told not to. */
const NO_PLUGINS = { userPlugins: false, devPlugins: false };

const asXceError = async (error: unknown, argv: readonly string[], root: string): Promise<XceError> => {
  if (error instanceof Errors.CLIError && !(error instanceof Errors.ModuleLoadError)) {
    return toUsageError(error, argv, await Config.load({ root, ...NO_PLUGINS }));
  }
  return asUnexpected(error);
};

const runCommand = async (argv: readonly string[], rootUrl: URL): Promise<number> => {
  settings.enableAutoTranspile = false;
  ownStandardStreams(terminalColours());
  const root = fileURLToPath(rootUrl);
  try {
    const status: unknown = await run([...argv], { root, ...NO_PLUGINS });
    await finishOutput();
    return typeof status === 'number' ? status : 0;
  } catch (error) {
    if (error instanceof Errors.ExitError) return error.oclif.exit ?? 0;
    return await reportError(await asXceError(error, argv, root), argv);
  }
};

/**
 * Runs one command line. Returns the exit status: 0, the job's status for `launch`, or the one that the error
 * table gives. Nothing else decides exit statuses. Does not return when a call on the storage is stuck.
 */
export const main = async (argv: readonly string[], rootUrl: URL): Promise<number> => {
  const status = await runCommand(argv, rootUrl);
  return hasStuckCalls() ? endAbruptly(status) : status;
};
