import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { repositoryDirectory } from '../support/cluster/product.ts';

type End = { readonly status: number; readonly stdout: string; readonly stderr: string };

const runProgram = async (words: readonly string[]): Promise<End> => {
  const argv = ['test/support/setup.mjs', ...words];
  try {
    const { stdout, stderr } = await promisify(execFile)(process.execPath, argv, {
      cwd: repositoryDirectory,
    });
    return { status: 0, stdout, stderr };
  } catch (error) {
    if (!(error instanceof Error) || !('stderr' in error)) throw error;
    const { code, stdout, stderr } = error as Error & { code: number; stdout: string; stderr: string };
    return { status: code, stdout, stderr };
  }
};

const USAGE = {
  demo: /^usage: npm run demo \[-- --keep \| --down\]\n/,
  test: /^usage: npm test \[-- TIER\.\.\.\]\n/,
  bench: /^usage: npm run bench -- TOPIC\.\.\. \[--out FILE\]\n/,
};
type Name = keyof typeof USAGE;

test.each(Object.keys(USAGE) as Name[])('npm run %s -- --help says how it is used', async (name) => {
  const { status, stdout, stderr } = await runProgram([name, '--help']);
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  expect(stdout).toMatch(USAGE[name]);
});

test.each<[Name, string]>([
  ['demo', '--frob'],
  ['test', 'frob'],
  ['bench', 'frob'],
])('npm run %s -- %s says what it does not know', async (name, word) => {
  const { status, stdout, stderr } = await runProgram([name, word]);
  expect({ status, stdout }).toEqual({ status: 64, stdout: '' });
  const [first = '', ...rest] = stderr.split('\n');
  expect(first).toMatch(/^xce-sandbox: .*frob/);
  expect(rest.join('\n')).toMatch(USAGE[name]);
});
