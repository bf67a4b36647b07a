import { readFileSync } from 'node:fs';
import { run } from '../support/cluster/process.ts';
import type { CliHost } from './host.ts';

/** Puts one of the libraries beside this file in front of libc, for every program that the host starts from now on. */
export const preload = async (host: CliHost, name: string): Promise<void> => {
  const [source, library] = [`/etc/${name}.c`, `/etc/${name}.so`];
  host.write(source, readFileSync(new URL(`./${name}.c`, import.meta.url)));
  const argv = ['cc', '-shared', '-fPIC', '-O1', '-o', host.path(library), host.path(source), '-ldl'];
  const end = await run(argv, { timeoutMs: 60_000 });
  if (end.exitCode !== 0) throw new Error(`${name} does not compile: ${end.stderr.toString()}`);
  host.write('/etc/ld.so.preload', `${library}\n`);
};
