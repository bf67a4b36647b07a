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
import { cacheDirectory, readCgroupRoots, readMounts, withLock } from './host.ts';
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

/** A cgroup and all below it, the deepest first; none when it is gone. */
const subCgroups = (directory: string): readonly string[] => {
  let names: readonly string[];
  try {
    names = readdirSync(directory, { withFileTypes: true }).flatMap((entry) =>
      entry.isDirectory() ? [entry.name] : [],
    );
  } catch (error) {
    if (existsSync(directory)) throw error;
    return [];
  }
  return [...names.flatMap((name) => subCgroups(join(directory, name))), directory];
};

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

const removeCgroup = (cgroup: string): void => {
  try {
    rmdirSync(cgroup);
  } catch {
    // somebody is in it still, or has just entered; the caller looks again
  }
};

/**
 * Kills whoever is in these cgroup trees and removes them. Only once the topmost is gone can nobody enter any more
 * (`enterCgroups` makes no parents), so killing and removing go on together until then.
 */
export const clearCgroups = async (directories: readonly string[]): Promise<void> => {
  const gone = await pollUntil(() => {
    const cgroups = directories.flatMap(subCgroups);
    for (const pid of cgroups.flatMap(readMembers)) signalQuietly(pid);
    for (const cgroup of cgroups) removeCgroup(cgroup);
    return !directories.some((directory) => existsSync(directory));
  }, 20_000);
  if (!gone) throw new Error(`processes of ${directories.join(', ')} do not end`);
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

const takeDownOnce = async (directory: string): Promise<void> => {
  await clearCgroups(cgroupsOf(directory));
  for (const point of mountsBelow(directory)) await unmount(point);
  for (const path of nspawnLeftovers(basename(directory))) {
    if (readMounts().some(({ point }) => point === path)) await unmount(path);
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

const TAKE_DOWN_TRIES = 3;

/**
 * Ends and removes everything of a scope. Idempotent; may be called by any process. An owner that is interrupted while
 * it makes things may finish a mount behind our back, so a failure is looked at once more.
 */
export const takeDown = async (directory: string): Promise<void> => {
  for (let left = TAKE_DOWN_TRIES - 1; ; left -= 1) {
    try {
      await takeDownOnce(directory);
      return;
    } catch (error) {
      if (left === 0) throw error;
    }
  }
};

/** Nobody will take this scope down: not its owner, not its reaper, and nobody asked to keep it on this boot. */
const isForsaken = (directory: string): boolean => {
  const facts = readFacts(directory);
  if (facts === undefined) return existsSync(directory); // somebody was killed while removing it
  if (facts.kept) return facts.owner.bootId !== identify(process.pid).bootId;
  return !isAlive(facts.owner) && (facts.reaper === null || !isAlive(facts.reaper));
};

/** A scope in the making is named after its maker. */
const isForsakenStaging = (name: string): boolean => {
  const [pid, startTicks = ''] = name.slice(STAGING.length).split('-');
  return !isAlive({ pid: Number(pid), startTicks, bootId: identify(process.pid).bootId });
};

/** Takes down what killed owners left. A scope with a living owner or reaper, or a kept one, is left alone. */
export const sweep = async (): Promise<void> => {
  if (!existsSync(scopesDirectory())) return;
  const staging = readdirSync(scopesDirectory()).filter((name) => name.startsWith(STAGING));
  for (const name of staging.filter(isForsakenStaging)) {
    rmSync(join(scopesDirectory(), name), { recursive: true, force: true });
  }
  if (!listScopes().some(isForsaken)) return;
  await withLock('sweep', 300_000, async () => {
    for (const directory of listScopes().filter(isForsaken)) await takeDown(directory);
  });
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

/** Where cgroup2 has controllers, the cgroups below are to have them too, so that limits inside the nodes are real. */
const passControllersOn = (cgroup: string): void => {
  const available = join(cgroup, 'cgroup.controllers');
  if (!existsSync(available)) return; // a v1 hierarchy
  const names = readFileSync(available, 'latin1').trim().split(' ').filter(Boolean);
  writeFileSync(join(cgroup, 'cgroup.subtree_control'), names.map((name) => `+${name}`).join(' '));
};

const ours = new Set<Scope>();

/** Takes down whatever this process has made and not kept; for the handler of a signal that ends it. */
export const closeAll = async (): Promise<void> => {
  await Promise.all([...ours].map((scope) => scope.close()));
};

export class Scope {
  readonly id: string;
  readonly directory: string;
  readonly #reaper: ChildProcess;
  readonly #reaperEnd: Promise<string>;
  #closed: Promise<void> | undefined;

  private constructor(id: string, directory: string, reaper: ChildProcess) {
    this.id = id;
    this.directory = directory;
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
    for (const cgroup of cgroupsOf(directory)) {
      mkdirSync(cgroup);
      passControllersOn(cgroup);
    }
    ours.add(scope);
    return scope;
  }

  /** Names a cgroup of the scope in every hierarchy; whoever wants to enter it makes it. */
  cgroups(name: string): readonly string[] {
    return cgroupsOf(this.directory).map((cgroup) => join(cgroup, name));
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
