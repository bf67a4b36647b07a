/** Names in the log directory and in the run directory of a controller; xce-sandbox-log(5), FILES. */
import { join } from 'node:path';

const STEM = 'leases.wal';

/** Asked for with every look. */
export const epochPath = (directory: string, epoch: number): string => `${directory}/${STEM}.${epoch}`;

export const preparedPath = (directory: string, epoch: number, token: string): string =>
  join(directory, `${STEM}.new.${epoch}.${token.slice(0, 16)}`);

export const tokenPath = (runDirectory: string, epoch: number): string =>
  join(runDirectory, `epoch-${epoch}.token`);

/** What the names of one probe's files begin with. */
export const probeStem = (probe: string): string => `.xce-probe-${probe}.`;

export const probePath = (directory: string, probe: string, name: string): string =>
  join(directory, `${probeStem(probe)}${name}`);

/** The probe that a name belongs to, undefined for any other name. */
export const parseProbeName = (name: string): string | undefined =>
  /^\.xce-probe-([0-9a-f]{16})\.[a-z0-9.-]{1,40}$/.exec(name)?.[1];

const numberIn = (name: string, pattern: RegExp): number | undefined => {
  const digits = pattern.exec(name)?.[1];
  return digits === undefined ? undefined : Number(digits);
};

/** Number of an epoch's file, undefined for any other name. */
export const parseEpochName = (name: string): number | undefined =>
  numberIn(name, /^leases\.wal\.([1-9][0-9]{0,14})$/);

/** Number of the epoch for which a file was prepared, undefined for any other name. */
export const parsePreparedName = (name: string): number | undefined =>
  numberIn(name, /^leases\.wal\.new\.([1-9][0-9]{0,14})\.[0-9a-f]{16}$/);

/** Number of the epoch that a token file is of, undefined for any other name. */
export const parseTokenName = (name: string): number | undefined =>
  numberIn(name, /^epoch-([1-9][0-9]{0,14})\.token$/);

/** Whether a name says that there is, or was, a log; what an unfinished creation left says nothing. */
export const isSignOfLog = (name: string): boolean =>
  (name.startsWith(STEM) && parsePreparedName(name) !== 1) || /\.(bak|torn)$/.test(name);
