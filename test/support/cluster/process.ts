/**
 * Child processes of the harness: by argv, with a deadline, bounded output and results instead of exceptions.
 */
import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';

export type Finished = {
  /** null when a signal ended it or it never started. */
  readonly exitCode: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
  readonly timedOut: boolean;
  /** More came than `outputBytesMax`; the rest was read and dropped. */
  readonly truncated: boolean;
};

export type RunOptions = {
  readonly input?: Uint8Array | string;
  readonly timeoutMs?: number;
  readonly env?: NodeJS.ProcessEnv;
  readonly cwd?: string;
  readonly outputBytesMax?: number;
};

const OUTPUT_BYTES_MAX = 8 << 20;
/** How long output may still come from a grandchild that kept the pipe after the child has exited. */
const LINGER_MS = 2000;

/** Collects what a child writes and says how it ended. `kill` is called once when the deadline passes. */
export const collect = (
  child: ChildProcess,
  options: { readonly timeoutMs: number; readonly outputBytesMax?: number; readonly kill: () => void },
): Promise<Finished> =>
  new Promise((resolve, reject) => {
    const bytesMax = options.outputBytesMax ?? OUTPUT_BYTES_MAX;
    let timedOut = false;
    let truncated = false;
    const gather = (stream: NodeJS.ReadableStream | null): Buffer[] => {
      const chunks: Buffer[] = [];
      let length = 0;
      stream?.on('data', (chunk: Buffer) => {
        const room = bytesMax - length;
        if (chunk.length > room) truncated = true;
        if (room <= 0) return;
        const kept = chunk.length > room ? chunk.subarray(0, room) : chunk;
        chunks.push(kept);
        length += kept.length;
      });
      return chunks;
    };
    const stdout = gather(child.stdout);
    const stderr = gather(child.stderr);
    const deadline = setTimeout(() => {
      timedOut = true;
      options.kill();
    }, options.timeoutMs);
    let linger: NodeJS.Timeout | undefined;
    child.once('error', (error) => {
      clearTimeout(deadline);
      reject(error);
    });
    child.once('exit', () => {
      linger = setTimeout(() => {
        child.stdout?.destroy();
        child.stderr?.destroy();
      }, LINGER_MS);
    });
    child.once('close', (exitCode, signal) => {
      clearTimeout(deadline);
      clearTimeout(linger);
      resolve({
        exitCode,
        signal,
        stdout: Buffer.concat(stdout),
        stderr: Buffer.concat(stderr),
        timedOut,
        truncated,
      });
    });
  });

/** Feeds a child's stdin. A child that does not read to the end is not an error of the harness. */
export const feed = (child: ChildProcess, input: Uint8Array | string | undefined): void => {
  child.stdin?.on('error', () => undefined);
  child.stdin?.end(input);
};

/** Tools of the system lie in sbin as well, which the PATH after su(1) lacks. */
const TOOL_PATH = `${process.env['PATH'] ?? '/usr/bin:/bin'}:/usr/local/sbin:/usr/sbin:/sbin`;

export const run = async (argv: readonly string[], options: RunOptions = {}): Promise<Finished> => {
  const [file, ...rest] = argv;
  if (file === undefined) throw new Error('run: empty argv');
  const spawnOptions: SpawnOptions = {
    stdio: [options.input === undefined ? 'ignore' : 'pipe', 'pipe', 'pipe'],
    env: options.env ?? { ...process.env, PATH: TOOL_PATH },
    ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
  };
  const child = spawn(file, rest, spawnOptions);
  if (options.input !== undefined) feed(child, options.input);
  return await collect(child, {
    timeoutMs: options.timeoutMs ?? 60_000,
    kill: () => child.kill('SIGKILL'),
    ...(options.outputBytesMax === undefined ? {} : { outputBytesMax: options.outputBytesMax }),
  });
};

export const describeEnd = (end: Finished): string =>
  end.timedOut ? 'deadline passed' : end.signal === null ? `exit ${end.exitCode}` : `signal ${end.signal}`;

/** Runs a program that must succeed; the error carries the end of what it said. */
export const mustRun = async (argv: readonly string[], options: RunOptions = {}): Promise<Finished> => {
  const end = await run(argv, options);
  if (end.exitCode !== 0 || end.timedOut) {
    const said = Buffer.concat([end.stdout, end.stderr]).toString('utf8').trim().slice(-4000);
    throw new Error(`${argv.join(' ')}: ${describeEnd(end)}${said === '' ? '' : `\n${said}`}`);
  }
  return end;
};

/** A process that cannot be mistaken for a later one of the same number. */
export type ProcessId = { readonly pid: number; readonly startTicks: string; readonly bootId: string };

const readBootId = (): string => readFileSync('/proc/sys/kernel/random/boot_id', 'latin1').trim();

/** proc(5) stat: the fields after the parenthesised name; [0] is the state, [19] the start time. */
const readStat = (pid: number): readonly string[] | undefined => {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  } catch {
    return undefined; // no such process
  }
};

export const identify = (pid: number): ProcessId => {
  const startTicks = readStat(pid)?.[19];
  if (startTicks === undefined) throw new Error(`process ${pid} is gone`);
  return { pid, startTicks, bootId: readBootId() };
};

export const isAlive = (id: ProcessId): boolean => {
  if (id.bootId !== readBootId()) return false;
  const stat = readStat(id.pid);
  return stat !== undefined && stat[19] === id.startTicks && stat[0] !== 'Z';
};

/** Host pids of the children of a process (proc(5) children). */
export const readChildren = (pid: number): readonly number[] => {
  try {
    return readFileSync(`/proc/${pid}/task/${pid}/children`, 'latin1')
      .trim()
      .split(' ')
      .filter(Boolean)
      .map(Number);
  } catch {
    return []; // no such process
  }
};

/**
 * Polls a fact of the kernel that no event announces (a cgroup of the v1 hierarchy becoming empty, a process
 * that is not our child ending). False when the deadline passed.
 */
export const pollUntil = async (fact: () => boolean, timeoutMs: number): Promise<boolean> => {
  const deadline = performance.now() + timeoutMs;
  while (!fact()) {
    if (performance.now() > deadline) return false;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return true;
};

/**
 * argv that first makes these cgroups (not their parents) and moves itself into them, so that not even its first child
 * is outside.
 */
export const enterCgroups = (cgroups: readonly string[], argv: readonly string[]): readonly string[] => {
  const script =
    'n=$1; shift; while [ "$n" -gt 0 ]; do [ -d "$1" ] || mkdir "$1" || exit 98; echo $$ >"$1/cgroup.procs" || exit 98; shift; n=$((n-1)); done; exec "$@"';
  return ['/bin/sh', '-c', script, 'sh', String(cgroups.length), ...cgroups, ...argv];
};
