/** The end of a process that has a thread in a system call which does not return. */
import { closeSync } from 'node:fs';
import { createRequire } from 'node:module';

type Koffi = typeof import('koffi');

/**
 * Ends this process by _exit(2). Node's own end waits for its threads, and so for ever for one that the kernel holds.
 * What was written to the standard streams is on its way: on Linux, Node writes pipes and files at once. They are
 * closed first, so that their readers see the end even where the kernel keeps the process itself (a thread that no
 * signal reaches).
 */
export const endAbruptly = (status: number): never => {
  // Loaded only now: most runs never come here, and it costs as much as a whole renewal.
  const koffi: Koffi = createRequire(import.meta.url)('koffi');
  const exit = koffi.load('libc.so.6').func('void _exit(int status)');
  closeSync(1);
  closeSync(2);
  exit(status);
  throw new Error('_exit(2) does not return');
};
