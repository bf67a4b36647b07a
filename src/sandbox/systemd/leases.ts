/** Which leases have left anything by their name on this host, whoever made it and whenever. */
import { dirname } from 'node:path';
import type { LeaseNumber } from '../../base/ids.ts';
import { listNames } from '../../os/root-files.ts';
import { boxPaths } from '../box.ts';
import type { Context } from './context.ts';
import { USERDB_DIRECTORY } from './own-record.ts';
import { listTransientFiles } from './sandbox.ts';

/** A number as a name has it: one that the log could have given, written in one way. */
const NUMBER = /^[1-9][0-9]{0,15}$/;

const numberOf = (text: string): LeaseNumber | undefined => {
  const number = Number(text);
  return NUMBER.test(text) && Number.isSafeInteger(number) ? (number as LeaseNumber) : undefined;
};

/**
 * Names of leases are told apart by what stands between the name of the instance and the next dot; a user name that
 * is too long to hold the number tells nothing, and the box beside it does.
 */
export const listLeases = async ({ settings, systemd }: Context): Promise<ReadonlySet<LeaseNumber>> => {
  const prefix = `xce-${settings.cluster.instance}-`;
  const units = await systemd.listUnits(`${prefix}*`);
  const named = [
    ...units.map(({ name }) => name),
    ...listTransientFiles(prefix),
    ...listNames(USERDB_DIRECTORY).filter((name) => name.endsWith('.user')),
  ].flatMap((name) => (name.startsWith(prefix) ? [name.slice(prefix.length).split('.', 1)[0] ?? ''] : []));
  const boxes = listNames(dirname(boxPaths(settings.worker.runDirectory, 1 as LeaseNumber).box));
  return new Set([...named, ...boxes].flatMap((text) => numberOf(text) ?? []));
};
