import { readFileSync } from 'node:fs';
import { errnoOf, XceError } from '../base/errors.ts';

/**
 * The name of the systemd service in whose cgroup a process is: the innermost path element that ends in
 * `.service`. Undefined for a process in no service, or that has gone.
 */
export const readUnitOf = (pid: number): string | undefined => {
  let text: string;
  try {
    text = readFileSync(`/proc/${pid}/cgroup`, 'utf8');
  } catch (error) {
    const errno = errnoOf(error);
    if (errno === 'ENOENT' || errno === 'ESRCH') return undefined;
    throw new XceError('os', `cannot read the cgroup of process ${pid}: ${errno}`, { cause: error });
  }
  for (const line of text.split('\n')) {
    // cgroup v2 has one line `0::PATH`; in a hybrid hierarchy systemd's own is `N:name=systemd:PATH`.
    const path = /^(?:0:|\d+:name=systemd):(.*)$/.exec(line)?.[1];
    const service = path?.split('/').findLast((part) => part.endsWith('.service'));
    if (service !== undefined) return service;
  }
  return undefined;
};
