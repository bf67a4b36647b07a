/**
 * A host of its own for the command line: the files of this machine with a private layer over /etc, /root, /run,
 * /srv and /var/lib, and accounts of its own. So the tests say what an operator says, with the default paths, and
 * leave nothing behind: the layers live in a mount namespace and end with the process that holds it.
 */
import { type ChildProcess, type ChildProcessByStdio, spawn } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join, relative } from 'node:path';
import type { Readable } from 'node:stream';
import { run } from '../support/cluster/process.ts';
import { repositoryDirectory } from '../support/cluster/product.ts';

export const ALICE = 1001;
export const CONFIG_PATH = '/etc/xce-sandbox/xce-sandbox.ini';
export const PKI_DIRECTORY = '/etc/xce-sandbox/pki';
export const LOG_DIRECTORY = '/srv/xce-lease';
export const POOL = { first: 70_000, last: 70_099 } as const;

const PASSWD = `root:x:0:0:root:/root:/bin/sh
build:x:999:999::/nonexistent:/bin/false
alice:x:${ALICE}:${ALICE}::/nonexistent:/bin/sh
bob:x:1002:1002::/nonexistent:/bin/sh
nobody:x:65534:65534::/nonexistent:/bin/false
`;
const GROUP = `root:x:0:
build:x:999:
alice:x:${ALICE}:
bob:x:1002:
nogroup:x:65534:
`;

export const configuration = (changes: Readonly<Record<string, string>> = {}): string => {
  const values = {
    'pool.range': `${POOL.first}-${POOL.last}`,
    'lease.directory': LOG_DIRECTORY,
    'nodes.hosts': 'n[1-3]',
    ...changes,
  };
  return `[cluster]
name = test

[pool]
range = ${values['pool.range']}

[directory]
control_uid = 1002

[lease]
directory = ${values['lease.directory']}
storage = local

[nodes]
hosts = ${values['nodes.hosts']}
connect_timeout = 2s

[storage shared]
path = /srv/shared
workspace = /srv/shared/xce
local = yes
`;
};

/**
 * What holds the namespace: it lives until its standard input ends, as it does when this process dies. The product
 * lies where every user gets at it, wherever the work tree is.
 */
const HOLDER = `set -e
mount -t tmpfs -o mode=0755 tmpfs /mnt
for top in etc root run srv var/lib; do
  mkdir -p /mnt/upper/$top /mnt/work/$top
  mount -t overlay -o lowerdir=/$top,upperdir=/mnt/upper/$top,workdir=/mnt/work/$top overlay /$top
done
chmod 755 /etc /run /srv /var/lib
mkdir /mnt/product
for part in bin dist node_modules share; do
  mkdir /mnt/product/$part
  mount --bind "$1/$part" /mnt/product/$part
done
cp "$1/package.json" "$1/oclif.manifest.json" /mnt/product/
echo ready
exec cat >/dev/null`;

export type End = {
  readonly status: number;
  readonly stdout: string;
  readonly stderr: string;
};

export type Options = {
  /** Beside a PATH and nothing else. */
  readonly env?: Readonly<Record<string, string>>;
  /** Default: root. */
  readonly uid?: number;
};

const BIN = '/mnt/product/bin';
const PATH = `${dirname(process.execPath)}:${BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin`;
const RUN_MS_MAX = 110_000;

export class CliHost {
  readonly #holder: ChildProcess;

  private constructor(holder: ChildProcess) {
    this.#holder = holder;
  }

  /** With a configuration in its place, and an empty directory for the log. `end()` must follow. */
  static async start(): Promise<CliHost> {
    if (process.getuid?.() !== 0) throw new Error('the tests of the command line need root');
    const holder = spawn(
      'unshare',
      ['--mount', '--propagation', 'private', 'sh', '-c', HOLDER, 'sh', repositoryDirectory],
      { stdio: ['pipe', 'pipe', 'inherit'] },
    );
    await new Promise<void>((resolve, reject) => {
      holder.once('error', reject);
      holder.stdout.once('data', () => resolve());
      holder.once('close', () => reject(new Error('the mount namespace could not be made')));
    });
    const host = new CliHost(holder);
    host.write('/etc/passwd', PASSWD);
    host.write('/etc/group', GROUP);
    host.write('/etc/nsswitch.conf', 'passwd: files\ngroup: files\n');
    host.write('/etc/subuid', '');
    host.write('/etc/subgid', '');
    host.write(CONFIG_PATH, configuration());
    mkdirSync(host.path(LOG_DIRECTORY), { mode: 0o700 });
    return host;
  }

  /** Where a file of the host lies for this process. */
  path(path: string): string {
    return `/proc/${this.#holder.pid}/root${path}`;
  }

  write(path: string, content: string | Uint8Array, mode = 0o644): void {
    mkdirSync(dirname(this.path(path)), { recursive: true, mode: 0o755 });
    writeFileSync(this.path(path), content);
    chmodSync(this.path(path), mode);
  }

  read(path: string): string {
    return readFileSync(this.path(path), 'utf8');
  }

  exists(path: string): boolean {
    return existsSync(this.path(path));
  }

  mode(path: string): string {
    return (statSync(this.path(path)).mode & 0o7777).toString(8).padStart(4, '0');
  }

  /** Runs a line of bash, in which `xce-sandbox` is the built program. */
  async shell(line: string, options: Options = {}): Promise<End> {
    return await this.#run(['bash', '-c', line], options);
  }

  async xce(args: readonly string[], options: Options = {}): Promise<End> {
    return await this.#run([join(BIN, 'xce-sandbox'), ...args], options);
  }

  /** The same, but any status except 0 is an error. Returns stdout. */
  async must(args: readonly string[]): Promise<string> {
    const end = await this.xce(args);
    if (end.status !== 0) throw new Error(`${args.join(' ')}: status ${end.status}\n${end.stderr}`);
    return end.stdout;
  }

  /** Fills the log with as many active leases at once. */
  async fillLog(leases: number): Promise<void> {
    const program = `node --import tsx test/cli/fill-program.ts ${leases}`;
    const { status, stderr } = await this.shell(`cd '${repositoryDirectory}' && ${program}`);
    if (status !== 0) throw new Error(`the log could not be filled: ${stderr}`);
  }

  /** Starts a program with its output in pipes; no other process stands between. Whoever starts it ends it. */
  spawn(argv: readonly string[]): ChildProcessByStdio<null, Readable, Readable> {
    const [command = '', ...rest] = this.#commandOf(argv, {});
    return spawn(command, rest, { stdio: ['ignore', 'pipe', 'pipe'] });
  }

  /** The same for the program that is tested. */
  begin(args: readonly string[]): ChildProcessByStdio<null, Readable, Readable> {
    return this.spawn([join(BIN, 'xce-sandbox'), ...args]);
  }

  /** The same with a pipe as standard input as well, which a server takes for the sign to end. */
  serve(argv: readonly string[]): ChildProcess {
    const [command = '', ...rest] = this.#commandOf(argv, {});
    return spawn(command, rest, { stdio: ['pipe', 'pipe', 'inherit'] });
  }

  /** What runs a command there, for whoever starts it. */
  argvOf(argv: readonly string[]): readonly string[] {
    return this.#commandOf(argv, {});
  }

  #commandOf(argv: readonly string[], { env = {}, uid = 0 }: Options): readonly string[] {
    const enter = ['nsenter', `--mount=/proc/${this.#holder.pid}/ns/mnt`];
    const drop = uid === 0 ? [] : ['setpriv', `--reuid=${uid}`, `--regid=${uid}`, '--clear-groups'];
    const variables = Object.entries(env).map(([name, value]) => `${name}=${value}`);
    return [...enter, ...drop, 'env', '-i', `PATH=${PATH}`, ...variables, ...argv];
  }

  async #run(argv: readonly string[], options: Options): Promise<End> {
    const end = await run(this.#commandOf(argv, options), { timeoutMs: RUN_MS_MAX });
    if (end.timedOut) throw new Error(`${argv.join(' ')}: no end within ${RUN_MS_MAX} ms`);
    return {
      status: end.exitCode ?? -1,
      stdout: end.stdout.toString('utf8'),
      stderr: end.stderr.toString('utf8'),
    };
  }

  /** Everything below a directory: names, and what stands in the files. Two equal ones: nothing was written. */
  snapshot(directory: string): Readonly<Record<string, string>> {
    const top = this.path(directory);
    if (!existsSync(top)) return {};
    const files = readdirSync(top, { withFileTypes: true, recursive: true }).filter((entry) =>
      entry.isFile(),
    );
    return Object.fromEntries(
      files.map((entry) => {
        const path = join(entry.parentPath, entry.name);
        return [relative(top, path), readFileSync(path).toString('hex')];
      }),
    );
  }

  async end(): Promise<void> {
    const ended = new Promise<void>((resolve) => this.#holder.once('close', () => resolve()));
    this.#holder.stdin?.end();
    await ended;
  }
}
