import { readFileSync } from 'node:fs';
import { errnoOf, XceError } from '../base/errors.ts';
import { readDeclaredRanges } from './declared-ranges.ts';
import { readTrustedFile } from './trusted-file.ts';

/**
 * What loadConfig needs of this host. Callers other than root see no declared ranges: some of the files are
 * secret, and only root (a controller that allocates, a worker that prepares) can hand out a uid.
 */
export const systemConfigPorts = {
  readTrusted: readTrustedFile,
  hostName: () => readFileSync('/proc/sys/kernel/hostname', 'utf8').trimEnd(),
  declaredRanges: () => (process.geteuid?.() === 0 ? readDeclaredRanges() : []),
};

/** Throws XceError 'os' where the directory of this process is gone. */
export const workingDirectory = (): string => {
  try {
    return process.cwd();
  } catch (error) {
    throw new XceError('os', `the working directory is gone: ${errnoOf(error) ?? String(error)}`, {
      next: 'give --config an absolute path',
      cause: error,
    });
  }
};
