/**
 * `lease renew` by itself, for hooks that call it often: less to load, and nothing else is different. Whoever asks for
 * more than the command itself, such as help, colours or what is wrong with a word, gets it from the whole command line.
 */
import { runCommandLine } from './cli/main.ts';

/** As runCommandLine; undefined where the whole command line is to run it. */
export const main = (argv: readonly string[]): Promise<number | undefined> =>
  runCommandLine(argv, { 'lease renew': () => import('./commands/lease/renew.ts') });
