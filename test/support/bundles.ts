/** How the programs are bundled; build.ts does it. */
import { readFile } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type BuildOptions, build, type Metafile, type Plugin, transform } from 'esbuild';

export const root = fileURLToPath(new URL('../..', import.meta.url));

const TARGET = 'node20.19';

const DEFINE = {
  'import.meta.filename': '__filename',
  'import.meta.dirname': '__dirname',
  'import.meta.url': '__filename',
};

/** What stands in front of a name by itself: no letter, and no dot but those of a spread. */
const NO_MEMBER = '(?<![\\w$])(?<!(?<!\\.\\.)\\.)';

/** `var NAME = require(...)` as esbuild and the compiler of TypeScript write it, with what they put around. */
const REQUIRE = /^(?:var|const) (\w+) = ((?:__\w+\()?require\("[^"\n]+"\)(?:, 1)?\)?);$/gm;

/** For the top of a bundle. */
const ON_USE = `var __onUse = (load) => ({
  get module() {
    const value = load();
    Object.defineProperty(this, 'module', { value });
    return value;
  },
});`;

/**
 * Has what a CommonJS module requires run when something of it is first used, in place of before the module itself: a
 * command needs little of all that its modules name. A name that is also used as a whole is left as it is.
 */
export const runOnUse = (text: string): string => {
  const isUsedInParts = (name: string): boolean =>
    text.match(new RegExp(`${NO_MEMBER}${name}(?![\\w$.])`, 'g'))?.length === 1;
  const names = [...text.matchAll(REQUIRE)].map(([, name = '']) => name).filter(isUsedInParts);
  if (names.length === 0) return text;
  return text
    .replaceAll(REQUIRE, (whole, name: string, value: string) =>
      names.includes(name) ? `var ${name} = __onUse(() => ${value});` : whole,
    )
    .replaceAll(new RegExp(`${NO_MEMBER}(${names.join('|')})\\.`, 'g'), '$1.module.');
};

/** Has a statement of an ES module at the beginning of a line. */
const IS_ES_MODULE = /^(?:import\b(?!\()|export\b)/m;

/** Of a file as CommonJS; tells esbuild as well what kind of file it gets. */
const SUFFIX = '.cjs';

/** How esbuild exports: by functions that look each time, for which it has helpers in front. */
const EXPORTS =
  /^var \w+_exports = \{\};\n__export\(\w+_exports, \{([^}]*)\}\);\nmodule\.exports = __toCommonJS\(\w+_exports\);\n/m;

/**
 * Of a module whose importers run behind it, as ours do: what it exports is there once it has run, and stays as it
 * is. A look at it then costs nothing, also where it is made for each of a million records.
 */
const exportValues = (code: string): string => {
  const found = EXPORTS.exec(code);
  if (found === null) return code;
  const body = code.slice(found.index + found[0].length);
  const helpers = body.includes('__toESM(') ? code.slice(0, found.index) : '';
  return `${helpers}${body}\nmodule.exports = { __esModule: true, ${(found[1] ?? '').replaceAll('() => ', '')} };\n`;
};

const toCommonJs = async (path: string, text: string): Promise<string> => {
  const { code } = await transform(text, {
    loader: path.endsWith('.ts') ? 'ts' : 'js',
    format: 'cjs',
    platform: 'neutral',
    target: TARGET,
    define: DEFINE,
    sourcefile: path,
  });
  return path.startsWith(join(root, 'src/')) ? exportValues(code) : code;
};

/** Every module, of ours and of packages, as a CommonJS one that runs when it is used. */
const ON_USE_PLUGIN: Plugin = {
  name: 'on-use',
  setup: (builder) => {
    // In a namespace of their own: the package that a file lies in may say that it is an ES module.
    builder.onResolve({ filter: /./ }, async ({ path, pluginData, ...place }) => {
      if (pluginData === ON_USE_PLUGIN) return undefined;
      // What has become a require was an import, which finds other files of a package.
      const wasImport = place.namespace === 'on-use' && place.kind === 'require-call';
      const kind = wasImport ? 'import-statement' : place.kind;
      const found = await builder.resolve(path, { ...place, kind, pluginData: ON_USE_PLUGIN });
      const isFile = found.errors.length === 0 && !found.external && /\.(?:ts|js|mjs|cjs)$/.test(found.path);
      return isFile
        ? { path: `${relative(root, found.path)}${SUFFIX}`, namespace: 'on-use' }
        : { ...found, pluginData: undefined };
    });
    builder.onLoad({ filter: /./, namespace: 'on-use' }, async (args) => {
      const path = join(root, args.path.slice(0, -SUFFIX.length));
      const text = await readFile(path, 'utf8');
      const code = IS_ES_MODULE.test(text) ? await toCommonJs(path, text) : text;
      return { contents: runOnUse(code), loader: 'js', resolveDir: dirname(path) };
    });
  },
};

/**
 * Each program is one file, since each file that is loaded costs as much as what stands in it, and no ES module: Node
 * takes longer to link one with its own modules than to run most commands.
 */
const OPTIONS = {
  absWorkingDir: root,
  outdir: 'dist',
  bundle: true,
  format: 'cjs',
  platform: 'node',
  target: TARGET,
  mainFields: ['module', 'main'],
  // Native packages find their binaries by their own place on disk.
  external: ['koffi', 'fs-native-extensions'],
  outExtension: { '.js': '.cjs' },
  alias: { 'node:module': fileURLToPath(new URL('./own-require.ts', import.meta.url)) },
  plugins: [ON_USE_PLUGIN],
  banner: { js: ON_USE },
  minifySyntax: true,
  minifyWhitespace: true,
  // What an unexpected failure shows of its place is a line.
  lineLimit: 160,
  legalComments: 'linked',
  logLevel: 'warning',
  metafile: true,
  write: false,
} satisfies BuildOptions;

const ENTRY_POINTS = [
  { in: 'src/main.ts', out: 'cli' },
  { in: 'src/worker/main.ts', out: 'worker' },
  { in: 'src/operations/probe-process-main.ts', out: 'probe-process' },
  { in: 'src/cli/start.ts', out: 'start' },
];

/** What runs often, with short names: its own text is a part of the little time and memory that it may take. */
const SHORT_NAMES = {
  ...OPTIONS,
  entryPoints: [
    { in: 'src/main-renew.ts', out: 'renew' },
    { in: 'src/mpi/agent-main.ts', out: 'agent' },
  ],
  minifyIdentifiers: true,
};

/** Inside of regular expressions too, where esbuild leaves such letters: Node then reads the file in the quickest way. */
const asAscii = (code: string): string =>
  code.replaceAll(/[^\0-\x7f]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`);

/** What start.ts runs; see os/code-cache.ts. */
const asFunction = (code: string): string =>
  `(function (exports, require, module, __filename, __dirname) {${code}\n})`;

/** The programs as they are put into dist/, and what they are made of. */
export const buildPrograms = async (): Promise<{
  readonly files: readonly { readonly path: string; readonly text: string }[];
  readonly metafiles: readonly Metafile[];
  readonly warnings: number;
}> => {
  const results = await Promise.all([build({ ...OPTIONS, entryPoints: ENTRY_POINTS }), build(SHORT_NAMES)]);
  const outputFiles = results.flatMap((result) => result.outputFiles);
  const files = outputFiles.map(({ path, text }) => {
    const code = path.endsWith('.cjs') ? asAscii(text) : text;
    return { path, text: /\/(cli|renew)\.cjs$/.test(path) ? asFunction(code) : code };
  });
  return {
    files,
    metafiles: results.map(({ metafile }) => metafile),
    warnings: results.flatMap(({ warnings }) => warnings).length,
  };
};
