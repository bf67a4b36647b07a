import { chmodSync, existsSync, mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { runCached } from '../../../src/os/code-cache.ts';

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'xce-code-'));
});
afterEach(() => rmSync(directory, { recursive: true }));

const load = createRequire(import.meta.url);
const bundle = (): string => join(directory, 'bundle.cjs');
const code = (): string => join(directory, 'run/deep/bundle.code');

const write = (value: number): void =>
  writeFileSync(
    bundle(),
    `(function (exports, require) {
      exports.answer = () => ${value};
      exports.platform = require('node:os').platform();
    })`,
  );

type Exports = { answer(): number; platform: string };

/** What the bundle says, and whether its code was written anew. */
const run = (): { readonly answer: number; readonly platform: string; readonly written: boolean } => {
  const inodeOf = (): number => (existsSync(code()) ? statSync(code()).ino : 0);
  const before = inodeOf();
  const { exports, save } = runCached(bundle(), code(), load);
  const { answer, platform } = exports as Exports;
  const said = answer();
  save();
  return { answer: said, platform, written: inodeOf() !== before };
};

test('the first run keeps its code, and the second runs with it', () => {
  write(1);
  expect(run()).toEqual({ answer: 1, platform: 'linux', written: true });
  expect(statSync(code()).mode & 0o777).toBe(0o644);
  expect(run()).toEqual({ answer: 1, platform: 'linux', written: false });
});

test('a bundle that was changed is not run with the code of the one before', () => {
  write(1);
  run();
  // V8 itself goes by the length alone.
  write(2);
  expect(run()).toMatchObject({ answer: 2, written: true });
  expect(run()).toMatchObject({ answer: 2, written: false });
});

test('code that V8 refuses is replaced', () => {
  // Compiled by nobody in this process, which would remember it.
  write(3);
  const { dev, ino, size, ctimeNs } = statSync(bundle(), { bigint: true });
  const content = Buffer.alloc(4096, ' ');
  content.write([dev, ino, size, ctimeNs].join(':'), 'latin1');
  mkdirSync(dirname(code()), { recursive: true });
  writeFileSync(code(), content, { mode: 0o600 });
  expect(run()).toMatchObject({ answer: 3, written: true });
  expect(run()).toMatchObject({ answer: 3, written: false });
});

test.each([0o620, 0o602])('code of mode %o, which another than root may have written, is not run', (mode) => {
  write(1);
  run();
  chmodSync(code(), mode);
  expect(run()).toMatchObject({ answer: 1, written: true });
});

test('where no code can be kept, the bundle runs all the same', () => {
  write(1);
  writeFileSync(join(directory, 'run'), 'in the way');
  expect(run()).toMatchObject({ answer: 1, written: false });
});
