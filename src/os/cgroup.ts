/** Control groups of version 2, as this process sees their root (cgroups(7)). */
import { readFileSync, writeFileSync } from 'node:fs';
import { errnoOf, XceError } from '../base/errors.ts';

export const CGROUP_ROOT = '/sys/fs/cgroup';

const isAbsent = (error: unknown): boolean => {
  const errno = errnoOf(error);
  // ENODEV: the group was removed between open and read.
  return errno === 'ENOENT' || errno === 'ENODEV';
};

/** Whether a process lives in a group or below it. A group that is not there has none. Throws XceError 'os'. */
export const isCgroupPopulated = (group: string): boolean => {
  const path = `${CGROUP_ROOT}/${group}/cgroup.events`;
  try {
    const populated = /^populated ([01])$/m.exec(readFileSync(path, 'latin1'))?.[1];
    if (populated === undefined) throw new XceError('os', `${path} does not say whether it is populated`);
    return populated === '1';
  } catch (error) {
    if (isAbsent(error)) return false;
    if (error instanceof XceError) throw error;
    throw new XceError('os', `cannot read ${path}: ${errnoOf(error) ?? String(error)}`, { cause: error });
  }
};

/** SIGKILL to every process of a group and below, forks in flight included (kernel 5.14). Throws XceError 'os'. */
export const killCgroupProcesses = (group: string): void => {
  const path = `${CGROUP_ROOT}/${group}/cgroup.kill`;
  try {
    writeFileSync(path, '1', { flag: 'r+' });
  } catch (error) {
    if (isAbsent(error)) return;
    throw new XceError('os', `cannot write ${path}: ${errnoOf(error) ?? String(error)}`, { cause: error });
  }
};

/** The controllers that the root of the hierarchy has (cgroups(7)). Throws XceError 'os'. */
export const listControllers = (): readonly string[] => {
  const path = `${CGROUP_ROOT}/cgroup.controllers`;
  try {
    return readFileSync(path, 'latin1').trim().split(' ');
  } catch (error) {
    throw new XceError('os', `cannot read ${path}: ${errnoOf(error) ?? String(error)}`, { cause: error });
  }
};

/** A file of a group; undefined where the group does not have it. Throws XceError 'os'. */
export const readCgroupFile = (group: string, name: string): string | undefined => {
  const path = `${CGROUP_ROOT}/${group}/${name}`;
  try {
    return readFileSync(path, 'latin1').trim();
  } catch (error) {
    if (isAbsent(error)) return undefined;
    throw new XceError('os', `cannot read ${path}: ${errnoOf(error) ?? String(error)}`, { cause: error });
  }
};

/** Whether the mount at the root is a hierarchy of version 2. */
export const isUnifiedHierarchy = (): boolean => {
  try {
    return readFileSync(`${CGROUP_ROOT}/cgroup.controllers`, 'latin1').length >= 0;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return false;
    throw new XceError('os', `cannot read ${CGROUP_ROOT}: ${errnoOf(error) ?? String(error)}`, {
      cause: error,
    });
  }
};
