/** To look: xce-sandbox-log(5), PROTOCOL. */
import { errnoOf } from '../base/errors.ts';
import type { LogFiles } from '../os/log-files.ts';
import { storageFailure } from './failure.ts';

/**
 * Whether a name is there: `isListed` lists its directory anew, then the name is opened. Either may show it, and
 * an error is not an answer. Throws 'log-io'.
 */
export const lookFor = async (
  files: LogFiles,
  path: string,
  isListed: () => Promise<boolean>,
): Promise<boolean> => {
  if (await isListed()) return true;
  try {
    const file = await files.open(path, 'read');
    await file.close();
    return true;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return false;
    throw storageFailure('look for', path, error);
  }
};
