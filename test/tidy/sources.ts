/** The files of the work tree and what they import, as the tidy tests see them. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, normalize, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));

export type Source = { readonly path: string; readonly text: string };

export type Import = {
  /** The file that imports, relative to the root of the repository. */
  readonly from: string;
  /** A path relative to the root for our own files, else the specifier as written. */
  readonly to: string;
  readonly own: boolean;
  /** Erased by the compiler: nothing of it runs. */
  readonly typeOnly: boolean;
};

/** Every file below a folder of the repository; paths are relative to its root. */
export const listFiles = (folder: string): readonly string[] =>
  existsSync(join(root, folder))
    ? readdirSync(join(root, folder), { withFileTypes: true, recursive: true })
        .filter((entry) => entry.isFile())
        .map((entry) => relative(root, join(entry.parentPath, entry.name)))
        .sort()
    : [];

export const readSource = (path: string): Source => ({ path, text: readFileSync(join(root, path), 'utf8') });

export const readSources = (folder: string): readonly Source[] =>
  listFiles(folder)
    .filter((path) => /\.(ts|mjs)$/.test(path))
    .map(readSource);

const STATEMENT = /^(?:import|export)\s+(type\s+)?(?:[\w$\s{},*]*?\s*from\s+)?'([^'\n]+)'/gm;
const CALL = /\bimport\(\s*'([^'\n]+)'\s*\)/g;

/** Statements start at the first column, which the formatter keeps; import() is found anywhere. */
export const parseImports = ({ path, text }: Source): readonly Import[] => {
  const resolve = (specifier: string, typeOnly: boolean): Import => {
    const own = specifier.startsWith('.');
    return { from: path, to: own ? normalize(join(dirname(path), specifier)) : specifier, own, typeOnly };
  };
  return [
    ...[...text.matchAll(STATEMENT)].map((match) => resolve(match[2] ?? '', match[1] !== undefined)),
    ...[...text.matchAll(CALL)].map((match) =>
      resolve(match[1] ?? '', text.slice(0, match.index).endsWith('typeof ')),
    ),
  ];
};

/** `src/wal/log.ts` -> `wal`. */
export const folderOf = (path: string): string => path.split('/')[1] ?? '';

/** `@oclif/core/flags` -> `@oclif/core`; `node:` modules are left whole. */
export const packageOf = (specifier: string): string =>
  specifier
    .split('/')
    .slice(0, specifier.startsWith('@') ? 2 : 1)
    .join('/');

/** Where and what, for a message that names every offence. */
export const findLines = (sources: readonly Source[], pattern: RegExp): readonly string[] =>
  sources.flatMap(({ path, text }) =>
    text
      .split('\n')
      .flatMap((line, index) => (pattern.test(line) ? [`${path}:${index + 1}: ${line.trim()}`] : [])),
  );
