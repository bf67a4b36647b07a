/**
 * Further Debian packages on top of the node image, for the tests that need a service of their own (a directory server,
 * a replicated file system). A layer is what apt-get writes; it is made once and cached like the image.
 */
import { createHash } from 'node:crypto';
import { chmodSync, copyFileSync, mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { cacheDirectory, withLock } from './host.ts';
import { type CacheEntry, findCached, prepareImage, pruneCache } from './image.ts';
import { enterCgroups, mustRun } from './process.ts';
import { Scope } from './scope.ts';

/** Counts changes of how a layer is made. */
const RECIPE_VERSION = 1;
const APT_MS_MAX = 900_000;

/** The packages of each layer; nothing recommended is installed, and no service is started meanwhile. */
export const LAYERS = {
  directory: [
    'slapd',
    'ldap-utils',
    'nslcd',
    'libnss-ldapd',
    'sssd',
    'sssd-ldap',
    'libnss-sss',
    'sssd-dbus',
    'nscd',
  ],
  gluster: ['glusterfs-server', 'glusterfs-client', 'fuse3'],
  nfs: ['nfs-kernel-server', 'nfs-common', 'user-mode-linux', 'rpcbind', 'kmod', 'e2fsprogs'],
  etcd: ['etcd-server', 'etcd-client'],
  mpich: ['mpich', 'libmpich-dev'],
  strace: ['strace'],
  slurm: ['slurmctld', 'slurmd', 'slurm-client', 'munge'],
} as const;
export type LayerName = keyof typeof LAYERS;

const APT = ['env', 'DEBIAN_FRONTEND=noninteractive', 'apt-get', '-o', 'APT::Sandbox::User=root'] as const;

/** Services that do not start before they have a configuration, which would hold up the boot of a node. */
const LATER = ['slurmctld.service', 'slurmd.service'] as const;

/** What the installation needs and no node does. */
const trim = (root: string): void => {
  for (const name of LATER) {
    rmSync(join(root, 'etc/systemd/system/multi-user.target.wants', name), { force: true });
  }
  for (const name of ['etc/resolv.conf', 'usr/sbin/policy-rc.d', 'var/cache/apt', 'var/lib/apt/lists']) {
    rmSync(join(root, name), { recursive: true, force: true });
  }
};

const install = async (scope: Scope, image: CacheEntry, packages: readonly string[]): Promise<void> => {
  const [upper, work, merged] = ['layer/root', 'work', 'merged'].map((name) => join(scope.directory, name));
  if (upper === undefined || work === undefined || merged === undefined) throw new Error('three directories');
  for (const directory of [upper, work, merged]) mkdirSync(directory, { recursive: true });
  const options = `lowerdir=${image.root},upperdir=${upper},workdir=${work}`;
  await mustRun(['mount', '-t', 'overlay', 'overlay', '-o', options, merged]);
  await mustRun(['mount', '-t', 'proc', 'proc', join(merged, 'proc')]);
  await mustRun(['mount', '--rbind', '/dev', join(merged, 'dev')]);
  copyFileSync('/etc/resolv.conf', join(merged, 'etc/resolv.conf'));
  const policy = join(merged, 'usr/sbin/policy-rc.d');
  writeFileSync(policy, '#!/bin/sh\nexit 101\n');
  chmodSync(policy, 0o755);
  const cgroups = scope.cgroups('layer');
  const inRoot = (argv: readonly string[]) =>
    mustRun(enterCgroups(cgroups, ['chroot', merged, ...argv]), { timeoutMs: APT_MS_MAX });
  await inRoot([...APT, 'update']);
  await inRoot([...APT, 'install', '-y', '--no-install-recommends', ...packages]);
  trim(merged);
  await mustRun(['umount', '--recursive', merged]);
};

/** The layer of that name for the image in use; made when the cache has none, which takes a minute. */
export const prepareLayer = async (
  name: LayerName,
  report: (line: string) => void = () => undefined,
): Promise<CacheEntry> => {
  const image = await prepareImage(report);
  const recipe = JSON.stringify([image.entry, LAYERS[name], RECIPE_VERSION]);
  const prefix = `layer-${name}-`;
  const entry = `${prefix}${createHash('sha256').update(recipe).digest('hex').slice(0, 16)}`;
  const cached = findCached(entry);
  if (cached !== undefined) return cached;
  return await withLock(`layer-${name}`, 2 * APT_MS_MAX, async () => {
    const ready = findCached(entry);
    if (ready !== undefined) return ready;
    report(`installing ${LAYERS[name].join(', ')} into a layer (a minute, once)`);
    const scope = await Scope.open([image.entry]);
    try {
      await install(scope, image, LAYERS[name]);
      renameSync(join(scope.directory, 'layer'), join(cacheDirectory(), entry));
    } finally {
      await scope.close();
    }
    pruneCache(prefix, 1);
    const made = findCached(entry);
    if (made === undefined) throw new Error(`${entry} is gone again`);
    return made;
  });
};
