import { closeSync, constants, fstatSync, openSync, readFileSync, writeSync } from 'node:fs';
import { errnoOf } from '../base/errors.ts';

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

/** A standard stream by its descriptor. */
export type StandardDescriptor = 1 | 2;

/** Whether it may be a terminal: a device that is not the one which swallows everything. */
export const mayBeTerminal = (fd: StandardDescriptor): boolean => {
  const facts = fstatSync(fd);
  return facts.isCharacterDevice() && facts.rdev !== NULL_DEVICE;
};

/** Descriptors that had to be waited for: what comes later must not overtake what their stream still holds. */
const streams = new Set<StandardDescriptor>();

const writeByStream = (fd: StandardDescriptor, data: Uint8Array): Promise<void> =>
  new Promise((resolve, reject) => {
    const stream = fd === 1 ? process.stdout : process.stderr;
    // Each write tells its own failure; as an event it would end the process.
    if (!streams.has(fd)) stream.on('error', () => undefined);
    streams.add(fd);
    stream.write(data, (error) => (error ? reject(error) : resolve()));
  });

/**
 * A descriptor that never makes a write wait: of a pipe one of our own, since the pipe's may be in use by others.
 * Undefined where there is none.
 */
const openAtOnce = (fd: StandardDescriptor): number | undefined => {
  const facts = fstatSync(fd);
  if (facts.isFile() || facts.isCharacterDevice()) return fd;
  if (!facts.isFIFO()) return undefined;
  try {
    return openSync(`/proc/self/fd/${fd}`, constants.O_WRONLY | constants.O_NONBLOCK);
  } catch {
    // Its readers have gone, or it is not ours to open: Node's stream says what is wrong.
    return undefined;
  }
};

/**
 * Writes all of it, without Node's stream as long as nothing has to be waited for: that takes milliseconds to load.
 * Rejects with the system's error.
 */
export const writeStandard = async (fd: StandardDescriptor, data: Uint8Array): Promise<void> => {
  const own = streams.has(fd) ? undefined : openAtOnce(fd);
  if (own === undefined) return await writeByStream(fd, data);
  let done = 0;
  try {
    while (done < data.length) done += writeSync(own, data, done);
  } catch (error) {
    if (errnoOf(error) !== 'EAGAIN') throw error;
    await writeByStream(fd, data.subarray(done));
  } finally {
    if (own !== fd) closeSync(own);
  }
};
