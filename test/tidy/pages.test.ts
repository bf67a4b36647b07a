import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { repositoryDirectory } from '../support/cluster/product.ts';
import { readCommands } from '../support/surface/commands.ts';
import { PAGES, renderAll } from '../support/surface/render.ts';
import { listFiles, readSource } from './sources.ts';

const MANDOC = '/usr/bin/mandoc';
const pages = listFiles('man');

const mandoc = (args: readonly string[], page: string): string => {
  try {
    return execFileSync(MANDOC, [...args, join(repositoryDirectory, page)], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'pipe'],
    });
  } catch (error) {
    // lint says what it found with its exit status as well
    if (error instanceof Error && 'stdout' in error && typeof error.stdout === 'string') return error.stdout;
    throw error;
  }
};

const rendered = await renderAll();

test.each(Object.keys(PAGES))('the made parts of %s are what the commands and the errors say', (path) => {
  const committed = readFileSync(join(repositoryDirectory, path), 'utf8');
  expect(committed, 'run: npx tsx test/support/surface/main.ts').toBe(rendered.get(path));
});

describe.each(pages)('%s', (page) => {
  const { text } = readSource(page);

  test.skipIf(!existsSync(MANDOC))('has nothing for mandoc to complain about', () => {
    // other pages of the suite are not installed where this runs
    const found = mandoc(['-T', 'lint', '-W', 'style'], page)
      .split('\n')
      .filter((line) => line !== '' && !/outdated mandoc\.db|referenced manual not found/.test(line));
    expect(found).toEqual([]);
  });

  test.skipIf(!existsSync(MANDOC))('fits into 80 columns', () => {
    // mandoc prints bold and underlined letters with backspaces
    const pieces = mandoc(['-T', 'ascii', '-O', 'width=78'], page).split('\b');
    const plain = pieces
      .map((piece, index) => (index < pieces.length - 1 ? piece.slice(0, -1) : piece))
      .join('');
    expect(plain.split('\n').filter((line) => line.length > 80)).toEqual([]);
  });

  test('refers to pages of the suite that there are', () => {
    const references = [...text.matchAll(/^\.Xr (xce-sandbox\S*) ([1-9])/gm)];
    const missing = references
      .map(([, name, section]) => `man/${name}.${section}`)
      .filter((path) => !pages.includes(path));
    expect(missing).toEqual([]);
  });

  test('is named after what it says it describes', () => {
    const [, name = '', section = ''] = /^\.Dt (\S+) ([1-9])$/m.exec(text) ?? [];
    expect(page).toBe(`man/${name.toLowerCase()}.${section}`);
    expect(text).toContain(`\n.Sh NAME\n.Nm ${name.toLowerCase()}\n.Nd `);
  });
});

/** Command lines in literal blocks, continued lines joined. */
const readExamples = (text: string): readonly string[] =>
  [...text.matchAll(/^\.Bd -literal.*\n([\s\S]*?)^\.Ed$/gm)]
    .flatMap(([, block = '']) => block.replaceAll(/\\e\n\s*/g, '').split('\n'))
    .concat(
      readSource('README.md')
        .text.split('\n')
        .filter((line) => line.startsWith('    '))
        .flatMap((line) => line.split('&&').map((part) => part.trim())),
    )
    .flatMap((line) => /(?:^|\$\()(xce-sandbox [a-z][^|)]*)/.exec(line)?.[1] ?? []);

describe('every example', async () => {
  const commands = await readCommands();
  const examples = readExamples(pages.map((page) => readSource(page).text).join('\n'));

  test('is found', () => expect(examples.length).toBeGreaterThan(10));

  test.each(examples)('%s', (example) => {
    const own = (example.split(' -- ')[0] ?? '').trim().split(/ +/);
    const command = commands
      .filter(({ name }) => own.slice(1).join(' ').startsWith(name))
      .sort((left, right) => right.name.length - left.name.length)[0];
    expect(command, 'it names a command').toBeDefined();
    const known = command?.flags.flatMap(({ name, char }) => [`--${name}`, `-${char ?? ''}`]) ?? [];
    const used = own.filter((word) => word.startsWith('-')).map((word) => word.split('=')[0] ?? '');
    expect(used.filter((flag) => !known.includes(flag))).toEqual([]);
    const required = command?.flags.filter((flag) => flag.isRequired).map(({ name }) => `--${name}`) ?? [];
    expect(required.filter((flag) => !used.includes(flag))).toEqual([]);
  });
});
