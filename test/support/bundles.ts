/** How the programs are bundled; build.ts does it. */
import { fileURLToPath } from 'node:url';
import type { BuildOptions } from 'esbuild';

export const root = fileURLToPath(new URL('../..', import.meta.url));

export const EVERY_BUILD = {
  absWorkingDir: root,
  outdir: 'dist',
  bundle: true,
  format: 'esm',
  platform: 'node',
  target: 'node20.19',
  // A dynamic import of a package with both forms must see its names, not one default export.
  mainFields: ['module', 'main'],
  // Native packages find their binaries by their own place on disk.
  external: ['koffi', 'fs-native-extensions'],
  legalComments: 'linked',
  logLevel: 'warning',
} satisfies BuildOptions;

/**
 * What hooks call often, and what starts it: each one file without what it shares with the others, and no ES module: each file that is loaded costs as much as what
 * stands in it, and Node takes longer to link an ES module with its own modules than to run all of this.
 */
export const HOT_BUILD = {
  ...EVERY_BUILD,
  entryPoints: [
    { in: 'src/cli/hot.ts', out: 'hot' },
    { in: 'src/cli/start.ts', out: 'start' },
  ],
  format: 'cjs',
  outExtension: { '.js': '.cjs' },
  define: { 'import.meta.url': '__filename', 'import.meta.dirname': '__dirname' },
  alias: { 'node:module': fileURLToPath(new URL('./own-require.ts', import.meta.url)) },
  minifySyntax: true,
  minifyWhitespace: true,
  metafile: true,
} satisfies BuildOptions;
