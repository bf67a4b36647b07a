import { XceError } from '../../base/errors.ts';
import { parseCpus } from '../../config/values.ts';
import {
  CGROUP_ROOT,
  isCgroupPopulated,
  killCgroupProcesses,
  listControllers,
  readCgroupFile,
} from '../../os/cgroup.ts';
import { waitUntil } from '../../os/watch.ts';
import { type Allowance, controllersFor } from '../resources.ts';

/** Longest wait for processes that have got SIGKILL; one that sleeps in the kernel stays and is reported. */
const KILL_WAIT_MS = 5_000;

/** Processes that sleep in the kernel, as on storage that does not answer, end when they wake up. */
export const outlived = (group: string): XceError =>
  new XceError('node-dirty', `a process in ${group} has outlived SIGKILL`);

/** Kills what systemd's own stop has left in a group, and waits until the kernel says that it is empty. */
export const killCgroup = async (group: string): Promise<void> => {
  killCgroupProcesses(group);
  if (!isCgroupPopulated(group)) return;
  // The kernel notifies watchers of cgroup.events when `populated` changes.
  await waitUntil(`${CGROUP_ROOT}/${group}/cgroup.events`, () => !isCgroupPopulated(group), {
    timeoutMs: KILL_WAIT_MS,
  });
};

/** Throws 'resource-unsupported' where the kernel of this host cannot hold a job to its limits. */
export const requireControllers = (allowance: Allowance): void => {
  const present = listControllers();
  const missing = controllersFor(allowance).filter((name) => !present.includes(name));
  if (missing.length === 0) return;
  throw new XceError(
    'resource-unsupported',
    `this node cannot limit a job: the control group controller ${missing.join(' and ')} is not there`,
    { next: 'cat /sys/fs/cgroup/cgroup.controllers', detail: { missing } },
  );
};

/** `MAX PERIOD` of cpu.max as a percentage. */
const percentOf = (text: string | undefined): number | undefined => {
  const [max, period] = (text ?? '').split(' ').map(Number);
  return max === undefined || period === undefined ? undefined : Math.round((100 * max) / period);
};

/** Throws 'resource-unsupported' unless the group has every limit that it was to get: systemd only logs a failure. */
export const verifyLimits = (group: string, { cpuPercent, cpus, memoryBytes }: Allowance): void => {
  const wrong = (name: string): XceError =>
    new XceError('resource-unsupported', `${name} of ${group} is not what it was set to`, { at: group });
  if (cpuPercent !== null && percentOf(readCgroupFile(group, 'cpu.max')) !== cpuPercent) {
    throw wrong('cpu.max');
  }
  // The kernel counts whole pages.
  const memory = readCgroupFile(group, 'memory.max');
  if (memoryBytes !== null && !(Number(memory) <= memoryBytes)) throw wrong('memory.max');
  if (cpus !== null) {
    const effective = parseCpus(readCgroupFile(group, 'cpuset.cpus.effective') ?? '');
    if ('reason' in effective || effective.value.some((cpu) => !cpus.includes(cpu))) {
      throw wrong('cpuset.cpus.effective');
    }
  }
};
