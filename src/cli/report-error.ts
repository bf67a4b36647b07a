import { XceError } from '../base/errors.ts';
import { wantsHelp } from './command-names.ts';
import { errorDocument, formatError, isReaderGone, writeOut, writeTalk } from './print.ts';

/** `launch` gives the job's own status to its caller; every failure of the suite itself is this one there. */
const LAUNCH_FAILURE_STATUS = 125;

/** Whether --json stands among the suite's own arguments (not among those of a job's command). */
const wantsJson = (argv: readonly string[]): boolean => {
  const end = argv.indexOf('--');
  return (end === -1 ? argv : argv.slice(0, end)).includes('--json');
};

/** Commands whose output is JSON lines, and so their errors. */
const LINE_COMMANDS: readonly string[] = ['lease dump', 'lease watch'];
const writesLines = (argv: readonly string[]): boolean => LINE_COMMANDS.includes(argv.slice(0, 2).join(' '));

/** How long a failed command waits for its error to be read. */
const ERROR_DELIVERY_MS = 2000;

/** What SIGPIPE makes of a program whose reader has gone. */
const READER_GONE_STATUS = 141;

/** A command that has no end of its own is ended by whoever has read enough. */
const isEndless = (argv: readonly string[]): boolean => argv.slice(0, 2).join(' ') === 'lease watch';

/** Shows the error and returns the exit status that it means. */
export const reportError = async (error: XceError, argv: readonly string[]): Promise<number> => {
  const isLaunch = argv[0] === 'launch' && !wantsHelp(argv);
  if (isReaderGone(error) && !isLaunch) return isEndless(argv) ? 0 : READER_GONE_STATUS;
  const status = isLaunch ? LAUNCH_FAILURE_STATUS : error.exitStatus;
  writeTalk(formatError(error));
  if (wantsJson(argv) && error.code !== 'output') {
    const document = errorDocument(error, status);
    // A launch writes one event a line.
    const text = isLaunch
      ? JSON.stringify({ event: 'error', ...document })
      : JSON.stringify(document, null, writesLines(argv) ? 0 : 2);
    const written = writeOut(`${text}\n`).catch((failure: unknown) => {
      if (failure instanceof XceError) writeTalk(formatError(failure));
    });
    // A reader that has stalled must not keep a command that has failed from ending.
    await Promise.race([written, new Promise((resolve) => setTimeout(resolve, ERROR_DELIVERY_MS))]);
  }
  return status;
};
