/**
 * The user and group record of a leased uid as nss-systemd reads them from /run/userdb (nss-systemd(8),
 * systemd's USER_RECORD and GROUP_RECORD). systemd refuses `User=<number>` without one (217/USER), and MPI
 * wants a name and a home.
 */
import type { InstanceName, LeaseNumber, Uid } from '../base/ids.ts';
import { userName } from './names.ts';

/** Where the job's home is inside; outside it is an empty directory of root, so that no daemon of the host
 * finds files of the job in what the record calls its home. */
export const HOME_DIRECTORY = '/run/xce/home';

/** With /bin/sh PRRTE sources `.profile` of the working directory; without a shell it warns and guesses. */
export const LOGIN_SHELL = '/bin/bash';

/** Names are relative to the record directory. The links let a reader go by number. */
export type UserRecord = {
  readonly name: string;
  readonly files: readonly { readonly name: string; readonly text: string }[];
  readonly links: readonly { readonly name: string; readonly target: string }[];
};

export const encodeUserRecord = (lease: {
  readonly instance: InstanceName;
  readonly lease: LeaseNumber;
  readonly uid: Uid;
}): UserRecord => {
  const name = userName(lease);
  const user = {
    userName: name,
    uid: lease.uid,
    gid: lease.uid,
    realName: `Execution uid of lease ${lease.lease}`,
    homeDirectory: HOME_DIRECTORY,
    shell: LOGIN_SHELL,
    disposition: 'dynamic',
    locked: true,
  };
  const group = { groupName: name, gid: lease.uid, disposition: 'dynamic' };
  return {
    name,
    files: [
      { name: `${name}.user`, text: `${JSON.stringify(user)}\n` },
      { name: `${name}.group`, text: `${JSON.stringify(group)}\n` },
    ],
    links: [
      { name: `${lease.uid}.user`, target: `${name}.user` },
      { name: `${lease.uid}.group`, target: `${name}.group` },
    ],
  };
};
