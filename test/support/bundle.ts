/** Programs of the tests as one file each, so that starting one costs what starting the product does. */
import { symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type BuildOptions, build } from 'esbuild';

const NATIVE = ['koffi', 'fs-native-extensions'];
const OPTIONS: BuildOptions = {
  bundle: true,
  format: 'esm',
  platform: 'node',
  target: 'node20.19',
  mainFields: ['module', 'main'],
};

/** Bundles a program of the tests into one file; native packages are found from where that lies. */
export const bundleFile = async (program: URL, outfile: string): Promise<void> => {
  await build({
    entryPoints: [fileURLToPath(program)],
    outfile,
    ...OPTIONS,
    logLevel: 'warning',
    banner: {
      js: "import { createRequire as xceCreateRequire } from 'node:module'; const require = xceCreateRequire(import.meta.url);",
    },
    external: NATIVE,
  });
};

/** The same into a directory that has the native packages as well; returns the path to run. */
export const bundleProgram = async (program: URL, directory: string): Promise<string> => {
  const outfile = join(directory, 'program.mjs');
  // Native packages find their binaries by their own place on disk, and are found from the bundle's.
  symlinkSync(fileURLToPath(new URL('../../node_modules', import.meta.url)), join(directory, 'node_modules'));
  await bundleFile(program, outfile);
  return outfile;
};

/** The text of a program that is put beside the product, whose packages it shares: the native ones and `shared`. */
export const bundleText = async (program: URL, shared: readonly string[] = []): Promise<string> => {
  const { outputFiles } = await build({
    ...OPTIONS,
    entryPoints: [fileURLToPath(program)],
    write: false,
    external: [...NATIVE, ...shared],
  });
  const [file] = outputFiles ?? [];
  if (file === undefined) throw new Error(`nothing was bundled of ${program.pathname}`);
  return file.text;
};
