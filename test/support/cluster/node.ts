/**
 * One node: systemd as PID 1 in systemd-nspawn, on an overlay, in a cgroup and a network namespace of its own.
 * It can be switched off, killed, cut off and booted again; its files stay, its /run and its boot id do not.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, constants, existsSync, openSync, readFileSync, readSync } from 'node:fs';
import { Socket } from 'node:net';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { CANARY_PATH, READY_PATH } from './furnish.ts';
import {
  collect,
  describeEnd,
  enterCgroups,
  type Finished,
  feed,
  identify,
  isAlive,
  mustRun,
  type ProcessId,
  readChildren,
} from './process.ts';
import { clearCgroups } from './scope.ts';

export type ExecOptions = {
  readonly input?: Uint8Array | string;
  /** 60,000 unless told; then the program is killed and the result says `timedOut`. */
  readonly timeoutMs?: number;
  readonly env?: Readonly<Record<string, string>>;
  /** Also the gid unless `gid` is given. Supplementary groups are dropped. */
  readonly uid?: number;
  readonly gid?: number;
  readonly outputBytesMax?: number;
};

/** A program that runs on a node. Whoever spawns it reads its streams. */
export type Spawned = {
  /** Its pid on the host (the node's own number differs). */
  readonly hostPid: number;
  readonly stdin: Writable;
  readonly stdout: Readable;
  readonly stderr: Readable;
  /** Settles once it has ended and its streams are closed. */
  readonly ended: Promise<{ readonly exitCode: number | null; readonly signal: NodeJS.Signals | null }>;
  /** Signals the program itself. Without effect once it has ended. */
  kill(signal: NodeJS.Signals): void;
};

export type NodeSpec = {
  readonly name: string;
  readonly address: string;
  /** Directory of the node inside the scope's directory. */
  readonly directory: string;
  /** The node's own cgroup, one per hierarchy. */
  readonly cgroups: readonly string[];
  readonly machine: string;
  /** Files that stand for its network namespace and for the one of the bridge. */
  readonly netns: string;
  readonly hubNetns: string;
  readonly hubPort: string;
  /** [host path, path on the node] */
  readonly binds: readonly (readonly [string, string])[];
};

const NODE_ENV = {
  PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
  LANG: 'C.UTF-8',
  HOME: '/root',
  TERM: 'dumb',
} as const;

/** Says on descriptor 3 that it runs on the node, then becomes the program. 127: no such program. */
const STARTER = ['/bin/sh', '-c', 'echo started >&3 && exec "$@" 3>&-', 'sh'] as const;

/** SIGRTMIN+4 as systemd(1) takes it, with the C library's SIGRTMIN of 34. */
const SIGNAL_POWER_OFF = 38;

const BOOT_MS_MAX = 90_000;
const POWER_OFF_MS_MAX = 60_000;

const tailOf = (path: string): string => (existsSync(path) ? readFileSync(path, 'utf8').slice(-3000) : '');

/** Both ends, so that the open neither waits nor sees an end of file. */
const openPipe = (path: string): number => openSync(path, constants.O_RDWR | constants.O_NONBLOCK);

/** What is in the pipe now; at most 64 KiB, which is what a pipe holds. */
const readPipe = (pipe: number): string => {
  const buffer = Buffer.alloc(1 << 16);
  try {
    return buffer.toString('utf8', 0, readSync(pipe, buffer));
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'EAGAIN') return '';
    throw error;
  }
};

const within = async <T>(promise: Promise<T>, timeoutMs: number, what: string): Promise<T> => {
  let timer: NodeJS.Timeout | undefined;
  const deadline = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: not within ${timeoutMs} ms`)), timeoutMs);
  });
  try {
    return await Promise.race([promise, deadline]);
  } finally {
    clearTimeout(timer);
  }
};

export class Node {
  readonly name: string;
  readonly address: string;
  readonly #spec: NodeSpec;
  #nspawn: ChildProcess | undefined;
  #ended: Promise<string> = Promise.resolve('not booted');
  #leader: ProcessId | undefined;
  #canary: number | undefined;
  #sshRuns = '';

  constructor(spec: NodeSpec) {
    this.name = spec.name;
    this.address = spec.address;
    this.#spec = spec;
  }

  /** Its root file system on the host. Do not write there while the node is up; /run, /tmp and /shared are not in it. */
  get rootPath(): string {
    return join(this.#spec.directory, 'root');
  }

  get bootLogPath(): string {
    return join(this.#spec.directory, 'boot.log');
  }

  get running(): boolean {
    return this.#leader !== undefined && isAlive(this.#leader);
  }

  /** Host pid of the node's PID 1. */
  get leaderPid(): number {
    if (this.#leader === undefined || !isAlive(this.#leader)) throw new Error(`node ${this.name} is not up`);
    return this.#leader.pid;
  }

  /** Boots and resolves when multi-user.target is reached. */
  async boot(): Promise<void> {
    if (this.#nspawn !== undefined) throw new Error(`node ${this.name} is up already`);
    const { directory, cgroups } = this.#spec;
    const readyPipe = join(directory, 'ready');
    const canaryPipe = join(directory, 'ssh-canary');
    if (this.#canary === undefined) {
      await mustRun(['mkfifo', '-m', '666', readyPipe, canaryPipe]);
      this.#canary = openPipe(canaryPipe);
    }
    const ready = new Socket({ fd: openPipe(readyPipe), writable: false });
    const log = openSync(this.bootLogPath, 'a');
    const [file, ...argv] = enterCgroups(cgroups, [
      'systemd-nspawn',
      '-q',
      '--register=no',
      '--keep-unit',
      '--boot',
      `--directory=${this.rootPath}`,
      `--machine=${this.#spec.machine}`,
      `--hostname=${this.name}`,
      `--network-namespace-path=${this.#spec.netns}`,
      '--resolv-conf=off',
      '--timezone=off',
      '--system-call-filter=bpf',
      '--capability=CAP_BPF',
      '--link-journal=no',
      `--bind=${readyPipe}:${READY_PATH}`,
      `--bind=${canaryPipe}:${CANARY_PATH}`,
      ...this.#spec.binds.map(([host, node]) => `--bind=${host}:${node}`),
    ]);
    if (file === undefined) throw new Error('nothing to start');
    const nspawn = spawn(file, argv, {
      stdio: ['ignore', log, log],
      detached: true,
      cwd: '/',
      env: { PATH: NODE_ENV.PATH, LANG: NODE_ENV.LANG, SYSTEMD_NSPAWN_UNIFIED_HIERARCHY: '1' },
    });
    closeSync(log);
    this.#nspawn = nspawn;
    this.#ended = new Promise((resolve) => {
      nspawn.once('error', (error) => resolve(String(error)));
      nspawn.once('close', (code, signal) => resolve(`exit ${code ?? signal}`));
    });
    nspawn.unref(); // a forgotten node must not keep its owner alive; the reaper ends it
    try {
      await within(
        Promise.race([
          new Promise<void>((resolve, reject) => {
            ready.once('data', () => resolve());
            ready.once('error', reject);
          }),
          this.#ended.then((end) => {
            throw new Error(`node ${this.name} ended before it was up: ${end}`);
          }),
        ]),
        BOOT_MS_MAX,
        `boot of node ${this.name}`,
      );
    } catch (error) {
      throw new Error(
        `${error instanceof Error ? error.message : String(error)}\n${tailOf(this.bootLogPath)}`,
      );
    } finally {
      ready.destroy();
    }
    const leaders = readChildren(nspawn.pid ?? 0).filter((pid) =>
      /^NSpid:.*\t1$/m.test(readFileSync(`/proc/${pid}/status`, 'latin1')),
    );
    const [leader] = leaders;
    if (leader === undefined) throw new Error(`node ${this.name}: its PID 1 is not to be found`);
    this.#leader = identify(leader);
  }

  #start(argv: readonly string[], options: ExecOptions, stdio: readonly 'pipe'[]): ChildProcess {
    const identity =
      options.uid === undefined
        ? []
        : ['--setuid', String(options.uid), '--setgid', String(options.gid ?? options.uid)];
    const target = ['--target', String(this.leaderPid), '-m', '-u', '-i', '-n', '-p', '-C', '--root', '--wd'];
    return spawn('nsenter', [...target, ...identity, '--', ...argv], {
      stdio: [...stdio],
      detached: true,
      env: { ...NODE_ENV, ...options.env },
    });
  }

  /**
   * nsenter stays behind as the parent: it passes on how the program ended, but no signals; and it stops itself when
   * the program is stopped.
   */
  static #signal(child: ChildProcess, signal: NodeJS.Signals): void {
    if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const [program] = readChildren(child.pid);
    try {
      process.kill(program ?? child.pid, signal);
      if (signal === 'SIGCONT' || signal === 'SIGKILL') process.kill(child.pid, 'SIGCONT');
    } catch {
      // it ended by itself in between
    }
  }

  /** Runs a program as root (or `uid`) on the node, found in the usual PATH there; never rejects for how it ends. */
  async exec(argv: readonly string[], options: ExecOptions = {}): Promise<Finished> {
    const child = this.#start(argv, options, ['pipe', 'pipe', 'pipe']);
    feed(child, options.input);
    return await collect(child, {
      timeoutMs: options.timeoutMs ?? 60_000,
      kill: () => Node.#signal(child, 'SIGKILL'),
      ...(options.outputBytesMax === undefined ? {} : { outputBytesMax: options.outputBytesMax }),
    });
  }

  /** As exec, for what must succeed; the error carries the output. Returns stdout as text. */
  async must(argv: readonly string[], options: ExecOptions = {}): Promise<string> {
    const end = await this.exec(argv, options);
    if (end.exitCode !== 0 || end.timedOut) {
      const said = Buffer.concat([end.stdout, end.stderr]).toString('utf8').trim().slice(-4000);
      throw new Error(`${this.name}: ${argv.join(' ')}: ${describeEnd(end)}\n${said}`);
    }
    return end.stdout.toString('utf8');
  }

  /** Starts a program and resolves when it runs on the node. It ends with the node at the latest. */
  async spawn(
    argv: readonly string[],
    options: Omit<ExecOptions, 'timeoutMs' | 'outputBytesMax'> = {},
  ): Promise<Spawned> {
    const child = this.#start([...STARTER, ...argv], options, ['pipe', 'pipe', 'pipe', 'pipe']);
    const { stdin, stdout, stderr } = child;
    const started = child.stdio[3] as Readable | null | undefined;
    if (stdin === null || stdout === null || stderr === null || started === null || started === undefined) {
      throw new Error('no pipes');
    }
    stdin.on('error', () => undefined); // a program need not read its input
    const ended = new Promise<{ exitCode: number | null; signal: NodeJS.Signals | null }>((resolve) => {
      child.once('close', (exitCode, signal) => resolve({ exitCode, signal }));
    });
    await new Promise<void>((resolve, reject) => {
      child.once('error', reject);
      started.once('data', () => resolve());
      child.once('exit', (code, signal) =>
        reject(new Error(`${argv.join(' ')}: not started: ${code ?? signal}`)),
      );
    });
    started.destroy();
    if (options.input !== undefined) feed(child, options.input);
    const [hostPid] = readChildren(child.pid ?? 0);
    return {
      hostPid: hostPid ?? 0,
      stdin,
      stdout,
      stderr,
      ended,
      kill: (signal) => Node.#signal(child, signal),
    };
  }

  /** Writes a file on the running node, with its parent directories. */
  async writeFile(
    path: string,
    content: Uint8Array | string,
    facts: { readonly mode?: number; readonly uid?: number; readonly gid?: number } = {},
  ): Promise<void> {
    const { mode = 0o644, uid = 0, gid = uid } = facts;
    const script = 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1" && chown -- "$3" "$1" && chmod "$2" "$1"';
    await this.must(['/bin/sh', '-c', script, 'sh', path, mode.toString(8), `${uid}:${gid}`], {
      input: content,
    });
  }

  async readFile(path: string, bytesMax = 64 << 20): Promise<Buffer> {
    const end = await this.exec(['cat', '--', path], { outputBytesMax: bytesMax });
    if (end.exitCode !== 0 || end.truncated) {
      throw new Error(
        `${this.name}:${path}: ${end.truncated ? `over ${bytesMax} bytes` : end.stderr.toString('utf8')}`,
      );
    }
    return end.stdout;
  }

  /** Writes a unit file and reloads systemd; then enables and starts it if told. */
  async installUnit(
    unit: string,
    text: string,
    options: { readonly start?: boolean; readonly enable?: boolean } = {},
  ): Promise<void> {
    await this.writeFile(`/etc/systemd/system/${unit}`, text);
    await this.must(['systemctl', 'daemon-reload']);
    if (options.enable === true) await this.must(['systemctl', 'enable', unit]);
    if (options.start === true) await this.must(['systemctl', 'start', unit]);
  }

  /** What anything on the node, in a sandbox or not, has called ssh with since it was first booted; a line each. */
  readSshRuns(): readonly string[] {
    if (this.#canary !== undefined) this.#sshRuns += readPipe(this.#canary);
    return this.#sshRuns.split('\n').filter((line) => line !== '');
  }

  async #gone(): Promise<void> {
    await within(this.#ended, POWER_OFF_MS_MAX, `end of node ${this.name}`);
    this.#nspawn = undefined;
    this.#leader = undefined;
    await clearCgroups(this.#spec.cgroups);
  }

  /** An orderly shutdown: services are stopped first. */
  async powerOff(): Promise<void> {
    process.kill(this.leaderPid, SIGNAL_POWER_OFF);
    await this.#gone();
  }

  /** As a node whose power fails: every process ends at once. */
  async killHard(): Promise<void> {
    process.kill(this.leaderPid, 'SIGKILL');
    await this.#gone();
  }

  async #setPort(state: 'up' | 'down'): Promise<void> {
    const ip = ['ip', 'link', 'set', 'dev', this.#spec.hubPort, state];
    await mustRun(['nsenter', `--net=${this.#spec.hubNetns}`, '--', ...ip]);
  }

  /** Pulls the network cable: the node sees no carrier, and nothing gets through. */
  async linkDown(): Promise<void> {
    await this.#setPort('down');
  }

  async linkUp(): Promise<void> {
    await this.#setPort('up');
  }
}
