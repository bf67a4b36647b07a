/**
 * A scope is everything that one owner process makes on the machine: one directory, one cgroup, and below them all
 * mounts, network namespaces and processes. Nothing of a scope has a name elsewhere, so it can be found and taken
 * down knowing the directory alone:
 *
 *   <cache>/scopes/<id>/scope.json   owner, reaper, what of the cache is in use, kept or not
 *   <cgroup root>/xce-test-<id>/     in every hierarchy; whoever is in it is killed
 *
 * Three lines of defence: `close()`; a reaper process that holds a pipe to the owner and takes the scope down when
 * the owner ends in any way; and `sweep()`, which takes down scopes whose owner and reaper are both dead.
 * Creation is atomic (a scope exists with its scope.json or not at all).
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmdirSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { basename, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { cacheDirectory, readCgroupRoots, readMounts } from './host.ts';
import { identify, isAlive, mustRun, type ProcessId, pollUntil, run } from './process.ts';

export type ScopeFacts = {
  readonly owner: ProcessId;
  readonly reaper: ProcessId | null;
  /** Directories of the cache that must outlive the scope. */
  readonly uses: readonly string[];
  /** The owner left it up on purpose; only an explicit `takeDown` ends it. */
  readonly kept: boolean;
};

const STAGING = '.new-';

const scopesDirectory = (): string => join(cacheDirectory(), 'scopes');

const factsPath = (directory: string): string => join(directory, 'scope.json');

export const readFacts = (directory: string): ScopeFacts | undefined => {
  let text: string;
  try {
    text = readFileSync(factsPath(directory), 'utf8');
  } catch {
    return undefined; // being taken down by another process
  }
  return JSON.parse(text) as ScopeFacts;
};

export const listScopes = (): readonly string[] => {
  if (!existsSync(scopesDirectory())) return [];
  return readdirSync(scopesDirectory())
    .filter((name) => !name.startsWith(STAGING))
    .map((name) => join(scopesDirectory(), name));
};

/** The cgroup directories of a scope, one per hierarchy. */
export const cgroupsOf = (directory: string): readonly string[] =>
  readCgroupRoots().map((root) => join(root, `xce-test-${basename(directory)}`));

const subCgroups = (directory: string): readonly string[] =>
  existsSync(directory)
    ? readdirSync(directory, { withFileTypes: true })
        .filter((entry) => entry.isDirectory())
        .flatMap((entry) => subCgroups(join(directory, entry.name)))
        .concat(directory)
    : [];

const readMembers = (cgroup: string): readonly number[] => {
  try {
    return readFileSync(join(cgroup, 'cgroup.procs'), 'latin1').split('\n').filter(Boolean).map(Number);
  } catch {
    return []; // the cgroup went away
  }
};

const signalQuietly = (pid: number): void => {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // ended by itself in between
  }
};

/** Kills whoever is in these cgroup trees, waits until they are empty, and removes the trees. */
export const clearCgroups = async (directories: readonly string[]): Promise<void> => {
  const empty = await pollUntil(() => {
    const members = directories.flatMap(subCgroups).flatMap(readMembers);
    // pid 0 stands for a process of a pid namespace that is not ours; there is none in a scope
    for (const pid of members) if (pid > 1) signalQuietly(pid);
    return members.length === 0;
  }, 20_000);
  if (!empty) throw new Error(`processes of ${directories.join(', ')} do not end`);
  for (const cgroup of directories.flatMap(subCgroups)) {
    const gone = await pollUntil(() => {
      try {
        rmdirSync(cgroup);
      } catch {
        return !existsSync(cgroup); // EBUSY until the kernel has reaped the last member
      }
      return true;
    }, 10_000);
    if (!gone) throw new Error(`cgroup ${cgroup} cannot be removed`);
  }
};

const mountsBelow = (directory: string): readonly string[] =>
  readMounts()
    .map(({ point }) => point)
    .filter((point) => point.startsWith(`${directory}/`))
    .reverse();

/** systemd-nspawn keeps directories per machine name there, and loses them when it is killed. */
const nspawnLeftovers = (id: string): readonly string[] =>
  ['propagate', 'unix-export'].flatMap((kind) => {
    const parent = join('/run/systemd/nspawn', kind);
    if (!existsSync(parent)) return [];
    return readdirSync(parent)
      .filter((name) => name.startsWith(`xt${id}-`))
      .map((name) => join(parent, name));
  });

const unmount = async (point: string): Promise<void> => {
  const end = await run(['umount', point], { timeoutMs: 10_000 });
  if (end.exitCode !== 0) await run(['umount', '--lazy', point], { timeoutMs: 10_000 });
};

/** Ends and removes everything of a scope. Idempotent; may be called by any process. */
export const takeDown = async (directory: string): Promise<void> => {
  const id = basename(directory);
  await clearCgroups(cgroupsOf(directory));
  for (const point of mountsBelow(directory)) await unmount(point);
  for (const path of nspawnLeftovers(id)) {
    const points = readMounts().map(({ point }) => point);
    if (points.includes(path)) await unmount(path);
    rmSync(path, { recursive: true, force: true });
  }
  const left = mountsBelow(directory);
  if (left.length > 0) throw new Error(`still mounted: ${left.join(', ')}`);
  // rm(1), since names that tests made need not be text
  const remove = ['rm', '-rf', '--one-file-system', '--', directory];
  const first = await run(remove, { timeoutMs: 120_000 });
  if (first.exitCode !== 0) {
    await run(['chattr', '-R', '-f', '-i', '-a', directory], { timeoutMs: 60_000 });
    await mustRun(remove, { timeoutMs: 120_000 });
  }
};

/** Takes down what killed owners left. A scope with a living owner or reaper, or a kept one, is left alone. */
export const sweep = async (): Promise<void> => {
  if (!existsSync(scopesDirectory())) return;
  for (const name of readdirSync(scopesDirectory())) {
    const directory = join(scopesDirectory(), name);
    if (name.startsWith(STAGING)) {
      const [pid, startTicks] = name.slice(STAGING.length).split('-');
      const alive = isAlive({ ...identify(process.pid), pid: Number(pid), startTicks: startTicks ?? '' });
      if (!alive) rmSync(directory, { recursive: true, force: true });
      continue;
    }
    const facts = readFacts(directory);
    if (facts?.kept === true || (facts !== undefined && isAlive(facts.owner))) continue;
    if (facts !== undefined && facts.reaper !== null && isAlive(facts.reaper)) continue;
    await takeDown(directory);
  }
};

/**
 * Waits until the reapers of dead owners are done; what they did not manage is swept. Called before a program
 * exits that had owners among its children.
 */
export const settle = async (timeoutMs: number): Promise<void> => {
  const orphaned = (): boolean =>
    listScopes().some((directory) => {
      const facts = readFacts(directory);
      return (
        facts !== undefined &&
        !facts.kept &&
        !isAlive(facts.owner) &&
        facts.reaper !== null &&
        isAlive(facts.reaper)
      );
    });
  await pollUntil(() => !orphaned(), timeoutMs);
  await sweep();
};

const startReaper = (directory: string): ChildProcess => {
  const tsx = pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href;
  const program = fileURLToPath(new URL('./reaper.ts', import.meta.url));
  return spawn(process.execPath, ['--import', tsx, program, directory], {
    stdio: ['pipe', 'ignore', 'pipe'],
    detached: true, // its own session: a Ctrl-C is for the owner
    cwd: '/',
    env: { ...process.env, NODE_OPTIONS: '' },
  });
};

const ours = new Set<Scope>();

/** Takes down whatever this process has made and not kept; for the handler of a signal that ends it. */
export const closeAll = async (): Promise<void> => {
  await Promise.all([...ours].map((scope) => scope.close()));
};

export class Scope {
  readonly id: string;
  readonly directory: string;
  /** One per hierarchy; made. */
  readonly cgroups: readonly string[];
  readonly #reaper: ChildProcess;
  readonly #reaperEnd: Promise<string>;
  #closed: Promise<void> | undefined;

  private constructor(id: string, directory: string, reaper: ChildProcess) {
    this.id = id;
    this.directory = directory;
    this.cgroups = cgroupsOf(directory);
    this.#reaper = reaper;
    let said = '';
    reaper.stderr?.on('data', (chunk: Buffer) => {
      said = `${said}${chunk.toString('utf8')}`.slice(-4000);
    });
    reaper.stdin?.on('error', () => undefined); // its end is seen below
    this.#reaperEnd = new Promise((resolve) => {
      reaper.once('error', (error) => resolve(String(error)));
      reaper.once('close', (code, signal) => resolve(code === 0 ? '' : `exit ${code ?? signal}: ${said}`));
    });
    // the reaper must never be what keeps its owner alive
    reaper.unref();
    for (const stream of [reaper.stdin, reaper.stderr]) {
      if (stream !== null && 'unref' in stream && typeof stream.unref === 'function') stream.unref();
    }
  }

  /** `uses`: directories of the cache that must not be pruned while the scope lives. */
  static async open(uses: readonly string[] = []): Promise<Scope> {
    await sweep();
    const id = randomBytes(4).toString('hex');
    const owner = identify(process.pid);
    const staging = join(scopesDirectory(), `${STAGING}${owner.pid}-${owner.startTicks}-${id}`);
    const directory = join(scopesDirectory(), id);
    mkdirSync(staging, { recursive: true, mode: 0o755 });
    const facts: ScopeFacts = { owner, reaper: null, uses, kept: false };
    writeFileSync(factsPath(staging), JSON.stringify(facts));
    renameSync(staging, directory);
    const scope = new Scope(id, directory, startReaper(directory));
    const { pid } = scope.#reaper;
    if (pid === undefined) throw new Error(`the reaper did not start: ${await scope.#reaperEnd}`);
    scope.#write({ ...facts, reaper: identify(pid) });
    for (const cgroup of scope.cgroups) mkdirSync(cgroup);
    ours.add(scope);
    return scope;
  }

  #write(facts: ScopeFacts): void {
    writeFileSync(`${factsPath(this.directory)}.new`, JSON.stringify(facts));
    renameSync(`${factsPath(this.directory)}.new`, factsPath(this.directory));
  }

  /** Lets the reaper do its work and waits for it; what it had to complain about, or nothing. */
  async #dismissReaper(): Promise<string> {
    for (const handle of [this.#reaper, this.#reaper.stdin, this.#reaper.stderr]) {
      if (handle !== null && 'ref' in handle && typeof handle.ref === 'function') handle.ref();
    }
    this.#reaper.stdin?.end();
    return await this.#reaperEnd;
  }

  /** Takes everything down; the reaper does it, so that its code is the code that runs every time. */
  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    ours.delete(this);
    const trouble = await this.#dismissReaper();
    if (!existsSync(this.directory)) return;
    await takeDown(this.directory);
    if (trouble !== '') throw new Error(`the reaper failed, its work was done without it: ${trouble}`);
  }

  /** Leaves everything up after the end of this process; `takeDown(directory)` is then somebody else's to call. */
  async keep(): Promise<void> {
    const facts = readFacts(this.directory);
    if (facts === undefined) throw new Error(`${this.directory} is gone`);
    ours.delete(this);
    this.#write({ ...facts, kept: true });
    this.#closed = Promise.resolve();
    await this.#dismissReaper();
  }
}
