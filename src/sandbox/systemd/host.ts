/** What a host must be for the systemd backend; looked at once, when the worker starts. */
import { XceError } from '../../base/errors.ts';
import { isUnifiedHierarchy } from '../../os/cgroup.ts';
import { readNsswitch, servicesOf } from '../../os/nsswitch.ts';
import { readLink, resolvePath } from '../../os/root-files.ts';
import { instanceSlice } from '../names.ts';
import type { Context } from './context.ts';
import { makeRecordHome } from './place.ts';

const SYSTEMD_VERSION_MIN = 252;
const PROGRAMS = [
  '/bin/bash',
  '/usr/bin/env',
  '/usr/bin/find',
  '/usr/bin/mount',
  '/usr/bin/umount',
  '/usr/bin/nsenter',
  '/usr/bin/systemctl',
  '/usr/bin/unshare',
] as const;

const refuse = (message: string, next?: string): XceError =>
  new XceError('sandbox-refused', message, next === undefined ? {} : { next });

/** Throws XceError 'sandbox-refused' or 'systemd' with what is missing. Starts the instance's empty slice. */
export const checkHost = async ({ settings, systemd }: Context): Promise<void> => {
  const missing = PROGRAMS.find((program) => resolvePath(program) === undefined);
  if (missing !== undefined) throw refuse(`${missing} is not installed`);
  if (!isUnifiedHierarchy()) throw refuse('control groups of version 2 are not mounted at /sys/fs/cgroup');
  const version = await systemd.readVersion();
  if (version < SYSTEMD_VERSION_MIN) {
    throw refuse(`systemd ${version} is older than ${SYSTEMD_VERSION_MIN}`);
  }
  const nsswitch = readNsswitch();
  for (const database of ['passwd', 'group'] as const) {
    if (!servicesOf(nsswitch, database).includes('systemd')) {
      throw refuse(
        `nsswitch.conf: ${database} does not name systemd, so systemd would find no user record (217/USER)`,
        'install libnss-systemd and add systemd to passwd and group in /etc/nsswitch.conf',
      );
    }
  }
  // A mount that the worker makes must be seen by the service manager, which binds it.
  if (readLink('/proc/self/ns/mnt') !== readLink('/proc/1/ns/mnt')) {
    throw refuse('the worker has a mount namespace of its own', 'remove Protect* and Private* from its unit');
  }
  makeRecordHome();
  await systemd.start(instanceSlice(settings.cluster.instance));
};
