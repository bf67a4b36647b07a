/** The command lines of the programs behind `npm test`, `npm run demo` and `npm run bench`. */
import { type ParseArgsConfig, parseArgs } from 'node:util';

type Options = NonNullable<ParseArgsConfig['options']>;

type Values<T extends Options> = ReturnType<
  typeof parseArgs<{ options: T; allowPositionals: true }>
>['values'];

/**
 * What `options` allow, with the words between; or ends the program: after --help with its usage and status 0, else
 * with what is wrong, the usage and status 64. `findFault` says what is wrong with the words.
 */
export const readArguments = <const T extends Options>(
  { options, usage }: { readonly options: T; readonly usage: string },
  findFault: (words: readonly string[]) => string | undefined,
): { readonly values: Values<T>; readonly words: readonly string[] } => {
  const refuse = (fault: string): never => {
    process.stderr.write(`xce-sandbox: ${fault}\n${usage}\n`);
    process.exit(64);
  };
  if (process.argv.slice(2).some((word) => word === '--help' || word === '-h')) {
    process.stdout.write(`${usage}\n`);
    process.exit(0);
  }
  try {
    const { values, positionals } = parseArgs({ options, allowPositionals: true });
    const fault = findFault(positionals);
    return fault === undefined ? { values, words: positionals } : refuse(fault);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    // Only the first sentence is about what was written.
    return refuse(error.message.split(/[.;] /)[0] ?? error.message);
  }
};

/** What is wrong with words that are none of the names. */
export const findUnknown = (
  what: string,
  words: readonly string[],
  names: readonly string[],
): string | undefined => {
  const unknown = words.filter((word) => !names.includes(word));
  return unknown.length === 0 ? undefined : `no such ${what}: ${unknown.join(' ')}`;
};
