/**
 * Pipes for the standard streams of a process that somebody else starts under another uid. Node's own child pipes
 * are socket pairs, and a program that opens /dev/stdout or /dev/stderr fails on those with ENXIO; and a pipe
 * belongs to its maker, so that an unprivileged holder gets EACCES there.
 */
import { closeSync, fchownSync } from 'node:fs';
import { Socket } from 'node:net';
import type { Readable, Writable } from 'node:stream';
import koffi from 'koffi';
import { XceError } from '../base/errors.ts';
import { errnoName } from './libc.ts';

const libc = koffi.load('libc.so.6');
const pipe2: (fds: Int32Array, flags: number) => number = libc.func('int pipe2(_Out_ int *fds, int flags)');
const O_CLOEXEC = 0o2000000;

type Pipe = { readonly readEnd: number; readonly writeEnd: number };

const makePipe = (): Pipe => {
  const fds = new Int32Array(2);
  if (pipe2(fds, O_CLOEXEC) !== 0) {
    throw new XceError('os', `cannot make a pipe: ${errnoName(koffi.errno())}`);
  }
  return { readEnd: fds[0] ?? -1, writeEnd: fds[1] ?? -1 };
};

export type StandardPipes = {
  /** Our ends. Writing to `stdin` when nobody reads any more destroys it and is no failure of this process. */
  readonly stdin: Writable;
  readonly stdout: Readable;
  readonly stderr: Readable;
  /** The other ends, in the order 0, 1, 2. */
  readonly ends: readonly [number, number, number];
  /** Closes the other ends here; whoever was given them keeps them. */
  closeEnds(): void;
  /** Gives up our ends. */
  destroy(): void;
};

/** Makes three pipes that belong to `uid` and `gid`. Throws XceError 'os'. */
export const makeStandardPipes = (owner: { readonly uid: number; readonly gid: number }): StandardPipes => {
  const pipes: Pipe[] = [];
  try {
    for (let count = 0; count < 3; count += 1) {
      const pipe = makePipe();
      pipes.push(pipe);
      fchownSync(pipe.readEnd, owner.uid, owner.gid);
    }
  } catch (error) {
    for (const pipe of pipes) {
      closeSync(pipe.readEnd);
      closeSync(pipe.writeEnd);
    }
    throw error;
  }
  const [input, output, errors] = pipes;
  if (input === undefined || output === undefined || errors === undefined) {
    throw new XceError('bug', 'three pipes were made');
  }
  const stdin = new Socket({ fd: input.writeEnd, readable: false, writable: true });
  stdin.on('error', () => {
    stdin.destroy();
  });
  const stdout = new Socket({ fd: output.readEnd, readable: true, writable: false });
  const stderr = new Socket({ fd: errors.readEnd, readable: true, writable: false });
  const ends = [input.readEnd, output.writeEnd, errors.writeEnd] as const;
  return {
    stdin,
    stdout,
    stderr,
    ends,
    closeEnds: () => {
      for (const fd of ends) closeSync(fd);
    },
    destroy: () => {
      for (const stream of [stdin, stdout, stderr]) stream.destroy();
    },
  };
};
