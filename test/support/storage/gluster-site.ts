/**
 * Lease logs on a Gluster volume as two controllers use them: with the product's own commands, and with writers that
 * are killed, stopped or cut off while they allocate. What was acknowledged to anyone is held against the log.
 */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { bundleFile } from '../bundle.ts';
import type { Node, Spawned } from '../cluster/node.ts';
import { type GlusterLab, MOUNT, until } from './gluster.ts';

const root = fileURLToPath(new URL('../../..', import.meta.url));
const WRITER_INSIDE = '/opt/lease-writer';
const PKI = '/etc/xce-sandbox/pki';
const PROBE_PORT = 7714;
/** A probe of two controllers makes thousands of small files; on a busy machine that is what takes longest. */
const COMMAND_MS_MAX = 1_300_000;
const PROBE_TIMEOUT = ['--timeout', '20m'];
const EPOCH_FILE = /^leases\.wal\.[0-9]+$/;
const TOKEN_FILE = /^epoch-([0-9]+)\.token$/;

/** The bundled writer in a directory of the host, to be bound on nodes; `remove` takes it away. */
export const buildWriter = async (): Promise<{
  readonly binds: readonly (readonly [string, string])[];
  remove(): void;
}> => {
  const directory = mkdtempSync(join(tmpdir(), 'lease-writer-'));
  await bundleFile(new URL('./lease-writer.ts', import.meta.url), join(directory, 'writer.mjs'));
  return {
    binds: [
      [directory, WRITER_INSIDE],
      [join(root, 'node_modules'), '/opt/node_modules'],
    ],
    remove: () => rmSync(directory, { recursive: true, force: true }),
  };
};

const allocateArgs = (job: string): readonly string[] => [
  ...['lease', 'allocate', '--job', job, '--submitter', '1001', '--nodes', 'n1'],
];

export type Acknowledged = { readonly lease: number; readonly uid: number };

export type CommandEnd = { readonly status: number | null; readonly stdout: string; readonly stderr: string };

export type WriterProcess = Pick<Spawned, 'stdout' | 'stderr' | 'kill'> & {
  readonly ended: Promise<unknown>;
};

/** A process that allocates until it is told otherwise. */
export class Writer {
  readonly #child: WriterProcess;
  readonly #acknowledged: Map<string, Acknowledged>;
  /** Its last word, or 'killed'. */
  readonly ended: Promise<string>;
  #own = 0;
  #wake: () => void = () => undefined;
  #hasEnded = false;
  said = '';

  constructor(child: WriterProcess, acknowledged: Map<string, Acknowledged>) {
    this.#child = child;
    this.#acknowledged = acknowledged;
    let last = 'killed';
    createInterface(child.stdout).on('line', (line) => {
      const [job, lease, uid] = line.split(' ');
      if (job !== undefined && lease !== undefined && uid !== undefined) {
        this.#acknowledged.set(job, { lease: Number(lease), uid: Number(uid) });
        this.#own += 1;
      } else last = line;
      this.#wake();
    });
    child.stderr.on('data', (chunk: Buffer) => {
      this.said += chunk.toString('utf8');
    });
    this.ended = child.ended.then(() => {
      this.#hasEnded = true;
      this.#wake();
      return last;
    });
  }

  /** How many leases it was told of. */
  get count(): number {
    return this.#own;
  }

  /** Waits until it has been told of so many more; an end before that, or a deadline, is an error. */
  async more(wanted: number, timeoutMs = 30_000): Promise<void> {
    const goal = this.#own + wanted;
    let isLate = false;
    const timer = setTimeout(() => {
      isLate = true;
      this.#wake();
    }, timeoutMs);
    try {
      while (this.#own < goal && !this.#hasEnded && !isLate) {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
      }
    } finally {
      clearTimeout(timer);
    }
    if (this.#own < goal) {
      throw new Error(
        `a writer ${isLate ? 'does not go on' : 'has ended'} at ${this.#own} leases: ${this.said}`,
      );
    }
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }

  async killed(): Promise<void> {
    this.#child.kill('SIGKILL');
    await this.ended;
  }

  /** SIGSTOP at a moment at which `isThere` holds, and goes on holding. */
  async stopWhen(isThere: () => boolean, timeoutMs = 60_000): Promise<void> {
    const stop = (): boolean => {
      if (!isThere()) return false;
      this.#child.kill('SIGSTOP');
      if (isThere()) return true;
      this.#child.kill('SIGCONT');
      return false;
    };
    await until('a writer stopped at the right moment', timeoutMs, stop, 1);
  }
}

/** One lease log in a directory of its own, under an instance of that name. */
export class LogOnGluster {
  readonly name: string;
  readonly #lab: GlusterLab;
  /** By job: what any writer or command was told. */
  readonly acknowledged = new Map<string, Acknowledged>();
  readonly #running: Writer[] = [];
  #writers = 0;

  private constructor(lab: GlusterLab, name: string) {
    this.#lab = lab;
    this.name = name;
  }

  get directory(): string {
    return join(MOUNT, this.name);
  }

  get #configPath(): string {
    return `/etc/xce-sandbox/${this.name}.ini`;
  }

  /** The directory and the configuration on both controllers; no log is made. */
  static async prepare(lab: GlusterLab, name: string): Promise<LogOnGluster> {
    const log = new LogOnGluster(lab, name);
    await lab.controllers[0].must(['install', '-d', '-m', '0700', log.directory]);
    const config = `[cluster]
name = lab
instance = ${name}

[pool]
range = 70000-79999

[directory]
control_uid = 1001

[lease]
directory = ${log.directory}
storage = shared

[nodes]
hosts = n1
`;
    for (const node of lab.controllers) await node.writeFile(log.#configPath, config, { mode: 0o644 });
    await log.#issueCertificates();
    return log;
  }

  /** Both controllers need one each, to try the storage together. */
  async #issueCertificates(): Promise<void> {
    const [first, second] = this.#lab.controllers;
    const issue = ['pki', 'issue', '--role', 'controller'];
    await this.must(first, 'pki', 'init');
    await this.must(first, ...issue, '--node', first.name, '--out', PKI);
    await this.must(first, ...issue, '--node', second.name, '--out', '/root/pki');
    const files = (await this.#lab.controllers[0].must(['ls', '/root/pki'])).split('\n').filter(Boolean);
    for (const file of files) {
      await second.writeFile(join(PKI, file), await first.readFile(join('/root/pki', file)), { mode: 0o600 });
    }
  }

  /** Lets the second controller listen and the first make the log with it; how each of them ended. */
  async init(): Promise<{ readonly asking: CommandEnd; readonly listening: CommandEnd }> {
    const [first, second] = this.#lab.controllers;
    let early: CommandEnd | undefined;
    const listening = this.run(second, 'lease', 'probe', '--listen', ...PROBE_TIMEOUT).then((end) => {
      early = end;
      return end;
    });
    await until('a controller that listens for a probe', 60_000, async () => {
      if (early !== undefined) throw new Error(`it does not listen: ${early.stderr}`);
      return (await second.must(['ss', '-H', '-l', '-t', '-n'])).includes(`:${PROBE_PORT} `);
    });
    const asking = await this.run(first, 'lease', 'init', '--peer', second.name, ...PROBE_TIMEOUT);
    return { asking, listening: await listening };
  }

  async run(node: Node, ...args: readonly string[]): Promise<CommandEnd> {
    const argv = ['xce-sandbox', ...args, '--config', this.#configPath];
    const end = await node.exec(argv, { timeoutMs: COMMAND_MS_MAX });
    if (end.timedOut) throw new Error(`${node.name}: ${argv.join(' ')}: not within ${COMMAND_MS_MAX} ms`);
    return {
      status: end.exitCode,
      stdout: end.stdout.toString('utf8'),
      stderr: end.stderr.toString('utf8'),
    };
  }

  async must(node: Node, ...args: readonly string[]): Promise<string> {
    const end = await this.run(node, ...args);
    if (end.status === 0) return end.stdout;
    throw new Error(`${node.name}: ${args.join(' ')}: status ${end.status}\n${end.stdout}\n${end.stderr}`);
  }

  /** `lease allocate` as an operator runs it, without JSON: stdout is empty unless a lease was granted. */
  async tryAllocate(node: Node, job: string): Promise<CommandEnd> {
    return await this.run(node, ...allocateArgs(job));
  }

  /** The same, for what must be granted; it counts as acknowledged. */
  async allocate(node: Node, job: string): Promise<void> {
    const text = await this.must(node, ...allocateArgs(job), '--json');
    this.acknowledged.set(job, JSON.parse(text) as Acknowledged);
  }

  /** Whether some process of the host has begun a record and not come to its end; see xce-sandbox-log(5), FILES. */
  isBusy(node: Node): boolean {
    const tokens = join(`/proc/${node.leaderPid}/root/run/xce-sandbox`, this.name, 'controller');
    const epochs = readdirSync(tokens).flatMap((name) => TOKEN_FILE.exec(name)?.[1] ?? []);
    const newest = Math.max(...epochs.map(Number));
    return readFileSync(join(tokens, `epoch-${newest}.token`), 'latin1').includes('\nbusy');
  }

  async startWriter(node: Node): Promise<Writer> {
    this.#writers += 1;
    const prefix = `${node.name}.${this.#writers}`;
    const argv = ['node', `${WRITER_INSIDE}/writer.mjs`, this.#configPath, prefix, '10000'];
    const writer = new Writer(await node.spawn(argv), this.acknowledged);
    this.#running.push(writer);
    return writer;
  }

  /** Kills every writer that a test has left. */
  async killWriters(): Promise<void> {
    await Promise.all(this.#running.splice(0).map((writer) => writer.killed()));
  }

  /** How many leases the log has, and which acknowledged ones it does not have as they were told. */
  async compare(node: Node): Promise<{ readonly leases: number; readonly missing: readonly string[] }> {
    type Listed = Acknowledged & { readonly job: string };
    // Writers may go on while the log is read.
    const acknowledged = new Map(this.acknowledged);
    const text = await this.must(node, 'lease', 'list', '--json');
    const listed = JSON.parse(text) as readonly Listed[];
    const uids = new Set(listed.map(({ uid }) => uid));
    if (uids.size < listed.length) throw new Error(`two leases of ${this.name} have one uid`);
    const byJob = new Map(listed.map((lease) => [lease.job, lease]));
    const missing = [...acknowledged].flatMap(([job, told]) => {
      const found = byJob.get(job);
      return found?.uid === told.uid && found.lease === told.lease ? [] : [`${job}: ${JSON.stringify(told)}`];
    });
    return { leases: listed.length, missing };
  }

  /** Waits until the bricks have the same bytes of every epoch, and returns how many epochs those are. */
  async agreeOnBricks(timeoutMs: number): Promise<number> {
    const names = (await this.#lab.controllers[0].must(['ls', this.directory]))
      .split('\n')
      .filter((name) => EPOCH_FILE.test(name));
    await until(`bricks with the same bytes of ${this.name}`, timeoutMs, () =>
      names.every((name) => {
        const [first, ...others] = this.#lab.onBricks(join(this.name, name));
        return first !== undefined && others.every((bytes) => bytes.equals(first));
      }),
    );
    return names.length;
  }
}
