/** Every committed file that is made from the commands and the table of errors, by its path. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { repositoryDirectory } from '../cluster/product.ts';
import { type CommandFacts, readCommands } from './commands.ts';
import { renderBash, renderFish, renderZsh, type Surface } from './completions.ts';
import { renderPage } from './pages.ts';

type PackageFile = {
  readonly oclif: { readonly topics: Readonly<Record<string, { readonly description: string }>> };
};

const readTopics = (): Readonly<Record<string, string>> => {
  const { oclif } = JSON.parse(
    readFileSync(join(repositoryDirectory, 'package.json'), 'utf8'),
  ) as PackageFile;
  return Object.fromEntries(
    Object.entries(oclif.topics).map(([name, { description }]) => [name, description]),
  );
};

/** What scripts may rely on: names, letters and kinds; not the texts. */
const renderSnapshot = (commands: readonly CommandFacts[]): string =>
  `${JSON.stringify(
    commands.map(({ name, flags }) => ({
      command: name,
      flags: flags.map(({ name: flag, char, value, isRequired, isRepeatable }) =>
        [
          char === undefined ? `--${flag}` : `-${char}, --${flag}`,
          ...(value === undefined ? [] : [value]),
          ...(isRequired ? ['required'] : []),
          ...(isRepeatable ? ['repeatable'] : []),
        ].join(' '),
      ),
    })),
    null,
    2,
  )}\n`;

export const SNAPSHOT_PATH = 'test/tidy/commands.snapshot.json';

/** Pages, and the parts of them that are made. */
export const PAGES: Readonly<Record<string, readonly string[]>> = {
  'man/xce-sandbox.1': ['global flags', 'commands', 'exit status'],
  'man/xce-sandbox-errors.7': ['errors'],
};

export const renderAll = async (): Promise<ReadonlyMap<string, string>> => {
  const commands = await readCommands();
  const surface: Surface = { commands, topics: readTopics() };
  return new Map([
    ['completions/xce-sandbox.bash', renderBash(surface)],
    ['completions/xce-sandbox.zsh', renderZsh(surface)],
    ['completions/xce-sandbox.fish', renderFish(surface)],
    [SNAPSHOT_PATH, renderSnapshot(commands)],
    ...Object.entries(PAGES).map(([path, parts]): [string, string] => [
      path,
      renderPage(readFileSync(join(repositoryDirectory, path), 'utf8'), surface, parts),
    ]),
  ]);
};
