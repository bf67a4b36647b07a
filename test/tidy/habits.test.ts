import { dirname } from 'node:path';
import { describe, expect, test } from 'vitest';
import { ERRORS } from '../../src/base/errors.ts';
import { LIMITS } from '../../src/base/limits.ts';
import { findLines, listFiles, readSource, readSources } from './sources.ts';

const src = readSources('src');
const tests = readSources('test');

describe('names', () => {
  test('files and folders are kebab-case', () => {
    const segment = /^[a-z0-9]+(-[a-z0-9]+)*(\.(test|config|d))?(\.[a-z0-9]+)?$/;
    const odd = [...src, ...tests].filter(({ path }) => !path.split('/').every((name) => segment.test(name)));
    expect(odd.map(({ path }) => path)).toEqual([]);
  });

  test('no file or folder is named after nothing in particular', () => {
    const empty = [
      'utils',
      'util',
      'helpers',
      'helper',
      'common',
      'manager',
      'service',
      'types',
      'misc',
      'shared',
      'index',
    ];
    const odd = src.filter(({ path }) =>
      path
        .replace(/\.ts$/, '')
        .split('/')
        .some((name) => empty.includes(name)),
    );
    // a command of oclif that stands for its topic has no other name
    expect(odd.map(({ path }) => path).filter((path) => !/^src\/commands\/.*index\.ts$/.test(path))).toEqual(
      [],
    );
  });

  test('unit tests lie in the folders of what they test', () => {
    const folders = new Set(src.map(({ path }) => dirname(path)));
    const strays = listFiles('test/unit')
      .filter((path) => path.endsWith('.test.ts'))
      .filter((path) => !folders.has(dirname(path).replace(/^test\/unit/, 'src')));
    expect(strays).toEqual([]);
  });
});

// The patterns are written so that they do not match themselves.
describe('no source has', () => {
  test('a note to do it later', () => {
    expect(findLines([...src, ...tests], /\b(TO[D]O|FIX[M]E|XX[X]|HAC[K])\b/)).toEqual([]);
  });

  test('a mock of a module', () => {
    expect(findLines(tests, /\bvi\.(do)?[mM]o[c]k\b/)).toEqual([]);
  });

  // skipIf is for what a machine lacks; `npm test` counts what it skips
  test('a test that never runs or keeps others from running', () => {
    expect(
      findLines(tests, /\b(describe|test|it|suite|bench)(\.\w+)*\.(onl[y]|ski[p]|tod[o]|runI[f]|fail[s])\b/),
    ).toEqual([]);
  });

  test('output through the console', () => {
    expect(findLines(src, /\bconsol[e]\s*\./)).toEqual([]);
  });

  test('a silenced linter or compiler', () => {
    expect(findLines([...src, ...tests], /biome-ignor[e]|@ts-(ignor[e]|nochec[k]|expect-erro[r])/)).toEqual(
      [],
    );
  });
});

describe('tables', () => {
  const others = src.filter(({ path }) => path !== 'src/base/errors.ts' && path !== 'src/base/limits.ts');
  const text = others.map((source) => source.text).join('\n');

  test('every error code is used', () => {
    expect(Object.keys(ERRORS).filter((code) => !text.includes(`'${code}'`))).toEqual([]);
  });

  test('every error code has its entry in the man page', () => {
    const pages = listFiles('man').filter((path) => /^man\/xce-sandbox-errors\./.test(path));
    const page = pages.map((path) => readSource(path).text.replaceAll('\\-', '-')).join('\n');
    if (pages.length === 0) return;
    expect(
      Object.keys(ERRORS).filter(
        (code) => !new RegExp(`^\\.(It|B|BR|IP|Sy) .*\\b${code}\\b`, 'm').test(page),
      ),
    ).toEqual([]);
  });

  test('every limit is used', () => {
    expect(Object.keys(LIMITS).filter((name) => !text.includes(`LIMITS.${name}`))).toEqual([]);
  });
});
