import { fileURLToPath } from 'node:url';
import { compileShim } from '../support/shim.ts';
import type { CliHost } from './host.ts';

/** Puts one of the libraries beside this file in front of libc, for every program that the host starts from now on. */
export const preload = (host: CliHost, name: string): void => {
  compileShim(host.path('/etc'), fileURLToPath(new URL(`./${name}.c`, import.meta.url)));
  host.write('/etc/ld.so.preload', `/etc/${name}.so\n`);
};
