import { XceError } from '../base/errors.ts';
import { chooseConfigPath, type LoadedConfig, loadConfig } from '../config/load.ts';
import { systemConfigPorts, workingDirectory } from '../os/config-ports.ts';

const isRoot = (): boolean => process.geteuid?.() === 0;

export const requireRoot = (): void => {
  if (!isRoot()) {
    throw new XceError('not-root', 'only root may do this', {
      next: 'run the command as root on a controller',
    });
  }
};

/** Reads the configuration that `--config`, the environment or the system names. */
export const openConfig = (flag: string | undefined): LoadedConfig =>
  loadConfig(
    chooseConfigPath({
      flag,
      variable: process.env['XCE_SANDBOX_CONFIG'],
      isRoot: isRoot(),
      workingDirectory,
    }),
    systemConfigPorts,
  );
