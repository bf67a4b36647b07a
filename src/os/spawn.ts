import { execa } from 'execa';
import { errnoOf } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';

/** What a finished child left. `signal` is set when a signal ended it; `spawnErrno` when it never started. */
export type ChildResult = {
  readonly exitCode: number | undefined;
  readonly signal: string | undefined;
  readonly spawnErrno: string | undefined;
  readonly timedOut: boolean;
  readonly truncated: boolean;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
};

/** Nothing of the caller's environment reaches a child. */
export const CHILD_ENV = {
  PATH: '/usr/sbin:/usr/bin:/sbin:/bin',
  LANG: 'C.UTF-8',
  LC_ALL: 'C.UTF-8',
} as const;

/**
 * Runs one program by absolute path with argv, a fixed environment, a deadline in milliseconds and bounded
 * output, and reports what happened without throwing. At the deadline its whole process group is killed and its
 * pipes are given up, so that a grandchild that holds them open does not hold us.
 */
export const runChild = async (
  file: string,
  argv: readonly string[],
  options: {
    readonly timeoutMs: number;
    readonly input?: Uint8Array;
    readonly env?: Readonly<Record<string, string>>;
    /** Bound of stdout, and of stderr. */
    readonly outputBytesMax?: number;
  },
): Promise<ChildResult> => {
  const child = execa(file, argv, {
    env: { ...CHILD_ENV, ...options.env },
    extendEnv: false,
    cwd: '/',
    encoding: 'buffer',
    reject: false,
    stripFinalNewline: false,
    detached: true,
    maxBuffer: options.outputBytesMax ?? LIMITS.childOutputBytesMax,
    ...(options.input === undefined ? { stdin: 'ignore' as const } : { input: options.input }),
  });
  let timedOut = false;
  const deadline = setTimeout(() => {
    timedOut = true;
    if (child.pid !== undefined) killGroup(child.pid);
    child.stdout?.destroy();
    child.stderr?.destroy();
  }, options.timeoutMs);
  const result = await child;
  clearTimeout(deadline);
  return {
    exitCode: result.exitCode,
    signal: result.signal,
    spawnErrno: result.exitCode === undefined && result.signal === undefined ? result.code : undefined,
    timedOut,
    truncated: result.isMaxBuffer,
    stdout: Buffer.from(result.stdout ?? []),
    stderr: Buffer.from(result.stderr ?? []),
  };
};

const killGroup = (leader: number): void => {
  try {
    process.kill(-leader, 'SIGKILL');
  } catch (error) {
    if (errnoOf(error) !== 'ESRCH') throw error; // it ended just now
  }
};
