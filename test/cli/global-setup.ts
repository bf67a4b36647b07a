/** Builds the programs where they are older than their sources; `npm test` has built them before this tier. */
import { existsSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { mustRun } from '../support/cluster/process.ts';
import { repositoryDirectory } from '../support/cluster/product.ts';

const changedMs = (path: string): number => statSync(path).mtimeMs;

const isBuilt = (): boolean => {
  const manifest = join(repositoryDirectory, 'oclif.manifest.json');
  if (!existsSync(manifest)) return false;
  const sources = readdirSync(join(repositoryDirectory, 'src'), { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));
  return [...sources, join(repositoryDirectory, 'package.json')].every(
    (path) => changedMs(path) <= changedMs(manifest),
  );
};

export const setup = async (): Promise<void> => {
  if (!isBuilt()) await mustRun(['npm', 'run', 'build'], { cwd: repositoryDirectory, timeoutMs: 300_000 });
};
