/** nsswitch.conf(5), as far as it says who is asked for a user or a group. */
import { realpathSync } from 'node:fs';
import { errnoOf, XceError } from '../base/errors.ts';
import { readBounded } from './files.ts';

const NSSWITCH = '/etc/nsswitch.conf';
const NSSWITCH_BYTES_MAX = 64 << 10;

export type Database = 'passwd' | 'group';

/** The text of the file, which may be a link (authselect(8) makes it one). Throws 'io' or 'too-large'. */
export const readNsswitch = (path = NSSWITCH): string => {
  let target: string;
  try {
    target = realpathSync(path);
  } catch (error) {
    throw new XceError('io', `cannot open ${path}: ${errnoOf(error) ?? String(error)}`, {
      at: path,
      cause: error,
    });
  }
  return readBounded(target, NSSWITCH_BYTES_MAX).toString('latin1');
};

/** The services that a database names, in order; actions such as `[SUCCESS=merge]` are no services. */
export const servicesOf = (nsswitch: string, database: Database): readonly string[] => {
  const services = nsswitch.split('\n').flatMap((line) => {
    const [, name, rest = ''] = /^\s*([a-z_]+)\s*:([^#]*)/.exec(line) ?? [];
    if (name !== database) return [];
    return rest.replace(/\[[^\]]*\]/g, ' ').split(/\s+/);
  });
  return [...new Set(services.filter((service) => service !== ''))];
};

/**
 * How a service comes by its answers:
 * - local: from files or the kernel of this machine, always there;
 * - asking: from another machine, each time anew, with "not found" for "not reached";
 * - sssd: from another machine or from what it remembers, with the same answer for both.
 * Of any other it is not known whether an old answer could be told from a new one.
 */
export type ServiceKind = 'local' | 'asking' | 'sssd';

const KINDS: ReadonlyMap<string, ServiceKind> = new Map([
  ['files', 'local'],
  ['systemd', 'local'],
  ['mymachines', 'local'],
  ['db', 'local'],
  ['cache', 'local'],
  ['altfiles', 'local'],
  ['extrausers', 'local'],
  ['ldap', 'asking'],
  ['nis', 'asking'],
  ['sss', 'sssd'],
]);

export const kindOf = (service: string): ServiceKind | undefined => KINDS.get(service);
