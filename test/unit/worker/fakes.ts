/** The ports of the worker's rules, in memory: a backend whose every act can be held, failed and counted. */
import { generateKeyPairSync } from 'node:crypto';
import { PassThrough } from 'node:stream';
import { XceError } from '../../../src/base/errors.ts';
import type {
  Attempt,
  Epoch,
  InstanceName,
  JobId,
  LeaseNumber,
  NodeName,
  Uid,
} from '../../../src/base/ids.ts';
import { signCertificate } from '../../../src/lease/certificate.ts';
import { createTicketSigner, openTicket, type TicketClaims } from '../../../src/lease/ticket.ts';
import type { StateFiles } from '../../../src/os/state-files.ts';
import type { Resources, StepResult, StreamCommand, StreamEvent } from '../../../src/rpc/message.ts';
import type { ServerStream } from '../../../src/rpc/verbs.ts';
import type {
  CreatedSandbox,
  Finding,
  RunningStep,
  SandboxBackend,
  SandboxSpec,
  StepSpec,
} from '../../../src/sandbox/backend.ts';
import { Counts } from '../../../src/worker/counts.ts';
import { Daemons } from '../../../src/worker/daemons.ts';
import { Memory } from '../../../src/worker/memory.ts';
import { Nonces } from '../../../src/worker/nonces.ts';
import type { Report, SupervisorPorts } from '../../../src/worker/ports.ts';
import { Supervisor } from '../../../src/worker/supervisor.ts';
import { workerVerbs } from '../../../src/worker/verbs.ts';

export const KEYS = generateKeyPairSync('ed25519');
export const WORKER_KEYS = generateKeyPairSync('ed25519');
export const NODE = 'n1' as NodeName;
export const NODES = ['n1', 'n2', 'n3'] as NodeName[];
export const UID = 70_001 as Uid;
export const GOOD: StepResult = { result: 'success', code: 'exited', status: 0, stopped: false };

/** Files in memory; `failing` makes every write throw. */
export class MemoryFiles implements StateFiles {
  readonly files = new Map<string, Buffer>();
  failing = false;
  readonly trace: string[] = [];

  read(name: string): Buffer | undefined {
    return this.files.get(name);
  }

  write(name: string, bytes: Uint8Array): void {
    if (this.failing) throw new XceError('io', 'no space left on device');
    this.trace.push(`write ${name}`);
    this.files.set(name, Buffer.from(bytes));
  }

  remove(name: string): void {
    this.trace.push(`remove ${name}`);
    this.files.delete(name);
  }

  list(): readonly string[] {
    return [...this.files.keys()];
  }
}

/** Lets a test hold an act until it says go. */
export class Gate {
  #held: (() => void)[] = [];
  #closed = false;

  close(): void {
    this.#closed = true;
  }

  open(): void {
    this.#closed = false;
    for (const go of this.#held.splice(0)) go();
  }

  get waiting(): number {
    return this.#held.length;
  }

  async pass(): Promise<void> {
    if (!this.#closed) return;
    await new Promise<void>((go) => {
      this.#held.push(go);
    });
  }
}

export class FakeStep implements RunningStep {
  readonly unit: string;
  readonly stdin = new PassThrough();
  readonly stdout = new PassThrough();
  readonly stderr = new PassThrough();
  readonly ended: Promise<StepResult>;
  readonly signals: number[] = [];
  stops = 0;
  #end: (result: StepResult) => void = () => undefined;

  constructor(unit: string) {
    this.unit = unit;
    this.ended = new Promise((resolve) => {
      this.#end = resolve;
    });
  }

  finish(result: StepResult): void {
    this.stdout.end();
    this.stderr.end();
    this.#end(result);
  }

  async signal(signal: number): Promise<void> {
    this.signals.push(signal);
  }

  async stop(): Promise<void> {
    this.stops += 1;
    this.finish({ result: 'signal', code: 'killed', status: 15, stopped: true });
  }
}

type Identity = Pick<SandboxSpec, 'lease' | 'uid'>;

/** A host with sandboxes. What a backend may rely on is checked at the moment it would break. */
export class FakeBackend implements SandboxBackend {
  readonly anchors = new Map<number, { spec: SandboxSpec; invocationId: string; remainingMs: number }>();
  readonly steps = new Map<number, Map<string, FakeStep>>();
  readonly trace: string[] = [];
  readonly gates;
  readonly fail: {
    create?: XceError;
    destroy?: XceError;
    startStep?: XceError;
    scan?: XceError;
    stopSteps?: XceError;
  } = {};
  findings: Finding[] = [];
  /** Calls for one lease that overlapped though only starts of steps may. */
  readonly violations: string[] = [];
  /** Acts under way, by lease. */
  readonly #underWay = new Map<number, string[]>();
  #count = 0;
  readonly #watchers = new Map<string, () => void>();

  constructor(makeGate: (act: string) => Gate = () => new Gate()) {
    this.gates = {
      create: makeGate('create'),
      startStep: makeGate('startStep'),
      destroy: makeGate('destroy'),
      scan: makeGate('scan'),
    };
  }

  /** The process that had calls under way is gone. */
  forgetCalls(): void {
    this.#underWay.clear();
  }

  async #perform<T>(act: string, lease: number, work: () => Promise<T>): Promise<T> {
    const others = this.#underWay.get(lease) ?? [];
    this.#underWay.set(lease, others);
    const clash = others.find((other) => act !== 'startStep' || other !== 'startStep');
    if (clash !== undefined) this.violations.push(`${act} during ${clash} of lease ${lease}`);
    others.push(act);
    try {
      return await work();
    } finally {
      others.splice(others.indexOf(act), 1);
    }
  }

  create(spec: SandboxSpec, _resources: Resources, remainingMs: number): Promise<CreatedSandbox> {
    return this.#perform('create', spec.lease, () => this.#create(spec, remainingMs));
  }

  async #create(spec: SandboxSpec, remainingMs: number): Promise<CreatedSandbox> {
    this.trace.push(`create ${spec.lease}`);
    await this.gates.create.pass();
    if (this.fail.create !== undefined) throw this.fail.create;
    for (const { spec: other } of this.anchors.values()) {
      if (other.uid === spec.uid) throw new Error(`two sandboxes of uid ${spec.uid}`);
    }
    this.#count += 1;
    const invocationId = `i${this.#count}`;
    this.anchors.set(spec.lease, { spec, invocationId, remainingMs });
    const unit = `xce-main-${spec.lease}.anchor.service`;
    return { unit, invocationId, created: true, workspace: null, mounts: [] };
  }

  async armDeadline(spec: SandboxSpec, remainingMs: number): Promise<void> {
    this.trace.push(`arm ${spec.lease}`);
    const anchor = this.anchors.get(spec.lease);
    if (anchor === undefined) throw new XceError('sandbox-lost', 'no anchor');
    anchor.remainingMs = remainingMs;
  }

  startStep(spec: SandboxSpec, invocationId: string, step: StepSpec): Promise<RunningStep> {
    return this.#perform('startStep', spec.lease, () => this.#startStep(spec, invocationId, step));
  }

  async #startStep(spec: SandboxSpec, invocationId: string, step: StepSpec): Promise<RunningStep> {
    this.trace.push(`start ${spec.lease} ${step.step}`);
    await this.gates.startStep.pass();
    if (this.fail.startStep !== undefined) throw this.fail.startStep;
    if (this.anchors.get(spec.lease)?.invocationId !== invocationId) {
      throw new XceError('sandbox-lost', 'another anchor');
    }
    const running = new FakeStep(`xce-main-${spec.lease}.42.0.step.${step.step}.service`);
    const steps = this.steps.get(spec.lease) ?? new Map<string, FakeStep>();
    this.steps.set(spec.lease, steps);
    steps.set(step.step, running);
    void running.ended.then(() => steps.delete(step.step));
    return running;
  }

  step(lease: number, step: string): FakeStep {
    const running = this.steps.get(lease)?.get(step);
    if (running === undefined) throw new Error(`no step ${step} of lease ${lease}`);
    return running;
  }

  get runningCount(): number {
    return [...this.steps.values()].reduce((sum, steps) => sum + steps.size, 0);
  }

  async checkHost(): Promise<void> {}

  /** What is there by the name of a lease beside its anchor. */
  readonly named = new Set<LeaseNumber>();

  async listLeases(): Promise<ReadonlySet<LeaseNumber>> {
    const anchors = [...this.anchors.values()].map(({ spec }) => spec.lease);
    return new Set([...this.named, ...anchors]);
  }

  async stopSteps(spec: Pick<SandboxSpec, 'lease'>): Promise<void> {
    this.trace.push(`stop steps ${spec.lease}`);
    if (this.fail.stopSteps !== undefined) throw this.fail.stopSteps;
    for (const step of [...(this.steps.get(spec.lease)?.values() ?? [])]) await step.stop();
    this.steps.delete(spec.lease);
  }

  destroy(identity: Identity): Promise<void> {
    return this.#perform('destroy', identity.lease, () => this.#destroy(identity));
  }

  async #destroy(identity: Identity): Promise<void> {
    this.trace.push(`destroy ${identity.lease}`);
    await this.gates.destroy.pass();
    if (this.fail.destroy !== undefined) throw this.fail.destroy;
    this.#end(identity.lease, 'signal');
  }

  /** The deadline, or an operator: the anchor goes and takes the steps along. */
  loseAnchor(lease: number): void {
    const anchor = this.anchors.get(lease);
    this.#end(lease, 'timeout');
    if (anchor !== undefined) this.#watchers.get(anchor.invocationId)?.();
  }

  #end(lease: number, result: string): void {
    this.anchors.delete(lease);
    for (const step of this.steps.get(lease)?.values() ?? []) {
      step.finish({ result, code: 'killed', status: 15, stopped: true });
    }
    this.steps.delete(lease);
  }

  scan(identity: Identity): Promise<readonly Finding[]> {
    return this.#perform('scan', identity.lease, () => this.#scan(identity));
  }

  async #scan(identity: Identity): Promise<readonly Finding[]> {
    this.trace.push(`scan ${identity.lease}`);
    await this.gates.scan.pass();
    if (this.fail.scan !== undefined) throw this.fail.scan;
    const units = this.anchors.has(identity.lease) ? [{ kind: 'unit' as const, detail: 'the anchor' }] : [];
    return [...this.findings, ...units];
  }

  watchEnd(_spec: SandboxSpec, invocationId: string, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      this.#watchers.set(invocationId, resolve);
      signal.addEventListener('abort', () => resolve());
    });
  }

  async isAlive(spec: SandboxSpec, invocationId: string): Promise<boolean> {
    return this.anchors.get(spec.lease)?.invocationId === invocationId;
  }
}

export class FakeClock {
  nowMs = 1_000_000;
  wallMs = (): number => 1_800_000_000_000 + this.nowMs;
  monotonicMs = (): number => this.nowMs;

  advance(ms: number): void {
    this.nowMs += ms;
  }
}

/** What outlives a worker process: the disk, the host, the clock. */
export class Host {
  readonly clock = new FakeClock();
  readonly backend: FakeBackend;
  readonly seen = new MemoryFiles();
  readonly records = new MemoryFiles();
  readonly busy = new MemoryFiles();
  readonly reports: Report[] = [];
  readonly counts = new Counts();
  readonly sockets = new Set<number>();
  bootId = 'boot-1';
  nameService: 'absent' | 'taken' | 'unknown' = 'absent';
  storageError: XceError | undefined;

  constructor(backend = new FakeBackend()) {
    this.backend = backend;
  }

  reboot(): void {
    this.bootId = 'boot-2';
  }

  startWorker(changes: Partial<SupervisorPorts> = {}): Worker {
    const nonces = new Nonces(this.clock);
    const supervisor = new Supervisor(
      {
        cluster: 'cluster',
        instance: 'main' as InstanceName,
        node: NODE,
        clock: this.clock,
        bootId: this.bootId,
        backend: this.backend,
        openTicket: (ticket) => openTicket(ticket, KEYS.publicKey),
        requireUnused: async (uid) => {
          if (this.nameService === 'taken') throw new XceError('uid-taken', `${uid} is somebody`);
          if (this.nameService === 'unknown') throw new XceError('name-service', 'no answer');
        },
        requireStorage: () => {
          if (this.storageError !== undefined) throw this.storageError;
        },
        requirePool: (uid) => {
          if (uid < 70_000) throw new XceError('sandbox-refused', 'outside the pool');
        },
        signCertificate: (claims) => signCertificate(claims, WORKER_KEYS.privateKey),
        records: this.records,
        busy: this.busy,
        openAgentSocket: async (lease) => {
          this.sockets.add(lease);
          return { close: async () => void this.sockets.delete(lease) };
        },
        report: (report) => this.reports.push(report),
        meter: this.counts,
        startTimeoutMs: 60_000,
        drainTimeoutMs: 60_000,
        ...changes,
      },
      new Memory(this.seen),
      nonces,
    );
    return { supervisor, nonces };
  }
}

export type Worker = { readonly supervisor: Supervisor; readonly nonces: Nonces };

export const claimsFor = (nonce: string, changes: Partial<TicketClaims> = {}): TicketClaims => ({
  cluster: 'cluster',
  instance: 'main' as InstanceName,
  job: '42' as JobId,
  attempt: 0 as Attempt,
  lease: 7 as LeaseNumber,
  epoch: 3 as Epoch,
  uid: UID,
  submitterUid: 1001,
  submitterGid: 1001,
  node: NODE,
  nodes: NODES,
  nonce,
  ttlMs: 60_000,
  issuedWallMs: new FakeClock().wallMs(),
  roots: [],
  workspace: null,
  ...changes,
});

export const ticketFor = (nonce: string, changes: Partial<TicketClaims> = {}): string => {
  const claims = claimsFor(nonce, changes);
  return createTicketSigner(claims, KEYS.privateKey)(claims);
};

export const drainOf = (
  changes: Partial<{ lease: number; epoch: number; uid: number; nonce: string }> = {},
) => ({
  epoch: 3,
  lease: 7,
  uid: UID as number,
  job: '42' as JobId,
  attempt: 0,
  nonce: '00112233445566778899aabbccddeeff',
  ...changes,
});

export const stepOf = (step: string): StepSpec => ({
  step,
  argv: [Buffer.from('/bin/true')],
  environment: [],
  directory: null,
});

/** The server's end of a stream, as a test sees what came through it. */
export class FakeStream implements ServerStream {
  readonly stdin = new PassThrough();
  readonly events: StreamEvent[] = [];
  readonly output = { stdout: '', stderr: '' };
  readonly #gone = new AbortController();
  #listener: ((command: StreamCommand) => void | Promise<void>) | undefined;
  readonly #seen: { event: string; resolve: () => void }[] = [];

  get signal(): AbortSignal {
    return this.#gone.signal;
  }

  onCommand(listener: (command: StreamCommand) => void | Promise<void>): void {
    this.#listener = listener;
  }

  command(command: StreamCommand): void {
    void this.#listener?.(command);
  }

  async sendEvent(event: StreamEvent): Promise<void> {
    this.#gone.signal.throwIfAborted();
    if (this.events.length === 0 && event.event !== 'started') throw new Error('the first event is started');
    if (this.events.at(-1)?.event === 'ended') throw new Error('nothing follows ended');
    this.events.push(event);
    for (const waiter of this.#seen) if (waiter.event === event.event) waiter.resolve();
  }

  /** Resolves once an event of that name was sent. */
  sent(event: StreamEvent['event']): Promise<void> {
    if (this.events.some((known) => known.event === event)) return Promise.resolve();
    return new Promise((resolve) => {
      this.#seen.push({ event, resolve });
    });
  }

  async write(channel: 'stdout' | 'stderr', bytes: Uint8Array): Promise<void> {
    this.#gone.signal.throwIfAborted();
    this.output[channel] += Buffer.from(bytes).toString('latin1');
  }

  async pump(channel: 'stdout' | 'stderr', source: NodeJS.ReadableStream): Promise<void> {
    for await (const bytes of source)
      if (!this.#gone.signal.aborted) await this.write(channel, bytes as Buffer);
    this.#gone.signal.throwIfAborted();
  }

  /** The peer goes away. */
  leave(): void {
    const error = new XceError('cancelled', 'the peer went away');
    this.#gone.abort(error);
    this.stdin.on('error', () => undefined);
    this.stdin.destroy(error);
  }
}

/** The code of the XceError that a promise rejects with. */
export const codeOf = async (work: Promise<unknown>): Promise<string> => {
  try {
    await work;
  } catch (error) {
    if (error instanceof XceError) return error.code;
    throw error;
  }
  return 'none';
};

/** Lets everything that can go on go on. */
export const settle = async (): Promise<void> => {
  for (let turn = 0; turn < 20; turn += 1) await new Promise((resolve) => setImmediate(resolve));
};

/** The verbs of a worker that reaches no other; what the daemons report is dropped unless `report` is given. */
export const verbsOf = (
  { clock, bootId }: Host,
  { supervisor, nonces }: Worker,
  {
    report = () => undefined,
    wallMs = clock.wallMs,
  }: { report?: (report: Report) => void; wallMs?: () => number } = {},
): ReturnType<typeof workerVerbs> =>
  workerVerbs({
    supervisor,
    daemons: new Daemons({
      connect: () => Promise.reject(new XceError('worker-unreachable', 'no network here')),
      stepOfProcess: () => undefined,
      report,
      startTimeoutMs: 1000,
      graceMs: 1000,
    }),
    nonces,
    self: {
      version: '1.2.3',
      node: NODE,
      instance: 'main' as InstanceName,
      bootId,
      workerKey: 'ab'.repeat(32),
    },
    mpi: { interfaces: ['ib0'], agentTimeoutMs: 1000 },
    mpiInterface: () => 'ib0',
    agentPath: '/opt/agent',
    wallMs,
    families: () => [],
    report,
  });
