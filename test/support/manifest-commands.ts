/** Every command by the id that oclif gives it; package.json names this as the place where they are. */
import { COMMANDS } from '../../src/main.ts';

const entries = Object.entries(COMMANDS).map(
  async ([name, load]) => [name.replace(' ', ':'), (await load()).default] as const,
);

export const byId = Object.fromEntries(await Promise.all(entries));
