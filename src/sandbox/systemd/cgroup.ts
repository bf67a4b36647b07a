import { CGROUP_ROOT, isCgroupPopulated, killCgroupProcesses } from '../../os/cgroup.ts';
import { waitUntil } from '../../os/watch.ts';

/** Longest wait for processes that have got SIGKILL; one that sleeps in the kernel stays and is reported. */
const KILL_WAIT_MS = 5_000;

/** Kills what systemd's own stop has left in a group, and waits until the kernel says that it is empty. */
export const killCgroup = async (group: string): Promise<void> => {
  killCgroupProcesses(group);
  if (!isCgroupPopulated(group)) return;
  // The kernel notifies watchers of cgroup.events when `populated` changes.
  await waitUntil(`${CGROUP_ROOT}/${group}/cgroup.events`, () => !isCgroupPopulated(group), {
    timeoutMs: KILL_WAIT_MS,
  });
};
