import { build } from 'esbuild';
import { expect, test } from 'vitest';
import { HOT_BUILD } from '../support/bundles.ts';

test('the bundle of what hooks call often has none of the packages that are slow to load', async () => {
  const { metafile } = await build({ ...HOT_BUILD, write: false });
  const outputs = Object.values(metafile.outputs);
  const packages = outputs
    .flatMap(({ inputs }) => Object.keys(inputs))
    .map((path) => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1])
    .filter((name) => name !== undefined);
  expect([...new Set(packages)]).toEqual(['ini']);
  // koffi stays outside of every bundle, and would be loaded by its name.
  const imports = outputs.flatMap((output) => output.imports.map(({ path }) => path));
  expect(imports.filter((path) => !path.startsWith('node:'))).toEqual([]);
});
