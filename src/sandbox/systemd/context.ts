import type { LeaseNumber } from '../../base/ids.ts';
import type { Settings } from '../../config/settings.ts';
import { type BoxPaths, boxPaths } from '../box.ts';
import { type SandboxKey, type SandboxNames, sandboxNames } from '../names.ts';
import type { Systemd } from './systemd1.ts';

/** What the parts of the backend share. */
export type Context = {
  readonly settings: Settings;
  readonly systemd: Systemd;
  /** Steps of this process that have not been settled yet, by lease: their units are still held. */
  readonly unsettled: Map<LeaseNumber, Set<Promise<unknown>>>;
};

/** What is needed to address a sandbox. */
export type Place = { readonly names: SandboxNames; readonly box: BoxPaths };

export const placeOf = (context: Context, key: SandboxKey): Place => ({
  names: sandboxNames(key),
  box: boxPaths(context.settings.worker.runDirectory, key.lease),
});
