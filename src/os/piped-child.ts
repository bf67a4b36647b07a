/**
 * A child whose standard streams are pipes that another user may open again. Node's own child_process makes
 * socket pairs, and a program that opens /dev/stdout or /dev/stderr fails on those with ENXIO; and a pipe
 * belongs to its maker, so that an unprivileged holder gets EACCES there.
 */
import { spawn } from 'node:child_process';
import { closeSync, fchownSync } from 'node:fs';
import { Socket } from 'node:net';
import { constants } from 'node:os';
import type { Readable, Writable } from 'node:stream';
import koffi from 'koffi';
import { XceError } from '../base/errors.ts';
import { errnoName } from './libc.ts';
import { CHILD_ENV } from './spawn.ts';

const libc = koffi.load('libc.so.6');
type Pipe2 = (fds: Int32Array, flags: number) => number;
const pipe2: Pipe2 = libc.func('int pipe2(_Out_ int *fds, int flags)');
const O_CLOEXEC = 0o2000000;

type Pipe = { readonly readEnd: number; readonly writeEnd: number };

const makePipe = (): Pipe => {
  const fds = new Int32Array(2);
  if (pipe2(fds, O_CLOEXEC) !== 0) {
    throw new XceError('os', `cannot make a pipe: ${errnoName(koffi.errno())}`);
  }
  return { readEnd: fds[0] ?? -1, writeEnd: fds[1] ?? -1 };
};

/** How a child ended: exit code, or signal number; `spawnErrno` when it never started. */
export type ChildEnd = {
  readonly exitCode: number | undefined;
  readonly signal: number | undefined;
  readonly spawnErrno: string | undefined;
};

export type PipedChild = {
  readonly stdin: Writable;
  readonly stdout: Readable;
  readonly stderr: Readable;
  /** Never rejects. The output may still hold unread data then. */
  readonly ended: Promise<ChildEnd>;
  kill(signal: NodeJS.Signals): void;
};

/**
 * Starts one program by absolute path with argv and the fixed environment of children. The pipes belong to
 * `uid` and `gid`. The input reports EPIPE as an error event once nobody reads any more; without a listener of
 * the caller that is no failure of this process.
 */
export const spawnPiped = (
  file: string,
  argv: readonly string[],
  owner: { readonly uid: number; readonly gid: number },
): PipedChild => {
  const pipes: Pipe[] = [];
  const closeAll = (): void => {
    for (const pipe of pipes) {
      closeSync(pipe.readEnd);
      closeSync(pipe.writeEnd);
    }
  };
  try {
    for (let count = 0; count < 3; count += 1) {
      const pipe = makePipe();
      pipes.push(pipe);
      fchownSync(pipe.readEnd, owner.uid, owner.gid);
    }
  } catch (error) {
    closeAll();
    throw error;
  }
  const [input, output, errors] = pipes;
  if (input === undefined || output === undefined || errors === undefined) {
    throw new XceError('bug', 'three pipes were made');
  }
  let child: ReturnType<typeof spawn>;
  try {
    child = spawn(file, argv, {
      env: { ...CHILD_ENV },
      cwd: '/',
      stdio: [input.readEnd, output.writeEnd, errors.writeEnd],
    });
  } catch (error) {
    closeAll();
    throw error;
  }
  closeSync(input.readEnd);
  closeSync(output.writeEnd);
  closeSync(errors.writeEnd);
  const ended = new Promise<ChildEnd>((resolve) => {
    child.once('error', (error) => {
      // Also emitted for a kill() that failed; only a child without pid never started.
      if (child.pid !== undefined) return;
      const errno = 'code' in error && typeof error.code === 'string' ? error.code : 'EUNKNOWN';
      resolve({ exitCode: undefined, signal: undefined, spawnErrno: errno });
    });
    child.once('exit', (code, signal) => {
      resolve({
        exitCode: code ?? undefined,
        signal: signal === null ? undefined : constants.signals[signal],
        spawnErrno: undefined,
      });
    });
  });
  const stdin = new Socket({ fd: input.writeEnd, readable: false, writable: true });
  stdin.on('error', () => {
    stdin.destroy();
  });
  return {
    stdin,
    stdout: new Socket({ fd: output.readEnd, readable: true, writable: false }),
    stderr: new Socket({ fd: errors.readEnd, readable: true, writable: false }),
    ended,
    kill: (signal) => {
      child.kill(signal);
    },
  };
};
