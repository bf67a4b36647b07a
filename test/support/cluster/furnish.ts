/**
 * What makes the image into one particular node: names, users, the units of the harness, and a canary in place of ssh.
 * Written into the node's own layer before its first boot.
 */
import { createHash } from 'node:crypto';
import {
  appendFileSync,
  chmodSync,
  mkdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';

const MASKED = [
  'apt-daily.timer',
  'apt-daily-upgrade.timer',
  'dpkg-db-backup.timer',
  'e2scrub_all.timer',
  'fstrim.timer',
  'systemd-networkd.service',
  'systemd-networkd.socket',
  'systemd-resolved.service',
  'systemd-timesyncd.service',
] as const;

const USERS = [
  { name: 'alice', uid: 1001 },
  { name: 'bob', uid: 1002 },
] as const;

/** Pipes to the host, bound into the node. A read-only mount does not keep a sandbox from writing into a pipe. */
export const READY_PATH = '/var/lib/xce-test/ready';
export const CANARY_PATH = '/var/lib/xce-test/ssh-canary';

const READY_UNIT = `[Unit]
Description=Tells the test harness that the boot is complete
DefaultDependencies=no
After=multi-user.target

[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo ready >${READY_PATH}'
`;

/** Whoever runs ssh tells the host; 97 is no status of ssh's own. */
const SSH_CANARY = `#!/bin/sh
echo "ssh-canary: uid $(id -u): $0 $*" >&2
timeout 5 sh -c 'echo "$1" >${CANARY_PATH}' sh "uid $(id -u): $0 $*"
exit 97
`;

const NSS_DATABASES = ['passwd', 'group', 'shadow', 'gshadow'] as const;

export const furnishNode = (root: string, name: string, hosts: string, seed: string): void => {
  const etc = join(root, 'etc');
  writeFileSync(join(etc, 'hostname'), `${name}\n`);
  writeFileSync(join(etc, 'hosts'), hosts);
  const machineId = createHash('sha256').update(`${seed} ${name}`).digest('hex').slice(0, 32);
  writeFileSync(join(etc, 'machine-id'), `${machineId}\n`);
  for (const user of USERS) {
    appendFileSync(
      join(etc, 'passwd'),
      `${user.name}:x:${user.uid}:${user.uid}::/home/${user.name}:/bin/bash\n`,
    );
    appendFileSync(join(etc, 'group'), `${user.name}:x:${user.uid}:\n`);
  }

  const nsswitch = join(etc, 'nsswitch.conf');
  const others = readFileSync(nsswitch, 'utf8')
    .split('\n')
    .filter((line) => !NSS_DATABASES.some((database) => line.startsWith(`${database}:`)));
  const ours = NSS_DATABASES.map((database) => `${database}: files systemd`);
  writeFileSync(nsswitch, [...ours, ...others].join('\n'));

  const units = join(etc, 'systemd/system');
  for (const unit of MASKED) {
    rmSync(join(units, unit), { force: true });
    symlinkSync('/dev/null', join(units, unit));
  }
  writeFileSync(join(units, 'xce-test-ready.service'), READY_UNIT);
  mkdirSync(join(units, 'multi-user.target.wants'), { recursive: true });
  symlinkSync('../xce-test-ready.service', join(units, 'multi-user.target.wants/xce-test-ready.service'));

  writeFileSync(join(root, 'usr/bin/ssh'), SSH_CANARY);
  chmodSync(join(root, 'usr/bin/ssh'), 0o755);
  mkdirSync(join(root, 'var/lib/xce-test'));
  for (const path of [READY_PATH, CANARY_PATH]) writeFileSync(join(root, path), '');
  for (const directory of ['shared', 'ctl-shared']) mkdirSync(join(root, directory));
};
