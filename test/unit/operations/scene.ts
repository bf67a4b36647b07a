/** One command's context without machines: a log in memory, workers that the test plays, a clock that it moves. */
import { generateKeyPairSync } from 'node:crypto';
import { vi } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { InstanceName, JobId, LeaseNumber, NodeName, Uid } from '../../../src/base/ids.ts';
import type { Settings } from '../../../src/config/settings.ts';
import { createFleet } from '../../../src/launch/fleet.ts';
import type { LeaseEvent, LeaseWorkspace } from '../../../src/lease/event.ts';
import { leaseMachine } from '../../../src/lease/machine.ts';
import { unwrap } from '../../../src/lease/refusal.ts';
import type { LeaseState } from '../../../src/lease/state.ts';
import { LeaseStore } from '../../../src/lease/store.ts';
import { createTicketSigner, openTicket, type TicketClaims } from '../../../src/lease/ticket.ts';
import { machinePorts } from '../../../src/normalise/machine-ports.ts';
import type { Context } from '../../../src/operations/context.ts';
import type { Answer, NameService } from '../../../src/os/name-service.ts';
import { openGate } from '../../../src/sandbox/workspace.ts';
import type { CommitContext, Committed, Decision } from '../../../src/wal/log.ts';
import { fakeWorkers } from '../../support/fake-sessions.ts';
import { MemoryLog } from '../lease/memory-log.ts';
import { BOOT, request, T0 } from '../lease/scene.ts';

const TICKET_KEYS = generateKeyPairSync('ed25519');

/** A log that takes its time, and says in the journal what it has acknowledged. */
class JournalLog extends MemoryLog {
  readonly journal: string[];
  /** How long each commit takes. */
  delayMs = 0;

  constructor(journal: string[]) {
    super();
    this.journal = journal;
  }

  override async commit<Result>(
    decide: (state: LeaseState, context: CommitContext) => Decision<LeaseEvent, Result>,
  ): Promise<Committed<Result>> {
    if (this.delayMs > 0) await new Promise((resolve) => setTimeout(resolve, this.delayMs));
    this.wallMs = Date.now();
    const before = this.records.length;
    const committed = await super.commit(decide);
    // An acknowledgement comes later than the call.
    for (let turn = 0; turn < 10; turn += 1) await Promise.resolve();
    const kinds = this.records
      .slice(before)
      .flatMap((record) => record.map((bytes) => leaseMachine.decode(bytes).kind));
    for (const kind of kinds) this.journal.push(`log ${kind}`);
    return committed;
  }
}

export const REQUEST_TIMEOUT_MS = 60_000;
export const STOP_TIMEOUT_MS = 5000;

export const settingsFor = (nodes: readonly NodeName[]): Settings => ({
  cluster: { name: 'hpc', instance: 'main' as InstanceName, pki: '/pki' },
  pool: { first: 70_000 as Uid, last: 70_009 as Uid },
  directory: { controlUid: 1001, ranges: [], timeoutMs: 1000 },
  lease: {
    directory: '/log',
    storage: 'local',
    probeListen: { address: '127.0.0.1', port: 7714 },
    lockTimeoutMs: 1000,
    storageTimeoutMs: 30_000,
    skewMs: 5000,
    ttlMs: 60_000,
    rememberDays: 7,
  },
  nodes: { hosts: nodes, port: 7070, connectTimeoutMs: 5000, requestTimeoutMs: REQUEST_TIMEOUT_MS },
  worker: {
    node: 'n1' as NodeName,
    listen: { address: '127.0.0.1', port: 7070 },
    stateDirectory: '/state',
    runDirectory: '/run',
    drainTimeoutMs: 30_000,
  },
  sandbox: {
    tasksMax: 100,
    cpuPercent: null,
    cpus: null,
    memoryBytes: null,
    tmpBytes: 1,
    tmpInodes: 1,
    shmBytes: 1,
    memlock: 'infinity',
    stackBytes: 8 << 20,
    stopTimeoutMs: STOP_TIMEOUT_MS,
    network: 'open',
    networkNames: ['%n'],
    networkAllow: [],
    path: '/usr/bin:/bin',
    devices: [],
    groups: [],
    passEnvironment: [],
  },
  storage: [{ name: 'scratch', path: '/scratch', workspace: '/scratch/xce', local: false }],
  environments: [],
  hooks: {
    scheduler: null,
    deadlineMs: 300_000,
    graceMs: 600_000,
    drain: undefined,
    own: { job: 'JOB', attempt: 'ATTEMPT', uid: 'SUBMITTER', nodes: 'NODES', ends: 'ENDS' },
  },
  mpi: { interfaces: [], agentTimeoutMs: 30_000 },
});

/** The context with other parts; those that nobody asks for are left alone. */
export const withParts = (context: Context, parts: Partial<Context>): Context =>
  Object.assign(Object.create(context), parts);

export const JOB = '42' as JobId;
export const selection = { job: JOB, attempt: undefined, lease: undefined };

/** Needs fake timers. One lease, number 1, over all nodes. */
export const setUp = async (
  options: { names?: readonly string[]; ttlMs?: number; workspace?: LeaseWorkspace } = {},
) => {
  const workers = fakeWorkers(options.names ?? ['n1', 'n2', 'n3']);
  const { journal, nodes } = workers;
  const log = new JournalLog(journal);
  const clock = { wallMs: () => Date.now(), monotonicMs: () => Date.now() - T0 + 1_000_000 };
  const settings = settingsFor(nodes);
  /** What the name service says of a uid; absent where nothing is said. */
  const names = new Map<number, Answer>();
  const nameService: NameService = { lookUp: async (uid) => names.get(uid) ?? { answer: 'absent' } };
  const leases = new LeaseStore({ log, clock, bootId: BOOT, nameService }, settings);
  const fleet = createFleet(workers.connect);
  const told: string[] = [];
  const context: Context = {
    settings,
    configPath: '/etc/xce-sandbox.ini',
    progress: { phase: (_title, work) => work(() => undefined) },
    clock,
    log,
    get storage(): never {
      throw new XceError('bug', 'nobody asks for the storage here');
    },
    get identity(): never {
      throw new XceError('bug', 'nobody asks for a certificate here');
    },
    leases,
    fleet,
    accounts: {
      findByUid: async () => {
        throw new XceError('bug', 'nobody is looked up here');
      },
    },
    nameService,
    hasUserRecord: () => false,
    normalisePorts: machinePorts,
    openGate,
    ticketSigner: (claims) => {
      const sign = createTicketSigner(claims, TICKET_KEYS.privateKey);
      return (own) => {
        journal.push(`sign ${own.node}`);
        return sign(own);
      };
    },
    tell: (text) => {
      told.push(text);
    },
    close: async () => fleet.close(),
  };
  const ttlMs = options.ttlMs ?? 60_000;
  const { workspace = null } = options;
  const { result } = await leases.allocate(request({ nodes: [...nodes], ttlMs, workspace }));
  journal.length = 0;
  return { ...workers, context, leases, log, names, told, lease: result.lease };
};

export const LEASE = { lease: 1 as LeaseNumber };

export const claimsIn = (ticket: string): TicketClaims => unwrap(openTicket(ticket, TICKET_KEYS.publicKey));

/** Lets everything go on that needs no time. */
export const settle = async (): Promise<void> => {
  for (let turn = 0; turn < 60; turn += 1) await vi.advanceTimersByTimeAsync(0);
};

export const errorOf = async (work: Promise<unknown>): Promise<XceError> => {
  try {
    await work;
  } catch (error) {
    if (error instanceof XceError) return error;
    throw error;
  }
  throw new Error('it did not fail');
};

export const useFakeTime = (): void => {
  vi.useFakeTimers({ now: T0 });
};
