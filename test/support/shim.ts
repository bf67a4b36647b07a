/** The library that makes calls fail (test/crash/faults/shim.c), compiled where a test wants it. */
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const SOURCE = fileURLToPath(new URL('../crash/faults/shim.c', import.meta.url));

/** Returns the path to preload. */
export const compileShim = (directory: string): string => {
  const library = join(directory, 'shim.so');
  const flags = ['-shared', '-fPIC', '-O1', '-Wall', '-Wextra', '-Werror'];
  execFileSync('gcc', [...flags, '-o', library, SOURCE, '-ldl'], { stdio: ['ignore', 'inherit', 'inherit'] });
  return library;
};
