/** The command line as a whole: what scripts rely on, and what every command must have. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { repositoryDirectory } from '../support/cluster/product.ts';
import { readCommands } from '../support/surface/commands.ts';
import { renderAll, SNAPSHOT_PATH } from '../support/surface/render.ts';

const commands = await readCommands();

// A change here changes what scripts may write: say so in the CHANGELOG.
test('the commands and their flags are those of the snapshot', async () => {
  const committed: unknown = JSON.parse(readFileSync(join(repositoryDirectory, SNAPSHOT_PATH), 'utf8'));
  const made: unknown = JSON.parse((await renderAll()).get(SNAPSHOT_PATH) ?? '');
  expect(made).toEqual(committed);
});

describe.each(commands)('$name', ({ name, summary, description, examples, flags }) => {
  test('says in one sentence what it does', () => {
    expect(summary).toMatch(/^[A-Z].*\.$/);
    expect(summary.length).toBeLessThanOrEqual(80);
    if (description !== undefined) expect(description).toMatch(/^[A-Z].*\.$/s);
  });

  test('has --json and --config', () => {
    const names = flags.map((flag) => flag.name);
    if (name === 'help') expect(names).toEqual([]);
    else expect(names).toEqual(expect.arrayContaining(['config', 'json']));
  });

  test('describes every flag, and what its value is', () => {
    const odd = flags.filter(
      (flag) => !/^[A-Z].*\.?$/.test(flag.description) || flag.description === '' || flag.value === '',
    );
    expect(odd.map((flag) => flag.name)).toEqual([]);
  });

  test('has no letter twice', () => {
    const letters = flags.flatMap(({ char }) => (char === undefined ? [] : [char]));
    expect(new Set(letters).size).toBe(letters.length);
  });

  test('has examples of itself with flags that it has', () => {
    const known = flags.flatMap((flag) => [
      `--${flag.name}`,
      ...(flag.char === undefined ? [] : [`-${flag.char}`]),
    ]);
    for (const example of examples) {
      expect(example.startsWith(`xce-sandbox ${name} `)).toBe(true);
      expect(`  $ ${example}`.length).toBeLessThanOrEqual(80);
      const own = example.split(' -- ')[0] ?? '';
      const used = own.split(' ').filter((word) => /^--?[a-z]/.test(word));
      expect(used.filter((flag) => !known.includes(flag.split('=')[0] ?? ''))).toEqual([]);
    }
  });
});
