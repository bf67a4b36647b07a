/**
 * Controllers over one simulated disk, and a state that shows at once when the log breaks a promise: uids that are
 * handed out, lowest free first, by commits of two events each.
 */
import { XceError } from '../../src/base/errors.ts';
import { EpochLog, type EpochLogOptions, type EpochLogPorts } from '../../src/wal/epoch-log.ts';
import type { Committed } from '../../src/wal/log.ts';
import type { Machine } from '../../src/wal/machine.ts';
import { GO, NameCache, type Plan, SimulatedDisk, type SimulatedProcess } from './simulated-disk.ts';

/** Grants by uid. A grant whose second event is missing is half a commit. */
export type Grants = Map<number, { by: string; isWhole: boolean }>;
export type GrantEvent = { readonly uid: number; readonly by: string; readonly part: 1 | 2 };

const encode = (value: unknown): Buffer => Buffer.from(JSON.stringify(value));
// In place: the bytes are those of a whole window of the log, and a copy for each event takes far longer.
const decode = (bytes: Uint8Array, start?: number, end?: number): GrantEvent =>
  JSON.parse(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('utf8', start, end));

export const grantMachine: Machine<Grants, GrantEvent> = {
  empty: () => new Map(),
  replay: (state, bytes, start, end) => {
    const { uid, by, part } = decode(bytes, start, end);
    const grant = state.get(uid);
    if (part === 1 && grant === undefined) state.set(uid, { by, isWhole: false });
    else if (part === 2 && grant?.by === by) grant.isWhole = true;
    else throw new XceError('log-corrupt', `an event of ${by} does not apply`);
  },
  encode,
  decode,
  *snapshot(state) {
    for (const entry of state) yield encode(entry);
  },
  restore: (state, record) => {
    const [uid, grant] = JSON.parse(Buffer.from(record).toString());
    state.set(uid, grant);
  },
};

/** Grants the lowest free uid to `by`, or says which one it has. */
export const decideGrant = (state: Grants, by: string): { events: readonly GrantEvent[]; result: number } => {
  for (const [uid, grant] of state) if (grant.by === by) return { events: [], result: uid };
  let uid = 1;
  while (state.has(uid)) uid += 1;
  return {
    events: [
      { uid, by, part: 1 },
      { uid, by, part: 2 },
    ],
    result: uid,
  };
};

const LOG = '/log';

export type Controller = {
  readonly log: EpochLog<Grants, GrantEvent>;
  readonly process: SimulatedProcess;
  grant(by: string): Promise<Committed<number>>;
};

export class World {
  readonly disk = new SimulatedDisk();
  /** Type of the file system under the log. */
  storageType = 'ext4';
  /** The disk is of one host alone: all controllers must be of it. */
  isLocal = false;
  /** Bytes of events after which the owner goes on in a new file. */
  tailBytesMin = 1 << 20;
  /** What was acknowledged to someone: name and uid. */
  readonly acknowledged = new Map<string, number>();
  /** What someone was told does not count. */
  readonly denied = new Set<string>();
  #boots = new Map<string, number>();
  #caches = new Map<string, NameCache>();
  #tokens = 0;
  #processes = 0;
  #monotonicMs = 0;

  constructor() {
    this.disk.addDirectory(LOG);
  }

  pass(milliseconds: number): void {
    this.#monotonicMs += milliseconds;
    this.disk.nowMs += milliseconds;
  }

  epochPath(epoch: number): string {
    return `${LOG}/leases.wal.${epoch}`;
  }

  #cacheOf(host: string): NameCache {
    const cache = this.#caches.get(host) ?? new NameCache();
    this.#caches.set(host, cache);
    return cache;
  }

  portsOf(host: string, process = this.disk.process(undefined, this.#cacheOf(host))): EpochLogPorts {
    this.#processes += 1;
    const storage = { type: this.storageType, source: '/dev/sim', path: LOG };
    return {
      files: process.files,
      clock: { wallMs: () => this.disk.nowMs, monotonicMs: () => this.#monotonicMs },
      bootId: `boot-${host}-${this.#boots.get(host) ?? 0}`,
      processId: this.#processes,
      randomBytes: (count) => {
        this.#tokens += 1;
        const bytes = Buffer.alloc(count);
        bytes.writeUInt32BE(this.#tokens);
        return bytes;
      },
      wait: async (milliseconds) => {
        this.pass(milliseconds);
        await new Promise((resolve) => setImmediate(resolve));
      },
      storage: { look: async () => storage, admit: async () => storage, probe: async () => storage },
    };
  }

  optionsOf(host: string): EpochLogOptions {
    return {
      directory: LOG,
      runDirectory: `/run/${host}`,
      memoryPath: `/var/${host}/seen.json`,
      cluster: 'c',
      instance: 'main',
      host,
      isLocal: this.isLocal,
      lockTimeoutMs: 1000,
      holdTimeoutMs: 1000,
      tailBytesMin: this.tailBytesMin,
    };
  }

  /** A new process on a host. */
  controller(host: string, plan: Plan = () => GO, options: Partial<EpochLogOptions> = {}): Controller {
    const process = this.disk.process(plan, this.#cacheOf(host));
    const log = new EpochLog<Grants, GrantEvent>(
      this.portsOf(host, process),
      { ...this.optionsOf(host), ...options },
      grantMachine,
    );
    const grant = async (by: string): Promise<Committed<number>> => {
      try {
        const committed = await log.commit((state) => decideGrant(state, by));
        this.acknowledged.set(by, committed.result);
        return committed;
      } catch (error) {
        if (error instanceof XceError && error.code === 'log-io') this.denied.add(by);
        throw error;
      }
    };
    return { log, process, grant };
  }

  /** A host restarts: what is below /run is gone, and so are its tokens. */
  reboot(host: string): void {
    this.#boots.set(host, (this.#boots.get(host) ?? 0) + 1);
    this.#caches.delete(host);
    this.disk.erase(`/run/${host}`);
  }

  /** What a fresh process on a fresh host replays. */
  async replay(): Promise<Grants> {
    return (await this.controller(`reader-${this.#processes}`).log.read()).state;
  }

  /** Every broken promise of the log, as one line each. */
  async findBroken(): Promise<readonly string[]> {
    const broken: string[] = [];
    const state = await this.replay();
    const uids = new Set(this.acknowledged.values());
    if (uids.size < this.acknowledged.size) broken.push('two grants were acknowledged with one uid');
    for (const [by, uid] of this.acknowledged) {
      if (state.get(uid)?.by !== by) broken.push(`the grant of ${uid} to ${by} was acknowledged and is gone`);
    }
    for (const [uid, { by, isWhole }] of state) {
      if (!isWhole) broken.push(`half of the grant of ${uid} to ${by} is there`);
      if (this.denied.has(by)) broken.push(`the grant to ${by} was denied and counts`);
    }
    return broken;
  }
}
