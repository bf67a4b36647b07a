import { describe, expect, test } from 'vitest';
import { folderOf, type Import, packageOf, parseImports, readSources } from './sources.ts';

const imports = readSources('src').flatMap(parseImports);
const own = imports.filter((entry) => entry.own);
const foreign = imports.filter((entry) => !entry.own);
const show = ({ from, to }: Import): string => `${from} -> ${to}`;

/** Modules of Node that compute and touch nothing outside of the process. */
const PURE_NODE = ['buffer', 'crypto', 'events', 'path', 'stream', 'url', 'util', 'zlib'];

/** Packages, and the folders that may run them. */
const PACKAGES: Readonly<Record<string, readonly string[]>> = {
  '@oclif/core': ['cli', 'commands'],
  '@peculiar/x509': ['pki'],
  chalk: ['cli'],
  execa: ['os'],
  'fs-native-extensions': ['os'],
  ini: ['config'],
  koffi: ['os'],
  listr2: ['cli'],
  'prom-client': ['cli'],
  'reflect-metadata': ['pki'],
  valibot: ['config', 'lease', 'rpc', 'worker', 'mpi', 'launch', 'normalise', 'pki', 'sandbox', 'operations'],
};

/** Everything that runs when `entry` is loaded, `import()` included. */
const reach = (entry: string): readonly Import[] => {
  const seen = new Set<string>();
  const found: Import[] = [];
  const visit = (path: string): void => {
    if (seen.has(path)) return;
    seen.add(path);
    for (const edge of imports) {
      if (edge.from !== path || edge.typeOnly) continue;
      found.push(edge);
      if (edge.own) visit(edge.to);
    }
  };
  visit(entry);
  return found;
};

/** One path through each knot of a graph that is not a tree. */
const findCycles = (edges: readonly (readonly [string, string])[]): readonly string[] => {
  const cycles: string[] = [];
  const done = new Set<string>();
  const visit = (name: string, trail: readonly string[]): void => {
    const at = trail.indexOf(name);
    if (at >= 0) {
      cycles.push([...trail.slice(at), name].join(' -> '));
      return;
    }
    if (done.has(name)) return;
    for (const [from, to] of edges) if (from === name) visit(to, [...trail, name]);
    done.add(name);
  };
  for (const [from] of edges) visit(from, []);
  return cycles;
};

describe('the reader of imports', () => {
  test('sees every form that loads a file', () => {
    const text = [
      "import './a.ts';",
      "import { b } from './b.ts';",
      'import {',
      '  type C,',
      "} from './c.ts';",
      "import type { D } from '../d.ts';",
      "export * from './e.ts';",
      "export { f } from './f.ts';",
      "const g = await import('./g.ts');",
      "type H = typeof import('./h.ts');",
      "import * as i from 'node:fs';",
      "export const text = 'import nothing';",
    ].join('\n');
    expect(
      parseImports({ path: 'src/x/y.ts', text }).map(({ to, typeOnly }) => `${to}${typeOnly ? ' type' : ''}`),
    ).toEqual([
      'src/x/a.ts',
      'src/x/b.ts',
      'src/x/c.ts',
      'src/d.ts type',
      'src/x/e.ts',
      'src/x/f.ts',
      'node:fs',
      'src/x/g.ts',
      'src/x/h.ts type',
    ]);
  });

  test('finds a cycle and only a cycle', () => {
    const edges = [
      ['a', 'b'],
      ['a', 'c'],
      ['b', 'd'],
      ['c', 'd'],
    ] as const;
    expect(findCycles(edges)).toEqual([]);
    expect(findCycles([...edges, ['d', 'b']])).toEqual(['b -> d -> b']);
  });
});

describe('layers', () => {
  test('base imports nothing but itself', () => {
    expect(
      imports.filter(({ from, to }) => folderOf(from) === 'base' && !to.startsWith('src/base/')).map(show),
    ).toEqual([]);
  });

  test("only os runs Node's I/O modules", () => {
    const offences = foreign.filter(({ from, to, typeOnly }) => {
      if (typeOnly || folderOf(from) === 'os' || !to.startsWith('node:')) return false;
      return !PURE_NODE.includes(to.slice('node:'.length).replace(/\/promises$/, ''));
    });
    expect(offences.map(show)).toEqual([]);
  });

  test('packages are loaded only where they belong', () => {
    const offences = foreign.filter(
      ({ from, to, typeOnly }) =>
        !typeOnly && !to.startsWith('node:') && !(PACKAGES[packageOf(to)] ?? []).includes(folderOf(from)),
    );
    expect(offences.map(show)).toEqual([]);
  });

  test.each(['src/worker/main.ts', 'src/mpi/agent-main.ts'])(
    '%s reaches no command line and no terminal',
    (entry) => {
      const reached = reach(entry);
      expect(reached.length).toBeGreaterThan(0);
      const offences = reached.filter(({ to, own: ours }) =>
        ours
          ? ['operations', 'cli', 'commands'].includes(folderOf(to))
          : ['@oclif/core', 'chalk', 'listr2', '@peculiar/x509'].includes(packageOf(to)),
      );
      expect(offences.map(show)).toEqual([]);
    },
  );

  test('arrows between commands, cli, operations and the rest go down only', () => {
    const above: Readonly<Record<string, readonly string[]>> = {
      'main.ts': [],
      'main-renew.ts': [],
      commands: [],
      cli: ['commands'],
      operations: ['commands', 'cli'],
    };
    const upwards = own.filter(({ from, to }) =>
      (above[folderOf(from)] ?? ['commands', 'cli', 'operations']).includes(folderOf(to)),
    );
    expect(upwards.map(show)).toEqual([]);
  });

  test('no file imports itself through others', () => {
    expect(findCycles(own.map(({ from, to }) => [from, to] as const))).toEqual([]);
  });

  test('no folder imports itself through others', () => {
    const between = own
      .map(({ from, to }) => [folderOf(from), folderOf(to)] as const)
      .filter(([from, to]) => from !== to);
    expect(findCycles(between)).toEqual([]);
  });

  test('our own imports name a file that is there', () => {
    const files = new Set(readSources('src').map(({ path }) => path));
    expect(own.filter(({ to }) => !files.has(to)).map(show)).toEqual([]);
  });
});
