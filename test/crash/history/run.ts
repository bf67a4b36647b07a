/**
 * Lets processes write one lease log while they are killed, stopped and overtaken, and collects what they say. All
 * decisions come from the seed; when they take effect is up to the machine.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { generateKeyPairSync } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { leaseMachine } from '../../../src/lease/machine.ts';
import { localPlace, openLogAt } from '../real-log.ts';
import type { Pool } from '../real-store.ts';
import type { Evidence } from './check.ts';
import { type Call, callsOf, type Line, randomOf } from './history.ts';
import { readWholeLog } from './read-log.ts';
import type { Task } from './task.ts';

export type Plan = {
  readonly seed: number;
  /** The host of each process. The first host makes the log. */
  readonly hosts: readonly string[];
  /** Ends when so many leases were granted and so many uids freed, as acknowledged. */
  readonly each: number;
  readonly pool: Pool;
};

export type Trouble = {
  killed: number;
  stopped: number;
  takenOver: number;
  /** Processes that were stopped while the log was taken over, and that went on afterwards. */
  outlived: number;
};

const TIMEOUTS = { lockTimeoutMs: 1000, holdTimeoutMs: 1000 };
const BATCH_MAX = 64;
/** Between two pieces of trouble. */
const ANSWERS_MIN = 200;
const ANSWERS_MAX = 1400;

type Slot = {
  readonly name: string;
  readonly host: string;
  generation: number;
  child: ChildProcess;
  lines: Line[];
  ended: Promise<unknown>;
  isStopped: boolean;
};

export class HistoryRun {
  readonly #root: string;
  readonly #plan: Plan;
  readonly #program: string;
  readonly #random: () => number;
  readonly #workerKey: string;
  readonly #slots: Slot[] = [];
  readonly #calls: Call[][] = [];
  readonly #ownedEpochs = new Map<string, number>();
  readonly trouble: Trouble = { killed: 0, stopped: 0, takenOver: 0, outlived: 0 };
  readonly acknowledged = { allocate: 0, free: 0 };
  #owner: string;
  #answers = 0;
  #failure: Error | undefined;
  #isEnding = false;
  #wake: () => void = () => undefined;

  /** `program` is process.ts, bundled. */
  constructor(root: string, program: string, plan: Plan) {
    this.#root = root;
    this.#program = program;
    this.#plan = plan;
    this.#random = randomOf(plan.seed);
    this.#owner = plan.hosts[0] ?? '';
    const { privateKey } = generateKeyPairSync('ed25519');
    this.#workerKey = privateKey.export({ type: 'pkcs8', format: 'pem' }).toString();
  }

  /** From an empty directory to the evidence. */
  async run(): Promise<Evidence> {
    mkdirSync(join(this.#root, 'log'));
    const log = openLogAt(localPlace(this.#root, this.#owner), leaseMachine);
    await log.init();
    await log.close();
    this.#ownedEpochs.set(this.#owner, 1);
    try {
      for (const [index, host] of this.#plan.hosts.entries())
        this.#slots.push(this.#start(`s${index}`, host, 0));
      while (!this.#isDone()) await this.#makeTrouble();
      await this.#end();
    } finally {
      this.kill();
    }
    return await this.#collect();
  }

  /** Ends every process that is left. */
  kill(): void {
    for (const { child } of this.#slots) child.kill('SIGKILL');
  }

  #isDone(): boolean {
    const { allocate, free } = this.acknowledged;
    return allocate >= this.#plan.each && free >= this.#plan.each;
  }

  #start(name: string, host: string, generation: number): Slot {
    const task: Task = {
      place: localPlace(this.#root, host),
      timeouts: TIMEOUTS,
      slot: name,
      process: `${name}.${generation}`,
      seed: Math.floor(this.#random() * 2 ** 31),
      batchMax: BATCH_MAX,
      pool: this.#plan.pool,
      ownedEpoch: this.#ownedEpochs.get(host) ?? 0,
      workerKey: this.#workerKey,
    };
    const child = spawn(process.execPath, [this.#program, JSON.stringify(task)], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    const lines: Line[] = [];
    const slot = { name, host, generation, child, lines, isStopped: false, ended: Promise.resolve() };
    createInterface({ input: child.stdout }).on('line', (text) => {
      // The last line of a process that was killed may be cut.
      if (text.endsWith('}')) this.#hear(slot, JSON.parse(text) as Line);
    });
    // Written to a process that has just been killed.
    child.stdin.on('error', () => undefined);
    const ended = once(child, 'close').then(([code, signal]) => {
      if (signal !== 'SIGKILL' && !(this.#isEnding && code === 0))
        this.#failure = new Error(`${task.process} ended by itself: ${code ?? signal}`);
      this.#calls.push([...callsOf(task.process, host, lines)]);
      this.#wake();
    });
    return Object.assign(slot, { ended });
  }

  #hear(slot: Slot, line: Line): void {
    slot.lines.push(line);
    if ('begins' in line || line.ends.kind !== 'acknowledged') return;
    this.#answers += 1;
    const begin = slot.lines.findLast((other) => other.call === line.call && 'begins' in other);
    const kind = begin !== undefined && 'begins' in begin ? begin.begins.kind : undefined;
    if (kind === 'allocate' || kind === 'free') this.acknowledged[kind] += 1;
    if (kind === 'takeover') {
      const { epoch } = line.ends.at;
      this.trouble.takenOver += 1;
      this.#owner = slot.host;
      this.#ownedEpochs.set(slot.host, epoch);
      for (const { child, host } of this.#slots)
        if (host === slot.host && child.exitCode === null) child.stdin?.write(`go ${epoch}\n`);
    }
    this.#wake();
  }

  /** Until something is true that only what the processes say can change. */
  async #until(fact: () => boolean): Promise<void> {
    while (!fact()) {
      if (this.#failure !== undefined) throw this.#failure;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  async #answered(): Promise<void> {
    const wanted = this.#answers + ANSWERS_MIN + Math.floor(this.#random() * (ANSWERS_MAX - ANSWERS_MIN));
    await this.#until(() => this.#answers >= wanted || this.#isDone());
  }

  #pick(fits: (slot: Slot) => boolean): Slot {
    const fitting = this.#slots.filter(fits);
    const slot = fitting[Math.floor(this.#random() * fitting.length)];
    if (slot === undefined) throw new Error('there is no process to choose from');
    return slot;
  }

  async #makeTrouble(): Promise<void> {
    await this.#answered();
    const others = this.#plan.hosts.filter((host) => host !== this.#owner);
    const next = others[Math.floor(this.#random() * others.length)] ?? this.#owner;
    const kind = this.#random();
    if (kind < 0.4) await this.#kill(this.#pick(() => true));
    else if (kind < 0.6) await this.#takeOver(this.#pick(({ host }) => host === next));
    else
      await this.#stop(
        this.#pick(({ host }) => host === this.#owner),
        next,
      );
  }

  async #kill(slot: Slot): Promise<void> {
    slot.child.kill('SIGKILL');
    await slot.ended;
    this.trouble.killed += 1;
    this.#slots[this.#slots.indexOf(slot)] = this.#start(slot.name, slot.host, slot.generation + 1);
  }

  async #takeOver({ child }: Slot): Promise<void> {
    const wanted = this.trouble.takenOver + 1;
    child.stdin?.write('takeover\n');
    await this.#until(() => this.trouble.takenOver >= wanted);
  }

  /** Stops a process of the owner wherever it is, and lets it go on when the log is another's. */
  async #stop(slot: Slot, next: string): Promise<void> {
    slot.child.kill('SIGSTOP');
    slot.isStopped = true;
    this.trouble.stopped += 1;
    await this.#takeOver(this.#pick(({ host, isStopped }) => host === next && !isStopped));
    await this.#answered();
    const before = slot.lines.length;
    slot.child.kill('SIGCONT');
    slot.isStopped = false;
    await this.#until(() => slot.lines.length > before);
    this.trouble.outlived += 1;
  }

  async #end(): Promise<void> {
    this.#isEnding = true;
    for (const { child } of this.#slots) child.stdin?.end();
    await Promise.all(this.#slots.map(({ ended }) => ended));
    if (this.#failure !== undefined) throw this.#failure;
  }

  async #collect(): Promise<Evidence> {
    const { records, owners } = await readWholeLog(join(this.#root, 'log'));
    const log = openLogAt(localPlace(this.#root, 'reader'), leaseMachine);
    const { state } = await log.read();
    await log.close();
    const final = [...state.leases.values()].map(({ number, uid }) => ({ lease: number, uid }));
    return { calls: this.#calls.flat(), records, owners, final };
  }
}
