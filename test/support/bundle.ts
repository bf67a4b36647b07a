/** Programs of the tests as one file each, so that starting one costs what starting the product does. */
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const require = createRequire(import.meta.url);

/** Native packages find their binaries by their own place on disk, which is not the bundle's. */
const NATIVE = ['koffi', 'fs-native-extensions'];

/** Bundles a program of the tests into a directory and returns the path to run. */
export const bundleProgram = async (program: URL, directory: string): Promise<string> => {
  const outfile = join(directory, 'program.mjs');
  await build({
    entryPoints: [fileURLToPath(program)],
    outfile,
    bundle: true,
    format: 'esm',
    platform: 'node',
    target: 'node20.19',
    mainFields: ['module', 'main'],
    logLevel: 'warning',
    banner: {
      js: "import { createRequire as xceCreateRequire } from 'node:module'; const require = xceCreateRequire(import.meta.url);",
    },
    plugins: [
      {
        name: 'native packages from here',
        setup: (bundle) => {
          bundle.onResolve({ filter: new RegExp(`^(${NATIVE.join('|')})$`) }, ({ path }) => ({
            path: require.resolve(path),
            external: true,
          }));
        },
      },
    ],
  });
  return outfile;
};
