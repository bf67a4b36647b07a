/**
 * A guest kernel for tests of what the host's kernel lacks: Debian's user-mode-linux, an ordinary process whose root
 * file system is a directory of the host (hostfs). It has no network but its own. Programs are started in it by an agent
 * on a serial line. It is slow, and has one processor.
 *
 * It lives in a cgroup of its scope: `killHard` is its power failure, and nothing of it outlives the scope.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import {
  chmodSync,
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { Duplex, PassThrough, type Readable } from 'node:stream';
import { finished } from 'node:stream/promises';
import { bundleFile } from '../bundle.ts';
import { describeEnd, enterCgroups, type Finished, mustRun } from '../cluster/process.ts';
import { clearCgroups, type Scope } from '../cluster/scope.ts';
import { encodeFrame, type GuestReply, type GuestRequest, Lines } from './guest-protocol.ts';

/** Where a program of the work tree can find the product's own native packages. */
const PRODUCT = '/usr/lib/node_modules/xce-sandbox';

const BOOT_MS_MAX = 120_000;
const OUTPUT_BYTES_MAX = 8 << 20;

const MOUNTS = `#!/bin/sh
mount -t proc proc /proc
# node would use it, and this kernel then frees pages that are in use
echo 2 >/proc/sys/kernel/io_uring_disabled
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
ip link set lo up
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/root TERM=dumb
`;

const AGENT = `exec 3<>/dev/ttyS0
stty raw -echo <&3
node /guest/agent.mjs
echo o >/proc/sysrq-trigger
exec sleep infinity
`;

/** systemd finds /run and /tmp as it likes them; the agent is a unit of its own. */
const INIT = {
  agent: `${MOUNTS}mount -t tmpfs tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
${AGENT}`,
  systemd: `${MOUNTS}exec /lib/systemd/systemd`,
} as const;

const AGENT_UNIT = `[Unit]
After=multi-user.target
[Service]
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8
ExecStart=/bin/sh /guest/agent.sh
`;

/** A path in the guest from which a bundled program finds the native packages of the installed product. */
export const programPath = (name: string): string => `${PRODUCT}/${name}.mjs`;

export type GuestEnd = { readonly exitCode: number | null; readonly signal: NodeJS.Signals | null };

/** Whoever starts a program reads its streams. */
export type GuestProgram = {
  /** Its pid in the guest. */
  readonly pid: number;
  readonly stdout: Readable;
  readonly stderr: Readable;
  /** Settles once it has ended and its streams have been read. A program that the guest takes along was killed. */
  readonly ended: Promise<GuestEnd>;
  /** To it and its children. Without effect once it has ended. */
  kill(signal: NodeJS.Signals): void;
};

type Watcher = {
  onReply(reply: GuestReply): void;
  onGone(end: string): void;
};

export type GuestOptions = {
  readonly scope: Scope;
  readonly name: string;
  /** Its root file system, a directory of the host. */
  readonly root: string;
  readonly memory: string;
  /** What its PID 1 is. */
  readonly init?: keyof typeof INIT;
  /** Paths below the root, of the files behind its disks /dev/ubda, /dev/ubdb, … */
  readonly disks: readonly string[];
};

export class Guest {
  readonly #options: GuestOptions;
  readonly #process: ChildProcess;
  readonly #line: Duplex;
  readonly #gone: Promise<string>;
  readonly #watchers = new Map<number, Watcher>();
  #lastId = 0;
  #isGone = false;

  private constructor(options: GuestOptions, child: ChildProcess, line: Duplex) {
    this.#options = options;
    this.#process = child;
    this.#line = line;
    this.#gone = new Promise((resolve) => {
      child.once('error', (error) => resolve(String(error)));
      child.once('close', (code, signal) => resolve(`exit ${code ?? signal}`));
    });
    void this.#gone.then((end) => {
      this.#isGone = true;
      for (const watcher of this.#watchers.values()) watcher.onGone(end);
      this.#watchers.clear();
    });
    line.on('error', () => undefined); // the end of the guest is seen above
  }

  static #consolePath({ scope, name }: GuestOptions): string {
    return join(scope.directory, `${name}.console`);
  }

  /** The end of what its kernel and init have said. */
  get console(): string {
    const path = Guest.#consolePath(this.#options);
    return existsSync(path) ? readFileSync(path, 'latin1').slice(-4000) : '';
  }

  /** Of its kernel, on this machine. */
  get hostPid(): number {
    const { pid } = this.#process;
    if (pid === undefined || this.#isGone) throw new Error('the guest is not up');
    return pid;
  }

  /** Boots and resolves when the agent listens. */
  static async boot(options: GuestOptions): Promise<Guest> {
    const { scope, name, root, memory, disks, init = 'agent' } = options;
    const memoryDirectory = join(root, 'guest/memory');
    mkdirSync(memoryDirectory, { recursive: true });
    // the guest's memory is a file that it maps: it belongs into memory
    await mustRun(['mount', '-t', 'tmpfs', '-o', 'mode=0700', 'tmpfs', memoryDirectory]);
    writeFileSync(join(root, 'guest/init'), INIT[init]);
    if (init === 'systemd') {
      const units = join(root, 'etc/systemd/system');
      writeFileSync(join(root, 'guest/agent.sh'), AGENT);
      writeFileSync(join(units, 'guest-agent.service'), AGENT_UNIT);
      mkdirSync(join(units, 'multi-user.target.wants'), { recursive: true });
      symlinkSync('../guest-agent.service', join(units, 'multi-user.target.wants/guest-agent.service'));
    }
    chmodSync(join(root, 'guest/init'), 0o755);
    await bundleFile(new URL('./guest-agent.ts', import.meta.url), join(root, 'guest/agent.mjs'));
    const log = openSync(Guest.#consolePath(options), 'a');
    const [file, ...argv] = enterCgroups(scope.cgroups(name), [
      'chroot',
      root,
      'linux.uml',
      `umid=${name}`,
      'uml_dir=/guest/memory/',
      `mem=${memory}`,
      ...['root=/dev/root', 'rootfstype=hostfs', 'rootflags=/', 'rw', 'init=/guest/init', 'quiet'],
      ...['con=null', 'ssl=null', 'con0=null,fd:1', 'ssl0=fd:3'],
      ...disks.map((path, index) => `ubd${index}=${path}`),
    ]);
    if (file === undefined) throw new Error('nothing to start');
    const child = spawn(file, argv, {
      stdio: ['ignore', log, log, 'pipe'],
      detached: true,
      cwd: '/',
      env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', TMPDIR: '/guest/memory', HOME: '/guest/memory' },
    });
    closeSync(log);
    const line = child.stdio[3];
    if (!(line instanceof Duplex)) throw new Error('no serial line');
    const guest = new Guest(options, child, line);
    try {
      await guest.#whenReady();
    } catch (error) {
      await guest.killHard();
      throw new Error(`${error instanceof Error ? error.message : String(error)}\n${guest.console}`);
    }
    return guest;
  }

  async #whenReady(): Promise<void> {
    const lines = new Lines();
    await new Promise<void>((resolve, reject) => {
      const deadline = setTimeout(
        () => reject(new Error(`boot of the guest: not within ${BOOT_MS_MAX} ms`)),
        BOOT_MS_MAX,
      );
      void this.#gone.then((end) => reject(new Error(`the guest ended before it was up: ${end}`)));
      this.#line.on('data', (piece: Buffer) => {
        for (const text of lines.push(piece)) {
          const reply: GuestReply = JSON.parse(text);
          if (reply.op === 'ready') {
            clearTimeout(deadline);
            resolve();
          } else {
            this.#watchers.get(reply.id)?.onReply(reply);
          }
        }
      });
    });
  }

  #send(request: GuestRequest): void {
    if (!this.#isGone) this.#line.write(encodeFrame(request));
  }

  /** Starts a program, found in the usual PATH, and resolves when it runs. */
  async start(argv: readonly string[]): Promise<GuestProgram> {
    if (this.#isGone) throw new Error('the guest is not up');
    this.#lastId += 1;
    const id = this.#lastId;
    const stdout = new PassThrough();
    const stderr = new PassThrough();
    let end: GuestEnd = { exitCode: null, signal: 'SIGKILL' };
    const finish = (): void => {
      this.#watchers.delete(id);
      stdout.end();
      stderr.end();
    };
    const ended = Promise.all([finished(stdout), finished(stderr)]).then(() => end);
    const pid = await new Promise<number>((resolve, reject) => {
      this.#watchers.set(id, {
        onReply: (reply) => {
          if (reply.op === 'started') resolve(reply.pid);
          else if (reply.op === 'stdout') stdout.write(Buffer.from(reply.data, 'base64'));
          else if (reply.op === 'stderr') stderr.write(Buffer.from(reply.data, 'base64'));
          else if (reply.op === 'end') {
            end = { exitCode: reply.code, signal: reply.signal };
            finish();
          } else if (reply.op === 'failed') {
            finish();
            reject(new Error(`${argv.join(' ')}: not started: ${reply.reason}`));
          }
        },
        onGone: (how) => {
          finish();
          reject(new Error(`the guest ended: ${how}`));
        },
      });
      this.#send({ id, op: 'start', argv });
    });
    return { pid, stdout, stderr, ended, kill: (signal) => this.#send({ id, op: 'kill', signal }) };
  }

  /** Runs a program to its end; never rejects for how it ends. At the deadline it is killed, and `timedOut` says so. */
  async exec(argv: readonly string[], { timeoutMs = 60_000 } = {}): Promise<Finished> {
    const program = await this.start(argv);
    let length = 0;
    let truncated = false;
    const gather = (stream: Readable): Buffer[] => {
      const chunks: Buffer[] = [];
      stream.on('data', (bytes: Buffer) => {
        length += bytes.length;
        if (length > OUTPUT_BYTES_MAX) truncated = true;
        else chunks.push(bytes);
      });
      return chunks;
    };
    const stdout = gather(program.stdout);
    const stderr = gather(program.stderr);
    let timedOut = false;
    const deadline = setTimeout(() => {
      timedOut = true;
      program.kill('SIGKILL');
    }, timeoutMs);
    try {
      const end = await program.ended;
      return { ...end, stdout: Buffer.concat(stdout), stderr: Buffer.concat(stderr), timedOut, truncated };
    } finally {
      clearTimeout(deadline);
    }
  }

  /** As exec, for what must succeed; the error carries the output. Returns stdout as text. */
  async must(argv: readonly string[], options: { readonly timeoutMs?: number } = {}): Promise<string> {
    const end = await this.exec(argv, options);
    if (end.exitCode !== 0 || end.timedOut) {
      const said = Buffer.concat([end.stdout, end.stderr]).toString('utf8').trim().slice(-4000);
      throw new Error(`in the guest: ${argv.join(' ')}: ${describeEnd(end)}\n${said}`);
    }
    return end.stdout.toString('utf8');
  }

  /** As a machine whose power fails: nothing that only its memory held is kept. Its disks may be used afterwards. */
  async killHard(): Promise<void> {
    this.#process.unref();
    await clearCgroups(this.#options.scope.cgroups(this.#options.name));
    await this.#gone;
  }
}
