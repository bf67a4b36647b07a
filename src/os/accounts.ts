import { XceError } from '../base/errors.ts';
import { runChild } from './spawn.ts';

export type Account = { readonly name: string; readonly uid: number; readonly gid: number };

/** Looks up people's accounts by number; for uids that must be nobody's see name-service.ts. */
export type Accounts = {
  /** undefined: no such uid. Throws 'name-service' where the answer is neither yes nor no. */
  findByUid(uid: number): Promise<Account | undefined>;
};

export const createAccounts = (options: { readonly timeoutMs: number }): Accounts => ({
  findByUid: async (uid) => {
    const end = await runChild('/usr/bin/getent', ['passwd', String(uid)], options);
    if (end.exitCode === 2 && end.stdout.length === 0) return undefined;
    const [, name, foundUid, gid] =
      /^([^:\n]+):[^:\n]*:([0-9]+):([0-9]+):/.exec(end.stdout.toString('latin1')) ?? [];
    if (end.exitCode !== 0 || name === undefined || Number(foundUid) !== uid) {
      const how = end.timedOut
        ? `no answer within ${options.timeoutMs} ms`
        : `status ${end.exitCode ?? end.signal}`;
      throw new XceError('name-service', `getent passwd ${uid}: ${how}`, { next: `getent passwd ${uid}` });
    }
    return { name, uid, gid: Number(gid) };
  },
});
