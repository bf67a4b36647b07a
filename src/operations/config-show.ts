import type { LoadedConfig } from '../config/load.ts';
import { openConfig } from './open-config.ts';

export type ConfigShown = Pick<LoadedConfig, 'path' | 'origins'>;

/** Every effective value as it would stand in the file, and where it comes from. */
export const showConfig = (flag: string | undefined): ConfigShown => {
  const { path, origins } = openConfig(flag);
  return { path, origins };
};
