/**
 * The root file system of every node: Debian 13 made by debootstrap, without sshd, without network configuration and
 * with a canary in place of ssh. Made once, cached under a name that changes with its recipe.
 */
import { createHash } from 'node:crypto';
import {
  appendFileSync,
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { cacheDirectory, installHostPackages, requireRoot, withLock } from './host.ts';
import { enterCgroups, mustRun } from './process.ts';
import { listScopes, readFacts, Scope } from './scope.ts';

const PACKAGES = [
  'systemd',
  'systemd-sysv',
  'dbus',
  'libnss-systemd',
  'iproute2',
  'iputils-ping',
  'procps',
  'nodejs',
  'openmpi-bin',
  'libopenmpi-dev',
  'automake', // libltdl-dev wants the virtual automake-1.17, which debootstrap does not resolve
  'gcc',
  'libc6-dev',
  'acl',
  'attr',
  'libcap2-bin',
] as const;

/** Counts changes of `furnish` that the package list does not show. */
const RECIPE_VERSION = 1;
const SUITE = 'trixie';

/** Node images are rebuilt when the host's npm changes, since it is copied into them. */
const npmDirectory = async (): Promise<string> =>
  join((await mustRun(['npm', 'root', '-g'])).stdout.toString('utf8').trim(), 'npm');

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
];

/** Whoever runs ssh leaves a line; 97 is no status of ssh's own. Its access time tells even where no line can be left. */
const SSH_CANARY = `#!/bin/sh
printf '%s\\n' "$$ $(id -u) $0 $*" >>/var/log/ssh-canary
exit 97
`;

export const READY_PATH = '/var/lib/xce-test/ready';

const READY_UNIT = `[Unit]
Description=Tells the test harness that the boot is complete
DefaultDependencies=no
After=multi-user.target

[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo ready >${READY_PATH}'
`;

const furnish = (root: string, npm: string): void => {
  const nsswitch = join(root, 'etc/nsswitch.conf');
  const wanted = ['passwd', 'group', 'shadow', 'gshadow'];
  const lines = readFileSync(nsswitch, 'utf8')
    .split('\n')
    .filter((line) => !wanted.some((database) => line.startsWith(`${database}:`)));
  writeFileSync(
    nsswitch,
    wanted
      .map((database) => `${database}: files systemd`)
      .concat(lines)
      .join('\n'),
  );
  for (const unit of MASKED) {
    const link = join(root, 'etc/systemd/system', unit);
    rmSync(link, { force: true });
    symlinkSync('/dev/null', link);
  }
  writeFileSync(join(root, 'usr/bin/ssh'), SSH_CANARY);
  chmodSync(join(root, 'usr/bin/ssh'), 0o755);
  writeFileSync(join(root, 'var/log/ssh-canary'), '');
  chmodSync(join(root, 'var/log/ssh-canary'), 0o666);
  mkdirSync(join(root, 'var/lib/xce-test'), { recursive: true });
  writeFileSync(join(root, READY_PATH), '');
  writeFileSync(join(root, 'etc/systemd/system/xce-test-ready.service'), READY_UNIT);
  const wants = join(root, 'etc/systemd/system/multi-user.target.wants');
  mkdirSync(wants, { recursive: true });
  symlinkSync('../xce-test-ready.service', join(wants, 'xce-test-ready.service'));
  for (const directory of ['shared', 'ctl-shared']) mkdirSync(join(root, directory));
  appendFileSync(join(root, 'etc/environment'), 'LANG=C.UTF-8\n');
  cpSync(npm, join(root, 'usr/lib/node_modules/npm'), { recursive: true, verbatimSymlinks: true });
  symlinkSync('../lib/node_modules/npm/bin/npm-cli.js', join(root, 'usr/bin/npm'));
  for (const name of ['machine-id', 'hostname', 'hosts', 'resolv.conf'])
    rmSync(join(root, 'etc', name), { force: true });
  rmSync(join(root, 'var/cache/apt/archives'), { recursive: true, force: true });
  rmSync(join(root, 'var/lib/apt/lists'), { recursive: true, force: true });
};

/** A directory of the cache that was made once; `root` is a file system tree to be used read-only. */
export type CacheEntry = { readonly entry: string; readonly root: string };

export const findCached = (name: string): CacheEntry | undefined => {
  const entry = join(cacheDirectory(), name);
  if (!existsSync(entry)) return undefined;
  const now = new Date();
  utimesSync(entry, now, now); // pruning goes by last use
  return { entry, root: join(entry, 'root') };
};

/** Removes entries of a kind beyond the `keep` last used, unless a scope uses them. */
export const pruneCache = (prefix: string, keep: number): void => {
  const used = new Set(listScopes().flatMap((scope) => readFacts(scope)?.uses ?? []));
  const stale = readdirSync(cacheDirectory())
    .filter((name) => name.startsWith(prefix))
    .map((name) => join(cacheDirectory(), name))
    .sort((a, b) => statSync(b).mtimeMs - statSync(a).mtimeMs)
    .slice(keep)
    .filter((entry) => !used.has(entry));
  for (const entry of stale) rmSync(entry, { recursive: true, force: true });
};

/** The image of this recipe; made when the cache has none, which takes minutes. */
export const prepareImage = async (report: (line: string) => void = () => undefined): Promise<CacheEntry> => {
  requireRoot();
  await installHostPackages();
  mkdirSync(cacheDirectory(), { recursive: true });
  const npm = await npmDirectory();
  const npmVersion: unknown = JSON.parse(readFileSync(join(npm, 'package.json'), 'utf8')).version;
  const recipe = JSON.stringify([
    SUITE,
    PACKAGES,
    RECIPE_VERSION,
    npmVersion,
    MASKED,
    SSH_CANARY,
    READY_UNIT,
  ]);
  const name = `image-${createHash('sha256').update(recipe).digest('hex').slice(0, 16)}`;
  const cached = findCached(name);
  if (cached !== undefined) return cached;
  return await withLock('image', 1_800_000, async () => {
    const ready = findCached(name);
    if (ready !== undefined) return ready;
    report('making the node image with debootstrap (some minutes, once)');
    const scope = await Scope.open();
    try {
      const root = join(scope.directory, 'image/root');
      mkdirSync(root, { recursive: true });
      const mirror = process.env['XCE_SANDBOX_TEST_MIRROR'] ?? 'http://deb.debian.org/debian';
      const argv = [
        'debootstrap',
        '--variant=minbase',
        `--include=${PACKAGES.join(',')}`,
        SUITE,
        root,
        mirror,
      ];
      await mustRun(enterCgroups(scope.cgroups, argv), { timeoutMs: 1_700_000 });
      furnish(root, npm);
      renameSync(join(scope.directory, 'image'), join(cacheDirectory(), name));
    } finally {
      await scope.close();
    }
    pruneCache('image-', 1);
    const made = findCached(name);
    if (made === undefined) throw new Error(`${name} is gone again`);
    return made;
  });
};
