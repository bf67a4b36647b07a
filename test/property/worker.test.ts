/**
 * The supervisor under every order in which a backend may answer, with workers that are killed at any moment.
 * Requests of all kinds for two leases of one uid and one of another run at the same time; fast-check's scheduler
 * chooses which act of the backend ends next, and replays it by seed.
 */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { XceError } from '../../src/base/errors.ts';
import type { Epoch, LeaseNumber, Uid } from '../../src/base/ids.ts';
import {
  drainOf,
  FakeBackend,
  Gate,
  Host,
  settle,
  stepOf,
  ticketFor,
  type Worker,
} from '../unit/worker/fakes.ts';

const LEASES = [
  { lease: 7, uid: 70_001 },
  { lease: 8, uid: 70_001 },
  { lease: 9, uid: 70_002 },
] as const;
type Target = (typeof LEASES)[number];

type Act =
  | { readonly act: 'prepare' | 'renew' | 'step' | 'stop' | 'drain' | 'lose'; readonly target: Target }
  | { readonly act: 'kill' };

const acts: fc.Arbitrary<Act> = fc.oneof(
  {
    weight: 12,
    arbitrary: fc.record({
      act: fc.constantFrom(
        'prepare' as const,
        'prepare' as const,
        'renew',
        'step',
        'step',
        'stop',
        'drain',
        'lose',
      ),
      target: fc.constantFrom(...LEASES),
    }),
  },
  { weight: 1, arbitrary: fc.constant({ act: 'kill' as const }) },
);

/** Counts worker processes; what a killed one was doing never goes on. */
type Life = { generation: number };

class ScheduledGate extends Gate {
  readonly #scheduler: fc.Scheduler;
  readonly #act: string;
  readonly #life: Life;

  constructor(scheduler: fc.Scheduler, act: string, life: Life) {
    super();
    this.#scheduler = scheduler;
    this.#act = act;
    this.#life = life;
  }

  override async pass(): Promise<void> {
    const { generation } = this.#life;
    await this.#scheduler.schedule(Promise.resolve(), this.#act);
    if (generation !== this.#life.generation) await new Promise(() => undefined);
  }
}

class World {
  readonly host: Host;
  readonly certified = new Set<number>();
  worker: Worker;
  readonly #life: Life = { generation: 0 };
  readonly #socketGate: Gate;
  /** A worker takes requests once it has looked at what the one before it left. */
  #listening: Promise<void> = Promise.resolve();
  readonly #tickets = new Map<number, string>();
  #steps = 0;

  constructor(scheduler: fc.Scheduler) {
    const gateOf = (act: string): Gate => new ScheduledGate(scheduler, act, this.#life);
    this.host = new Host(new FakeBackend(gateOf));
    this.#socketGate = gateOf('socket');
    this.worker = this.#start();
  }

  #start(): Worker {
    const { sockets } = this.host;
    return this.host.startWorker({
      openAgentSocket: async (lease) => {
        await this.#socketGate.pass();
        sockets.add(lease);
        return { close: async () => void sockets.delete(lease) };
      },
    });
  }

  /** The process is killed while it waits for something; the next one begins with what is on disk. */
  async kill(): Promise<void> {
    await settle();
    this.#life.generation += 1;
    this.host.sockets.clear();
    this.host.backend.forgetCalls();
    this.worker = this.#start();
    this.#listening = this.worker.supervisor.reconcile();
    await this.#listening;
  }

  #ticket({ lease, uid }: Target): string {
    return ticketFor(this.worker.nonces.issue(), {
      lease: lease as LeaseNumber,
      uid: uid as Uid,
      epoch: 3 as Epoch,
    });
  }

  async perform(action: Act): Promise<void> {
    if (action.act === 'kill') {
      await this.kill();
      return;
    }
    await this.#listening;
    const { target } = action;
    const { supervisor } = this.worker;
    const { lease } = target;
    switch (action.act) {
      case 'prepare': {
        const ticket = this.#ticket(target);
        await supervisor.prepare(ticket);
        this.#tickets.set(lease, ticket);
        break;
      }
      case 'renew':
        await supervisor.renew(this.#ticket(target));
        break;
      case 'step': {
        this.#steps += 1;
        const ticket = this.#tickets.get(lease) ?? this.#ticket(target);
        await supervisor.startStep(ticket, 'task', stepOf(`s${this.#steps}`), new AbortController().signal);
        break;
      }
      case 'stop':
        await supervisor.stop(lease as LeaseNumber);
        break;
      case 'drain':
        await supervisor.drain(drainOf(target));
        this.certified.add(lease);
        this.requireNothingOf(lease);
        break;
      case 'lose':
        this.host.backend.loseAnchor(lease);
        break;
    }
  }

  requireNothingOf(lease: number): void {
    expect(this.host.backend.anchors.has(lease)).toBe(false);
    expect(this.host.backend.steps.get(lease)?.size ?? 0).toBe(0);
  }

  /** What must hold at every moment. */
  check(): void {
    expect(this.host.backend.violations).toEqual([]);
    for (const lease of this.certified) this.requireNothingOf(lease);
    const uids = [...this.host.backend.anchors.values()].map(({ spec }) => spec.uid);
    expect(new Set(uids).size).toBe(uids.length);
    for (const [lease, steps] of this.host.backend.steps) {
      if (steps.size > 0) expect(this.host.backend.anchors.has(lease)).toBe(true);
    }
  }
}

/** Refusals are what many of these acts should get; anything else is a failure. */
const tolerate = async (work: Promise<void>): Promise<void> => {
  try {
    await work;
  } catch (error) {
    if (!(error instanceof XceError) || error.code === 'bug') throw error;
  }
};

test('whatever the order: one sandbox a uid, nothing after a certificate, and every lease can be drained', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.scheduler(),
      fc.array(acts, { minLength: 2, maxLength: 14 }),
      async (scheduler, plan) => {
        const world = new World(scheduler);
        const failures: unknown[] = [];
        for (const action of plan) {
          tolerate(world.perform(action)).catch((error: unknown) => failures.push(error));
          await settle();
          world.check();
          // Half of the time something in the backend ends before the next request comes.
          if (scheduler.count() > 1) await scheduler.waitOne();
          world.check();
        }
        for (let turn = 0; turn < 200 && scheduler.count() > 0; turn += 1) {
          await scheduler.waitOne();
          await settle();
          world.check();
        }
        expect(failures).toEqual([]);
        // From any state one drain of the newest lease of each uid, after a stop of the older, ends everything.
        const end = async (work: Promise<unknown>): Promise<void> => {
          let over = false;
          work.then(
            () => (over = true),
            () => (over = true),
          );
          for (let turn = 0; turn < 200 && !over; turn += 1) {
            if (scheduler.count() > 0) await scheduler.waitOne();
            await settle();
          }
          await work;
        };
        await end(world.worker.supervisor.stop(7 as LeaseNumber));
        await end(world.worker.supervisor.drain(drainOf(LEASES[1])));
        await end(world.worker.supervisor.drain(drainOf(LEASES[2])));
        world.check();
        expect(
          world.host.backend.anchors.size + world.host.records.files.size + world.host.sockets.size,
        ).toBe(0);
        for (const { lease } of LEASES.slice(1)) world.requireNothingOf(lease);
        expect(world.host.reports.filter(({ level }) => level === 'fault')).toEqual([]);
      },
    ),
    { numRuns: 150 },
  );
});
