import { execa } from 'execa';
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
 * output, and reports what happened without throwing.
 */
export const runChild = async (
  file: string,
  argv: readonly string[],
  options: {
    readonly timeoutMs: number;
    readonly input?: Uint8Array;
    readonly env?: Readonly<Record<string, string>>;
  },
): Promise<ChildResult> => {
  const result = await execa(file, argv, {
    env: { ...CHILD_ENV, ...options.env },
    extendEnv: false,
    cwd: '/',
    encoding: 'buffer',
    reject: false,
    stripFinalNewline: false,
    timeout: options.timeoutMs,
    forceKillAfterDelay: 1000,
    maxBuffer: LIMITS.childOutputBytesMax,
    ...(options.input === undefined ? { stdin: 'ignore' as const } : { input: options.input }),
  });
  return {
    exitCode: result.exitCode,
    signal: result.signal,
    spawnErrno: result.exitCode === undefined && result.signal === undefined ? result.code : undefined,
    timedOut: result.timedOut,
    truncated: result.isMaxBuffer,
    stdout: Buffer.from(result.stdout ?? []),
    stderr: Buffer.from(result.stderr ?? []),
  };
};
