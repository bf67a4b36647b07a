import { fileURLToPath } from 'node:url';
import { Errors, run, settings } from '@oclif/core';
import { XceError } from '../base/errors.ts';
import { errorDocument, formatError, writeOut, writeTalk } from './print.ts';

/** `launch` gives the job's own status to its caller; every failure of the suite itself is this one there. */
const LAUNCH_FAILURE_STATUS = 125;

/** Whether --json stands among the suite's own arguments (not among those of a job's command). */
const wantsJson = (argv: readonly string[]): boolean => {
  const end = argv.indexOf('--');
  return (end === -1 ? argv : argv.slice(0, end)).includes('--json');
};

const asXceError = (error: unknown): XceError => {
  if (error instanceof XceError) return error;
  if (error instanceof Errors.CLIError) {
    const message = error.message.replace(/\s*See more help with --help\s*$/, '').trim();
    return new XceError('usage', message, { next: 'xce-sandbox help', cause: error });
  }
  const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
  return new XceError('bug', `unexpected failure: ${text}`, { cause: error });
};

/**
 * Runs one command line. Returns the exit status: 0, the job's status for `launch`, or the one that the error
 * table gives. Nothing else decides exit statuses.
 */
export const main = async (argv: readonly string[], root: URL): Promise<number> => {
  settings.enableAutoTranspile = false;
  try {
    const status: unknown = await run([...argv], { root: fileURLToPath(root) });
    return typeof status === 'number' ? status : 0;
  } catch (error) {
    if (error instanceof Errors.ExitError) return error.oclif.exit ?? 0;
    const known = asXceError(error);
    const status = argv[0] === 'launch' ? LAUNCH_FAILURE_STATUS : known.exitStatus;
    writeTalk(formatError(known));
    if (wantsJson(argv) && known.code !== 'output') {
      await writeOut(`${JSON.stringify(errorDocument(known, status), null, 2)}\n`).catch(
        (failure: unknown) => {
          writeTalk(formatError(asXceError(failure)));
        },
      );
    }
    return status;
  }
};
