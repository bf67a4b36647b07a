/** Libraries to preload, compiled where a test wants them. */
import { execFileSync } from 'node:child_process';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** Makes calls fail. */
const FAULTS = fileURLToPath(new URL('../crash/faults/shim.c', import.meta.url));

/** Returns the path to preload. */
export const compileShim = (directory: string, source = FAULTS): string => {
  const library = join(directory, `${basename(source, '.c')}.so`);
  const flags = ['-shared', '-fPIC', '-O1', '-Wall', '-Wextra', '-Werror'];
  execFileSync('gcc', [...flags, '-o', library, source, '-ldl'], { stdio: ['ignore', 'inherit', 'inherit'] });
  return library;
};
