/** The commands by name, known before any of them is loaded. */
export const COMMAND_NAMES = [
  'config show',
  'epilog',
  'help',
  'launch',
  'lease allocate',
  'lease audit',
  'lease compact',
  'lease dump',
  'lease expire',
  'lease init',
  'lease list',
  'lease probe',
  'lease reclaim',
  'lease release',
  'lease renew',
  'lease repair',
  'lease show',
  'lease takeover',
  'lease verify',
  'lease watch',
  'normalise',
  'pki init',
  'pki issue',
  'pki revoke',
  'prolog',
  'reconcile',
  'status',
  'stop',
  'worker metrics',
] as const;

export type CommandName = (typeof COMMAND_NAMES)[number];

const isCommandName = (name: string): name is CommandName =>
  (COMMAND_NAMES as readonly string[]).includes(name);

/** No command has more words. */
const WORDS_MAX = 2;

/** The words in front of the first flag. */
export const leadingWords = (argv: readonly string[]): readonly string[] => {
  const end = argv.findIndex((word) => word.startsWith('-'));
  return end === -1 ? argv : argv.slice(0, end);
};

const HELP_FLAGS: readonly string[] = ['--help', '-h'];

/** Whether help is asked for by a flag: behind `--` stand the words of a job. */
export const wantsHelp = (argv: readonly string[]): boolean => {
  const end = argv.indexOf('--');
  return (end === -1 ? argv : argv.slice(0, end)).some((word) => HELP_FLAGS.includes(word));
};

export type FoundCommand = { readonly name: CommandName; readonly rest: readonly string[] };

/** The command that words begin with, and those behind it. */
export const commandAt = (words: readonly string[]): FoundCommand | undefined => {
  for (let count = WORDS_MAX; count > 0; count -= 1) {
    const name = words.slice(0, count).join(' ');
    if (isCommandName(name)) return { name, rest: words.slice(count) };
  }
  return undefined;
};

/** The command that a command line begins with and that it wants to be run, and its arguments. */
export const findCommand = (argv: readonly string[]): FoundCommand | undefined =>
  wantsHelp(argv) ? undefined : commandAt(argv);
