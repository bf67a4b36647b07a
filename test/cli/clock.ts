/** A host of the command line whose wall clock can be set off, and which can seem to have booted again. */
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { run } from '../support/cluster/process.ts';
import type { CliHost } from './host.ts';

const SHIM = '/etc/clock-shim.so';
const BOOT_ID = '/proc/sys/kernel/random/boot_id';

/** Gives every program of the host a wall clock of its own. */
export const ownClock = async (host: CliHost): Promise<void> => {
  host.write('/etc/clock-shim.c', readFileSync(new URL('./clock-shim.c', import.meta.url)));
  const argv = [
    'cc',
    '-shared',
    '-fPIC',
    '-O1',
    '-o',
    host.path(SHIM),
    host.path('/etc/clock-shim.c'),
    '-ldl',
  ];
  const end = await run(argv, { timeoutMs: 60_000 });
  if (end.exitCode !== 0) throw new Error(`the clock does not compile: ${end.stderr.toString()}`);
  setClock(host, 0);
  host.write('/etc/ld.so.preload', `${SHIM}\n`);
};

/** How far the wall clock is from the true one, from now on. */
export const setClock = (host: CliHost, offsetMs: number): void => {
  host.write('/etc/clock-offset', `${offsetMs}\n`);
};

/** Another boot id, and nothing below /run any more. */
export const reboot = async (host: CliHost): Promise<void> => {
  host.write('/etc/boot-id', `${randomUUID()}\n`);
  const { status, stderr } = await host.shell(
    `rm -rf /run/xce-sandbox && mount --bind /etc/boot-id ${BOOT_ID}`,
  );
  if (status !== 0) throw new Error(`the host does not boot: ${stderr}`);
};
