/** Which leases have left anything by their name on this host, whoever made it and whenever. */
import { type LeaseNumber, parseLeaseNumber } from '../../base/ids.ts';
import { listNames } from '../../os/root-files.ts';
import { boxesDirectory } from '../box.ts';
import { namePrefix } from '../names.ts';
import type { Context } from './context.ts';
import { USERDB_DIRECTORY } from './own-record.ts';
import { listTransientFiles } from './sandbox.ts';

/**
 * Names of leases are told apart by what stands between the name of the instance and the next dot; a user name that
 * is too long to hold the number tells nothing, and the box beside it does.
 */
export const listLeases = async ({ settings, systemd }: Context): Promise<ReadonlySet<LeaseNumber>> => {
  const prefix = namePrefix(settings.cluster.instance);
  const units = await systemd.listUnits(`${prefix}*`);
  const named = [
    ...units.map(({ name }) => name),
    ...listTransientFiles(prefix),
    ...listNames(USERDB_DIRECTORY).filter((name) => name.endsWith('.user')),
  ].flatMap((name) => (name.startsWith(prefix) ? [name.slice(prefix.length).split('.', 1)[0] ?? ''] : []));
  const boxes = listNames(boxesDirectory(settings.worker.runDirectory));
  return new Set([...named, ...boxes].flatMap((text) => parseLeaseNumber(text) ?? []));
};
