/**
 * The root file system below every node: Debian 13, or 12 for its older MPI and systemd, made by debootstrap, with npm
 * (the host's, since Debian's is 400 packages) and without sshd. Made once, cached under a name that changes with its
 * recipe.
 */
import { createHash } from 'node:crypto';
import {
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

/** Counts changes of the recipe that the package list does not show. */
const RECIPE_VERSION = 2;
/** The Node.js of bookworm is too old for the product: that of the host goes in its place. */
const SUITES = {
  trixie: PACKAGES,
  bookworm: [...PACKAGES.filter((name) => name !== 'nodejs'), 'libstdc++6'],
} as const;
export type Suite = keyof typeof SUITES;

/** Node images are rebuilt when the host's npm changes, since it is copied into them. */
const npmDirectory = async (): Promise<string> =>
  join((await mustRun(['npm', 'root', '-g'])).stdout.toString('utf8').trim(), 'npm');

/** What debootstrap leaves and no node needs. */
const trim = (root: string): void => {
  for (const name of ['var/cache/apt/archives', 'var/lib/apt/lists']) {
    rmSync(join(root, name), { recursive: true, force: true });
  }
  for (const name of ['machine-id', 'hostname', 'hosts', 'resolv.conf'])
    rmSync(join(root, 'etc', name), { force: true });
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

const copyNode = async (root: string): Promise<void> => {
  cpSync(process.execPath, join(root, 'usr/bin/node'));
  await mustRun(['chroot', root, '/usr/bin/node', '--version']);
};

/** The image of this recipe; made when the cache has none, which takes minutes. */
export const prepareImage = async (
  report: (line: string) => void = () => undefined,
  suite: Suite = 'trixie',
): Promise<CacheEntry> => {
  requireRoot();
  await installHostPackages('nodes');
  mkdirSync(cacheDirectory(), { recursive: true });
  const npm = await npmDirectory();
  const npmVersion: unknown = JSON.parse(readFileSync(join(npm, 'package.json'), 'utf8')).version;
  const recipe = JSON.stringify([suite, SUITES[suite], RECIPE_VERSION, npmVersion]);
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
        `--include=${SUITES[suite].join(',')}`,
        suite,
        root,
        mirror,
      ];
      await mustRun(enterCgroups(scope.cgroups('build'), argv), { timeoutMs: 1_700_000 });
      trim(root);
      if (suite === 'bookworm') await copyNode(root);
      cpSync(npm, join(root, 'usr/lib/node_modules/npm'), { recursive: true, verbatimSymlinks: true });
      symlinkSync('../lib/node_modules/npm/bin/npm-cli.js', join(root, 'usr/bin/npm'));
      renameSync(join(scope.directory, 'image'), join(cacheDirectory(), name));
    } finally {
      await scope.close();
    }
    pruneCache('image-', Object.keys(SUITES).length);
    const made = findCached(name);
    if (made === undefined) throw new Error(`${name} is gone again`);
    return made;
  });
};
