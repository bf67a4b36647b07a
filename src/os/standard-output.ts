import { constants, fstatSync, readFileSync } from 'node:fs';

/** makedev(1, 3), fixed by the kernel's list of devices. */
const NULL_DEVICE = 0x103;

/**
 * Whether this process was started with standard output closed. Node then puts /dev/null in its place, opened for
 * reading and writing, and every write succeeds; a shell that is told to discard opens it for writing alone.
 */
export const isOutputClosed = (): boolean => {
  const facts = fstatSync(1);
  if (!facts.isCharacterDevice() || facts.rdev !== NULL_DEVICE) return false;
  const flags = /^flags:\s*([0-7]+)$/m.exec(readFileSync('/proc/self/fdinfo/1', 'latin1'))?.[1] ?? '0';
  return (Number.parseInt(flags, 8) & (constants.O_WRONLY | constants.O_RDWR)) === constants.O_RDWR;
};
