/** A host of the command line whose wall clock can be set off, and which can seem to have booted again. */
import { randomUUID } from 'node:crypto';
import type { CliHost } from './host.ts';
import { preload } from './preload.ts';

const BOOT_ID = '/proc/sys/kernel/random/boot_id';

/** Gives every program of the host a wall clock of its own. */
export const ownClock = (host: CliHost): void => {
  setClock(host, 0);
  preload(host, 'clock-shim');
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
