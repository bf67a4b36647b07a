/** What the command line offers, read from the commands themselves: for completions, pages and the snapshot. */
import { readdirSync } from 'node:fs';
import { fileURLToPath, pathToFileURL } from 'node:url';

export type FlagFacts = {
  readonly name: string;
  readonly char: string | undefined;
  readonly description: string;
  /** What stands for the value in help; undefined for a switch. */
  readonly value: string | undefined;
  /** The flag may stand alone: its value is in brackets. */
  readonly isValueOptional: boolean;
  readonly isRequired: boolean;
  /** As help shows it, where the flag itself has one. */
  readonly defaultText: string | undefined;
  readonly isRepeatable: boolean;
  /** The only values there are. */
  readonly options: readonly string[];
  /** Every command has it. */
  readonly isGlobal: boolean;
};

export type CommandFacts = {
  /** `lease allocate`. */
  readonly name: string;
  readonly summary: string;
  readonly description: string | undefined;
  readonly examples: readonly string[];
  /** By name; those of every command last. */
  readonly flags: readonly FlagFacts[];
};

type Flag = {
  readonly char?: string;
  readonly description?: string;
  readonly helpValue?: string;
  readonly required?: boolean;
  readonly defaultHelp?: () => Promise<string>;
  readonly multiple?: boolean;
  readonly options?: readonly string[];
  readonly type: 'boolean' | 'option';
};

type CommandClass = {
  readonly summary?: string;
  readonly description?: string;
  readonly examples?: readonly string[];
  readonly flags?: Readonly<Record<string, Flag>>;
  readonly baseFlags?: Readonly<Record<string, Flag>>;
};

const folder = fileURLToPath(new URL('../../../src/commands/', import.meta.url));

const BIN = 'xce-sandbox';

const readFlags = async (
  flags: Readonly<Record<string, Flag>> | undefined,
  isGlobal: boolean,
): Promise<readonly FlagFacts[]> => {
  const facts = await Promise.all(
    Object.entries(flags ?? {}).map(async ([name, flag]) => {
      const value = flag.type === 'boolean' ? undefined : (flag.helpValue ?? (flag.options ?? []).join('|'));
      return {
        name,
        char: flag.char,
        description: flag.description ?? '',
        value,
        isValueOptional: value?.startsWith('[') === true,
        isRequired: flag.required === true,
        defaultText: await flag.defaultHelp?.(),
        isRepeatable: flag.multiple === true,
        options: flag.options ?? [],
        isGlobal,
      };
    }),
  );
  return facts.sort((left, right) => (left.name < right.name ? -1 : 1));
};

/** All commands, by name. */
export const readCommands = async (): Promise<readonly CommandFacts[]> => {
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((file) =>
    file.endsWith('.ts'),
  );
  const commands = files.map(async (file): Promise<CommandFacts> => {
    const { default: command } = (await import(pathToFileURL(`${folder}${file}`).href)) as {
      default: CommandClass;
    };
    return {
      name: file.slice(0, -'.ts'.length).replaceAll('/', ' '),
      summary: command.summary ?? '',
      description: command.description,
      examples: (command.examples ?? []).map((text) => text.replaceAll('<%= config.bin %>', BIN)),
      flags: [...(await readFlags(command.flags, false)), ...(await readFlags(command.baseFlags, true))],
    };
  });
  return (await Promise.all(commands)).sort((left, right) => (left.name < right.name ? -1 : 1));
};
