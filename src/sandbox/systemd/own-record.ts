import { join } from 'node:path';
import type { InstanceName, LeaseNumber, Uid } from '../../base/ids.ts';
import { readFileIfThere, readLink } from '../../os/root-files.ts';
import { encodeUserRecord } from '../user-record.ts';

export const USERDB_DIRECTORY = '/run/userdb';
export const RECORD_BYTES_MAX = 4096;

/** Whether this host has the user record that a sandbox of the lease makes, with exactly its text. */
export const hasUserRecord = (lease: {
  readonly instance: InstanceName;
  readonly lease: LeaseNumber;
  readonly uid: Uid;
}): boolean => {
  const { files, links } = encodeUserRecord(lease);
  const pathOf = (name: string): string => join(USERDB_DIRECTORY, name);
  return (
    links.every(({ name, target }) => readLink(pathOf(name)) === target) &&
    files.every(
      ({ name, text }) => readFileIfThere(pathOf(name), RECORD_BYTES_MAX)?.toString('utf8') === text,
    )
  );
};
