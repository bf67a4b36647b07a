/** Finds, reads and decodes the configuration of this host. */
import { posix } from 'node:path';
import { XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import type { DeclaredRange } from '../os/declared-ranges.ts';
import { type DecodedConfig, decodeConfig } from './decode.ts';
import { requireFreePool } from './pool-ranges.ts';

const DEFAULT_CONFIG_PATH = '/etc/xce-sandbox/xce-sandbox.ini';

export type ConfigPorts = {
  /** Reads a file that only root can have written; throws 'io', 'too-large' or 'config-unsafe'. */
  readTrusted(path: string, bytesMax: number): Buffer;
  hostName(): string;
  /** Throws 'declared-ranges' for a file that cannot be understood. */
  declaredRanges(): readonly DeclaredRange[];
};

/**
 * The path of the configuration: `--config`, else XCE_SANDBOX_CONFIG, else the system's. Root ignores the
 * variable, because a batch system may pass a user's environment to root's hooks (CVE-2017-15566).
 */
export const chooseConfigPath = (from: {
  readonly flag: string | undefined;
  readonly variable: string | undefined;
  readonly isRoot: boolean;
  /** Asked only for a relative path: a hook may run in a directory that is gone. */
  readonly workingDirectory: () => string;
}): string => {
  const variable = from.isRoot || from.variable === '' ? undefined : from.variable;
  const path = from.flag ?? variable ?? DEFAULT_CONFIG_PATH;
  return posix.isAbsolute(path) ? posix.normalize(path) : posix.resolve(from.workingDirectory(), path);
};

export type LoadedConfig = DecodedConfig & { readonly path: string };

/**
 * Reads the configuration, whole or not at all: 'config-missing' or 'config-unsafe' for the file,
 * 'config-syntax' or 'config-value' for what stands in it, 'pool-range' or 'declared-ranges' where the pool is
 * not free on this machine.
 */
export const loadConfig = (path: string, ports: ConfigPorts): LoadedConfig => {
  const decoded = decodeConfig(readFile(path, ports), path, ports.hostName());
  requireFreePool(decoded.settings.pool, ports.declaredRanges());
  return { ...decoded, path };
};

const readFile = (path: string, ports: ConfigPorts): Buffer => {
  try {
    return ports.readTrusted(path, LIMITS.configBytesMax);
  } catch (error) {
    if (!(error instanceof XceError) || error.code !== 'io') throw error;
    throw new XceError('config-missing', error.message, {
      at: path,
      unchanged: 'nothing was read or done',
      next: 'begin with share/xce-sandbox.ini.example of the package; man xce-sandbox.ini has every key',
      cause: error,
    });
  }
};
