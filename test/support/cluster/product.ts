/**
 * The product as an operator installs it: `npm pack`, then `npm install -g` on a node, offline, from an npm cache
 * that was filled on the host. What that writes is a layer between the image and each node's own files.
 */
import { createHash } from 'node:crypto';
import { copyFileSync, existsSync, mkdirSync, readFileSync, renameSync, rmdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { cacheDirectory, withLock } from './host.ts';
import { type CacheEntry, findCached, pruneCache } from './image.ts';
import { enterCgroups, mustRun } from './process.ts';
import { Scope } from './scope.ts';

export const repositoryDirectory = fileURLToPath(new URL('../../..', import.meta.url));

/** Names a tarball that has been packed already. */
export const TARBALL_VARIABLE = 'XCE_SANDBOX_TEST_TARBALL';

/** Counts changes of how the layer is made. */
const RECIPE_VERSION = 2;
const LAYERS_KEPT = 8;
const STAGE = 'xce-install';

/** Packs the work tree (which builds it first) and returns the path of the tarball inside `directory`. */
export const packProduct = async (directory: string): Promise<string> => {
  const argv = ['npm', 'pack', '--json', '--pack-destination', directory];
  await mustRun(argv, { cwd: repositoryDirectory, timeoutMs: 300_000 });
  const manifest: unknown = JSON.parse(readFileSync(join(repositoryDirectory, 'package.json'), 'utf8'));
  const { name, version } = manifest as { name: string; version: string };
  const tarball = join(directory, `${name}-${version}.tgz`);
  if (!existsSync(tarball)) throw new Error(`npm pack wrote no ${tarball}`);
  return tarball;
};

const install = async (scope: Scope, image: CacheEntry, tarball: string, layer: string): Promise<void> => {
  const quiet = ['--no-audit', '--no-fund', '--no-update-notifier'];
  const upper = join(layer, 'root');
  const stage = join(upper, STAGE);
  const cache = join(scope.directory, 'npm-cache');
  const merged = join(scope.directory, 'merged');
  const work = join(scope.directory, 'work');
  for (const directory of [stage, cache, merged, work]) mkdirSync(directory, { recursive: true });
  const throwAway = ['--prefix', join(scope.directory, 'prefix'), '--cache', cache];
  await mustRun(['npm', 'install', '-g', ...quiet, ...throwAway, tarball], { cwd: '/', timeoutMs: 300_000 });

  const options = `lowerdir=${image.root},upperdir=${upper},workdir=${work}`;
  await mustRun(['mount', '-t', 'overlay', 'overlay', '-o', options, merged]);
  copyFileSync(tarball, join(merged, STAGE, 'product.tgz'));
  mkdirSync(join(merged, STAGE, 'cache'));
  const nspawn = ['systemd-nspawn', '-q', '--register=no', '--keep-unit', `--machine=xt${scope.id}-install`];
  const surroundings = [
    '--private-network',
    '--resolv-conf=off',
    '--timezone=off',
    '--link-journal=no',
    '--console=pipe',
  ];
  const npm = [
    'npm',
    'install',
    '-g',
    '--offline',
    ...quiet,
    `--cache=/${STAGE}/cache`,
    `/${STAGE}/product.tgz`,
  ];
  await mustRun(
    enterCgroups(scope.cgroups('install'), [
      ...nspawn,
      ...surroundings,
      `--directory=${merged}`,
      `--bind=${cache}:/${STAGE}/cache`,
      '/usr/bin/env',
      'HOME=/tmp',
      ...npm,
    ]),
    { timeoutMs: 300_000 },
  );
  await mustRun(['umount', merged]);
  rmdirSync(join(stage, 'cache')); // fails unless the cache is unmounted
  rmSync(stage, { recursive: true });
};

/** The layer with the product on this image: of a given tarball, or of the work tree as it is now. */
export const prepareProduct = async (
  image: CacheEntry,
  report: (line: string) => void = () => undefined,
  given?: string,
): Promise<CacheEntry> =>
  await withLock('product', 900_000, async () => {
    const scope = await Scope.open([image.entry]);
    try {
      const packed = given ?? process.env[TARBALL_VARIABLE];
      if (packed === undefined) report('packing the product');
      const tarball = packed ?? (await packProduct(scope.directory));
      const key = createHash('sha256')
        .update(JSON.stringify([image.entry, RECIPE_VERSION]))
        .update(readFileSync(tarball))
        .digest('hex');
      const name = `product-${key.slice(0, 16)}`;
      const ready = findCached(name);
      if (ready !== undefined) return ready;
      report('installing the product on a node');
      const layer = join(scope.directory, 'layer');
      await install(scope, image, tarball, layer);
      renameSync(layer, join(cacheDirectory(), name));
      pruneCache('product-', LAYERS_KEPT);
      const made = findCached(name);
      if (made === undefined) throw new Error(`${name} is gone again`);
      return made;
    } finally {
      await scope.close();
    }
  });
