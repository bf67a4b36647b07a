/**
 * Starts the command line with compiled code, which each command has of its own: none needs what the others run. A
 * command that hooks call often has a program of its own, which leaves to the whole command line what it does not know.
 */
import { join } from 'node:path';
import { runCached } from '../os/code-cache.ts';
import { type CommandName, findCommand } from './command-names.ts';

type Program = { main(argv: readonly string[]): Promise<number | undefined> };

/** Gone after a boot, and only root makes names there. */
const CODE_DIRECTORY = '/run/xce-sandbox/compiled-code';

const OWN_PROGRAMS: Partial<Record<CommandName, string>> = { 'lease renew': 'renew.cjs' };

const runProgram = async (
  file: string,
  codeName: string,
  argv: readonly string[],
  load: NodeJS.Require,
): Promise<number | undefined> => {
  const codePath = join(CODE_DIRECTORY, codeName);
  const { exports, save } = runCached(join(import.meta.dirname, file), codePath, load);
  const status = await (exports as Program).main(argv);
  // What a refusal runs is less than what the others need.
  if (status === 0) save();
  return status;
};

/** `load` is the `require` of a program of the package. Returns the exit status. */
export const start = async (argv: readonly string[], load: NodeJS.Require): Promise<number | undefined> => {
  const name = findCommand(argv)?.name ?? 'help';
  const own = OWN_PROGRAMS[name];
  const codeName = name.replace(' ', '-');
  const status = own === undefined ? undefined : await runProgram(own, `${codeName}-alone`, argv, load);
  if (status !== undefined) return status;
  // Names of nodes are looked up in half of these threads, and a name that nobody answers for keeps one for seconds.
  process.env['UV_THREADPOOL_SIZE'] = '64';
  return await runProgram('cli.cjs', codeName, argv, load);
};
