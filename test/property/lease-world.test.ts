/**
 * Leases in a small world that can go wrong at any step: three nodes whose processes write files, three
 * controllers with clocks of their own, commits that get lost or whose answer gets lost, tickets and certificates
 * that arrive late. The log's rules and the worker's checks are the real ones; the world only keeps book of what a
 * uid left where. Nobody may ever get a uid of which something is left.
 */
import { generateKeyPairSync } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { assert } from '../../src/base/errors.ts';
import type { JobId, LeaseNumber, NodeName, Uid } from '../../src/base/ids.ts';
import { decideAllocate } from '../../src/lease/allocate.ts';
import { openCertificate, signCertificate } from '../../src/lease/certificate.ts';
import type { LeaseDecision, RuleFacts } from '../../src/lease/decision.ts';
import type { LeaseEvent } from '../../src/lease/event.ts';
import { type JobView, jobView, WholeStateNeeded } from '../../src/lease/job-view.ts';
import { type Lease, scopesOf } from '../../src/lease/lease.ts';
import { leaseMachine } from '../../src/lease/machine.ts';
import { listCandidates } from '../../src/lease/pool.ts';
import type { LeaseRef } from '../../src/lease/reference.ts';
import {
  decideBeginNormalise,
  decideBind,
  decideCertify,
  decideDrain,
  decideExpire,
  decideFinishRoot,
  decideFree,
  decideJoin,
  decideQuarantine,
  decideReclaim,
  decideRenew,
  decideRetry,
} from '../../src/lease/rules.ts';
import { rememberDrain, rememberTicket, type SeenUid } from '../../src/lease/seen.ts';
import { hexOfPublicKey } from '../../src/lease/signed-text.ts';
import { emptyState, type LeaseState } from '../../src/lease/state.ts';
import { checkTicket, claimsOfLease, type TicketClaims } from '../../src/lease/ticket.ts';
import { attempt, bytesOf, epoch, IDENTITY, job, nodes, request, T0 } from '../unit/lease/scene.ts';

const SEED = 20_260_731;
const POOL = { first: 70_000, last: 70_001 };
const NODES = nodes('n1', 'n2', 'n3');
/** Keys that a worker may have: another one after its node was installed anew. */
const KEYS = NODES.flatMap(() => [0, 1]).map(() => {
  const { privateKey } = generateKeyPairSync('ed25519');
  return { privateKey, hex: hexOfPublicKey(privateKey) };
});

type Ticket = { readonly claims: TicketClaims; readonly boot: number; readonly issuedMs: number };

/** A node: what its worker remembers on disk, and what is left of each uid. */
class TestNode {
  boot = 1;
  installed = 0;
  /** Gives no answer to the next request; what runs there is another matter. */
  isDown = false;
  readonly seen = new Map<Uid, SeenUid>();
  /** Uids with a living process. */
  readonly alive = new Set<Uid>();

  readonly name: NodeName;

  constructor(name: NodeName) {
    this.name = name;
  }

  get bootId(): string {
    return `${this.name}-boot-${this.boot}`;
  }

  get key() {
    const key = KEYS[NODES.indexOf(this.name) + NODES.length * (this.installed % 2)];
    assert(key !== undefined, 'every node has a key');
    return key;
  }
}

class Controller {
  jumpMs = 0;
  boot = 1;
  epoch = 1;
  readonly tickets: Ticket[] = [];
  /** Uids that were looked up some time ago. */
  candidates: readonly Uid[] = [];

  readonly name: string;

  constructor(name: string) {
    this.name = name;
  }
}

type Fate = 'acknowledged' | 'lost' | 'answer lost';

class World {
  state: LeaseState = emptyState();
  readonly log: Uint8Array[] = [];
  readonly nodes = NODES.map((name) => new TestNode(name));
  readonly controllers = ['c1', 'c2', 'c3'].map((name) => new Controller(name));
  readonly certificates: { node: NodeName; text: string; hex: string }[] = [];
  /** Which lease waits for which node, as the operators' book has it. */
  readonly reclaimed = new Set<string>();
  /** Paths of each lease that were walked since everything before could still write there. */
  readonly verified = new Map<number, Set<string>>();
  /** Files of a uid on shared storage, by path of the scope. */
  readonly files = new Map<Uid, Set<string>>();
  timeMs = 0;
  newestEpoch = 1;
  reissued = 0;
  freed = 0;
  returned = 0;
  refusedNodes = 0;

  facts(controller: Controller): RuleFacts {
    return {
      epoch: epoch(controller.epoch),
      now: {
        wallMs: Math.max(0, T0 + this.timeMs + controller.jumpMs),
        monotonicMs: 1_000_000 + this.timeMs,
        bootId: `${controller.name}-boot-${controller.boot}`,
        skewBoundMs: 5000,
        skewMs: -controller.jumpMs,
        stepMs: 0,
      },
      pool: POOL,
      rememberMs: 100_000,
    };
  }

  /** Every grant passes here: nothing of the uid may be left anywhere. */
  #checkGrant(uid: Uid): void {
    if (this.state.used.has(uid)) this.reissued += 1;
    expect(this.state.leases.isHeld(uid)).toBe(false);
    for (const node of this.nodes) expect([...node.alive]).not.toContain(uid);
    expect([...(this.files.get(uid) ?? [])]).toEqual([]);
  }

  /** A node that was reclaimed from any lease and has not certified since serves no job. */
  #checkUsable(names: readonly NodeName[]): void {
    for (const entry of this.reclaimed) expect(names).not.toContain(entry.split(' ')[0]);
  }

  /** What the operators know of an event before it is applied. */
  #keepBook(event: LeaseEvent): void {
    if (event.kind === 'allocate') {
      this.#checkGrant(event.uid);
      this.#checkUsable(event.nodes);
    }
    if (event.kind === 'bind' && this.state.leases.get(event.lease)?.status === 'active')
      this.#checkUsable([event.node]);
    if (event.kind === 'reclaim') this.reclaimed.add(`${event.node} ${event.lease}`);
    if (event.kind === 'certify' && this.reclaimed.delete(`${event.node} ${event.lease}`)) {
      this.returned += 1;
      this.verified.delete(event.lease);
    }
    if (event.kind === 'normalised')
      this.verified.set(event.lease, new Set([...(this.verified.get(event.lease) ?? []), event.path]));
    if (event.kind === 'free') {
      this.freed += 1;
      const lease = this.state.leases.get(event.lease);
      assert(lease !== undefined, 'what is freed was leased');
      expect(scopesOf(lease).filter((path) => this.verified.get(event.lease)?.has(path) !== true)).toEqual(
        [],
      );
      for (const entry of this.reclaimed) expect(entry.split(' ')[1]).not.toBe(String(event.lease));
    }
  }

  commit<Result>(
    controller: Controller,
    fate: Fate,
    rule: (state: LeaseState, facts: RuleFacts) => LeaseDecision<Result>,
  ): Result | undefined {
    if (controller.epoch !== this.newestEpoch) return undefined;
    const verdict = rule(this.state, this.facts(controller));
    if (!verdict.ok && verdict.code === 'node-withheld') {
      this.refusedNodes += 1;
      expect(this.reclaimed.size).toBeGreaterThan(0);
    }
    if (!verdict.ok || fate === 'lost') return undefined;
    for (const event of verdict.value.events) {
      this.#keepBook(event);
      const bytes = leaseMachine.encode(event);
      this.log.push(bytes);
      leaseMachine.replay(this.state, bytes);
    }
    return fate === 'acknowledged' ? verdict.value.result : undefined;
  }

  node(name: NodeName): TestNode {
    const node = this.nodes.find((one) => one.name === name);
    assert(node !== undefined, 'every node is there');
    return node;
  }

  bindings() {
    return this.nodes.map((node) => ({
      node: node.name,
      workerKey: node.key.hex,
      bootId: node.bootId,
    }));
  }

  /** A worker takes a ticket and starts a process, if its own checks let it. */
  start({ claims, boot, issuedMs }: Ticket): void {
    const node = this.node(claims.node);
    const verdict = checkTicket(claims, {
      ...IDENTITY,
      node: node.name,
      seen: node.seen.get(claims.uid),
      nonceIssuedMs: boot === node.boot ? issuedMs : undefined,
      nowMonotonicMs: this.timeMs,
    });
    if (!verdict.ok) return;
    node.seen.set(claims.uid, rememberTicket(node.seen.get(claims.uid), claims));
    node.alive.add(claims.uid);
  }

  /** Living processes write wherever their lease lets them. */
  write(lease: Lease): void {
    if (!this.nodes.some((node) => node.alive.has(lease.uid))) return;
    this.files.set(lease.uid, new Set([...(this.files.get(lease.uid) ?? []), ...scopesOf(lease)]));
  }

  /** The tombstone first; then the worker looks, and certifies only what it finds clean. */
  drainNode(
    lease: Lease,
    name: NodeName,
    nonce: string,
    by: Controller,
    survives: boolean,
  ): string | undefined {
    const node = this.node(name);
    const standing = { uid: lease.uid, epoch: by.epoch, lease: lease.number };
    node.seen.set(lease.uid, rememberDrain(node.seen.get(lease.uid), standing));
    if (survives && node.alive.has(lease.uid)) return undefined;
    node.alive.delete(lease.uid);
    const claims = {
      ...IDENTITY,
      lease: lease.number,
      uid: lease.uid,
      node: name,
      bootId: node.bootId,
      nonce,
      wallMs: T0,
    };
    return signCertificate(claims, node.key.privateKey);
  }
}

type Step = {
  readonly act: Act;
  readonly who: number;
  readonly which: number;
  readonly fate: Fate;
  readonly luck: boolean;
};

const pick = <Value>(values: readonly Value[], index: number): Value | undefined =>
  values[index % Math.max(1, values.length)];

const replay = (log: readonly Uint8Array[]): LeaseState => {
  const state = emptyState();
  for (const bytes of log) leaseMachine.replay(state, bytes);
  return state;
};

const restore = (from: LeaseState): LeaseState => {
  const state = emptyState();
  for (const record of leaseMachine.snapshot(from)) leaseMachine.restore(state, record);
  return state;
};

type Act = (world: World, by: Controller, lease: Lease | undefined, step: Step) => void;

const drain: Act = (world, by, lease, { fate, which }) => {
  if (lease === undefined) return;
  const ref = { lease: lease.number };
  const body = { bindings: world.bindings(), seed: Buffer.from(`${world.log.length}`) };
  const begun = world.commit(by, fate, (state, facts) =>
    lease.status === 'quarantined'
      ? decideRetry(state, facts, ref, body)
      : decideDrain(state, facts, ref, body),
  );
  for (const [index, { node, nonce }] of (begun?.nonces ?? []).entries()) {
    // Now and then a node does not answer, or a process survives.
    const { isDown } = world.node(node);
    world.node(node).isDown = false;
    if (isDown || (which + index) % 8 === 0) continue;
    const text = world.drainNode(lease, node, nonce, by, (which + index) % 7 === 0);
    if (text !== undefined) world.certificates.push({ node, text, hex: world.node(node).key.hex });
  }
};

/** The newest certificates; the unlucky offer any old ones as well, and one under any name. */
const offerCertificates: Act = (world, by, lease, { fate, luck, which }) => {
  if (lease === undefined) return;
  const old = pick(world.certificates, which);
  const name = pick(NODES, which + 1);
  const wrong = luck || old === undefined || name === undefined ? [] : [{ ...old, node: name }, old];
  const oldOnes = luck ? [] : world.certificates.slice(-9, -3);
  const offered = [...wrong, ...oldOnes, ...world.certificates.slice(-3)].flatMap(({ node, text, hex }) => {
    const opened = openCertificate(text, hex);
    return opened.ok ? [{ node, certificate: opened.value }] : [];
  });
  world.commit(by, fate, (state, facts) =>
    decideCertify(state, facts, { lease: lease.number }, offered, IDENTITY),
  );
};

const normalise: Act = (world, by, lease, { fate, which }) => {
  if (lease === undefined) return;
  const ref = { lease: lease.number };
  const begun = world.commit(by, fate, (state, facts) => decideBeginNormalise(state, facts, ref));
  if (begun === undefined) return;
  for (const path of scopesOf(lease)) {
    const left = world.files.get(lease.uid);
    // Now and then the walk does not reach all.
    if (which % 4 !== 0) left?.delete(path);
    const { proof } = begun;
    const found = { path, proof, walked: 1, changed: 1, left: left?.has(path) === true ? 1 : 0 };
    world.commit(by, fate, (state, facts) => decideFinishRoot(state, facts, ref, found));
  }
};

const free: Act = (world, by, lease, { fate }) => {
  if (lease === undefined) return;
  world.commit(by, fate, (state, facts) => decideFree(state, facts, { lease: lease.number }));
};

const lookUp: Act = (world, by, _, { which }) => {
  by.candidates = listCandidates(world.state, POOL, 1 + (which % 2), new Set());
};

const allocate: Act = (world, by, _, { which, fate, luck }) => {
  const wanted = request({
    job: job(luck ? `new${world.log.length}` : String(which % 4)),
    attempt: attempt(which % 5),
    nodes: which % 2 === 0 ? NODES : NODES.slice(0, 2),
    roots: [{ path: '/scratch/out', storage: 'scratch' }],
    ttlMs: 10_000,
  });
  const proven = { absent: by.candidates, present: new Set<Uid>(), wanted: 1 };
  world.commit(by, fate, (state, facts) => decideAllocate(state, facts, wanted, proven));
};

/** Binds and signs tickets, which may be used at any time later. */
const bind: Act = (world, by, lease, { fate }) => {
  if (lease === undefined) return;
  const issuedMs = world.timeMs;
  const bindings = world.bindings().filter(({ node }) => lease.nodes.has(node));
  const view = world.commit(by, fate, (state, facts) =>
    decideBind(state, facts, { lease: lease.number }, bindings),
  );
  if (view === undefined) return;
  for (const { node } of bindings) {
    const shared = claimsOfLease(view, { ...IDENTITY, epoch: epoch(by.epoch), issuedWallMs: T0 });
    const claims = { ...shared, node, nonce: '0'.repeat(32) };
    by.tickets.push({ claims, boot: world.node(node).boot, issuedMs });
  }
};

const start: Act = (world, by, _, { which, luck }) => {
  for (const ticket of luck ? by.tickets.slice(-3) : [pick(by.tickets, which)])
    if (ticket !== undefined) world.start(ticket);
};

const write: Act = (world, _, lease) => {
  if (lease !== undefined) world.write(lease);
};

/**
 * An operator says that a node is fenced off. The unlucky are wrong: its processes live and write on. What comes back
 * after a true word may have been installed anew, and then remembers nothing.
 */
const reclaim: Act = (world, by, lease, { fate, luck, which }) => {
  const name = pick([...(lease?.nodes.names ?? [])], which);
  if (lease === undefined || name === undefined) return;
  const node = world.node(name);
  node.isDown = true;
  if (luck) {
    node.boot += 1;
    node.alive.clear();
  }
  if (luck && which % 3 === 0) {
    node.installed += 1;
    node.seen.clear();
  }
  const word = { node: name, by: 'root', reason: 'power supply' };
  world.commit(by, fate, (state, facts) => decideReclaim(state, facts, { lease: lease.number }, word));
};

const inOrder =
  (...acts: readonly Act[]): Act =>
  (world, by, lease, step) => {
    for (const act of acts) act(world, by, lease, step);
  };

const ACTS: readonly { readonly weight: number; readonly act: Act }[] = [
  { weight: 2, act: lookUp },
  { weight: 2, act: allocate },
  { weight: 4, act: inOrder(lookUp, allocate) },
  { weight: 2, act: bind },
  { weight: 3, act: start },
  { weight: 2, act: write },
  { weight: 5, act: inOrder(bind, start, write) },
  { weight: 2, act: drain },
  { weight: 2, act: offerCertificates },
  { weight: 2, act: normalise },
  { weight: 2, act: free },
  { weight: 8, act: inOrder(drain, offerCertificates, normalise, free) },
  {
    weight: 1,
    act: (world, by, lease, { fate }) => {
      if (lease === undefined) return;
      const why = { code: 'operator', text: '', node: null } as const;
      world.commit(by, fate, (state, facts) => decideQuarantine(state, facts, { lease: lease.number }, why));
    },
  },
  {
    weight: 1,
    act: (world, by, lease, { fate }) => {
      if (lease !== undefined)
        world.commit(by, fate, (state, facts) => decideRenew(state, facts, { lease: lease.number }, 10_000));
    },
  },
  {
    weight: 1,
    act: (world, by, lease, { fate }) => {
      if (lease !== undefined)
        world.commit(by, fate, (state, facts) => decideExpire(state, facts, { lease: lease.number }));
    },
  },
  {
    weight: 1,
    act: (world, by, lease, { fate, which }) => {
      const name = pick(NODES, which);
      if (lease !== undefined && name !== undefined)
        world.commit(by, fate, (state, facts) => decideJoin(state, facts, { lease: lease.number }, name));
    },
  },
  {
    weight: 1,
    act: (world, _, __, { which }) => {
      world.timeMs += 1000 * (which % 15);
    },
  },
  {
    weight: 1,
    act: (_, by, __, { which, luck }) => {
      by.jumpMs = luck ? 0 : (which % 2 === 0 ? 1 : -1) * 1000 * (which % 7200);
    },
  },
  // Takes the log over.
  {
    weight: 3,
    act: (world, by) => {
      world.newestEpoch += 1;
      by.epoch = world.newestEpoch;
    },
  },
  { weight: 2, act: reclaim },
  {
    weight: 2,
    act: inOrder(reclaim, drain, offerCertificates, normalise, write, drain, offerCertificates, free),
  },
  // A controller reboots: tickets in hand are gone. A node reboots: processes are gone, its memory is not.
  {
    weight: 1,
    act: (world, by, _, { which, luck }) => {
      const node = pick(world.nodes, which);
      if (luck) {
        by.boot += 1;
        by.tickets.length = 0;
        by.candidates = [];
      } else if (node !== undefined) {
        node.boot += 1;
        node.alive.clear();
      }
    },
  },
  // Everybody starts again from the log, or from a checkpoint of it.
  {
    weight: 1,
    act: (world, _, __, { luck }) => {
      world.state = luck ? replay(world.log) : restore(world.state);
    },
  },
];

const checkIndices = ({ state }: World): void => {
  const leases = [...state.leases.values()];
  expect(new Set(leases.map((lease) => lease.uid)).size).toBe(leases.length);
  expect(state.leases.size).toBe(leases.length);
  for (const lease of leases) {
    expect(state.leases.rowOfUid(lease.uid)?.number).toBe(lease.number);
    expect(state.leases.ofJob(lease.job)).toContainEqual(lease);
    expect(state.freed.has(lease.uid)).toBe(false);
  }
  const jobs = new Set(leases.map((lease) => lease.job));
  expect([...jobs].flatMap((id) => state.leases.ofJob(id))).toHaveLength(leases.length);
  // What has ended is found no more.
  const held = new Set(leases.map((lease) => lease.uid));
  for (const { first, last } of state.used)
    for (let uid = first; uid <= last; uid += 1)
      expect([uid, state.leases.isHeld(uid as Uid)]).toEqual([uid, held.has(uid as Uid)]);
  for (const { job: id } of state.ended) if (!jobs.has(id)) expect(state.leases.ofJob(id)).toEqual([]);
};

const step: fc.Arbitrary<Step> = fc.record({
  act: fc.oneof(...ACTS.map(({ weight, act }) => ({ weight, arbitrary: fc.constant(act) }))),
  who: fc.nat({ max: 2 }),
  which: fc.nat({ max: 9999 }),
  fate: fc.oneof(
    { weight: 8, arbitrary: fc.constant<Fate>('acknowledged') },
    { weight: 1, arbitrary: fc.constant<Fate>('lost') },
    { weight: 1, arbitrary: fc.constant<Fate>('answer lost') },
  ),
  luck: fc.oneof({ weight: 3, arbitrary: fc.constant(true) }, { weight: 1, arbitrary: fc.constant(false) }),
});

const run = (steps: readonly Step[]): World => {
  const world = new World();
  for (const one of steps) {
    const by = pick(world.controllers, one.who);
    assert(by !== undefined, 'there are controllers');
    const lease = pick([...world.state.leases.values()], one.which);
    one.act(world, by, lease, one);
    checkIndices(world);
  }
  return world;
};

const NOBODY = job('nobody');

/** Every lease and job that was ever there, and some that were not. */
const refsOf = ({ state, log }: World): readonly LeaseRef[] => {
  const jobs = new Set<JobId>([NOBODY]);
  for (const bytes of log) {
    const event = leaseMachine.decode(bytes);
    if (event.kind === 'allocate') jobs.add(event.job);
  }
  const numbers = Array.from({ length: state.nextLease }, (_, index) => ({
    lease: (index + 1) as LeaseNumber,
  }));
  return [...[...jobs].map((id) => ({ job: id })), ...numbers];
};

/** What `ask` answers, or that only the whole state can say. */
const orWhole = <T>(ask: () => T): T | 'whole' => {
  try {
    return ask();
  } catch (error) {
    if (error instanceof WholeStateNeeded) return 'whole';
    throw error;
  }
};

/** A view says what the whole state says of the job, or that it does not know. */
const expectToAgree = (view: JobView, ref: LeaseRef, state: LeaseState, isCheckpoint: boolean): void => {
  const isWanted = ({ number, job: id }: Lease) => ('lease' in ref ? number === ref.lease : id === ref.job);
  const wanted = [...state.leases.values()].filter(isWanted);
  expect([view.epoch, view.nextLease, [...view.own.leases.values()]]).toEqual([
    state.epoch,
    state.nextLease,
    wanted,
  ]);
  if ('lease' in ref) return;
  expect(view.leases.ofJob(ref.job)).toEqual(state.leases.ofJob(ref.job));
  const ended = orWhole(() => view.ended.ofJob(ref.job));
  if (ended !== 'whole') expect(ended).toEqual(state.ended.ofJob(ref.job));
  // Nothing is left open where nothing stands behind the checkpoint.
  if (isCheckpoint) expect(ended).not.toBe('whole');
};

describe('leases in a world where anything may fail', () => {
  test('nobody gets a uid of which anything is left, and the log always says the same', () => {
    let reissued = 0;
    let freed = 0;
    let returned = 0;
    let refusedNodes = 0;
    fc.assert(
      fc.property(fc.array(step, { minLength: 30, maxLength: 80, size: 'max' }), (steps) => {
        const world = run(steps);
        reissued += world.reissued;
        freed += world.freed;
        returned += world.returned;
        refusedNodes += world.refusedNodes;
        expect(bytesOf(replay(world.log)).equals(bytesOf(world.state))).toBe(true);
        expect(bytesOf(restore(world.state)).equals(bytesOf(world.state))).toBe(true);
      }),
      { seed: SEED, numRuns: 120 },
    );
    // The property says little unless uids really go round.
    expect(freed).toBeGreaterThan(20);
    expect(reissued).toBeGreaterThan(5);
    expect(returned).toBeGreaterThan(5);
    expect(refusedNodes).toBeGreaterThan(5);
  }, 180_000);

  test('say of one job in a view of it, from whatever checkpoint, what they say in the whole state', () => {
    fc.assert(
      fc.property(fc.array(step, { minLength: 30, maxLength: 80, size: 'max' }), (steps) => {
        const world = run(steps);
        const { log, state } = world;
        for (const count of [0, Math.floor(log.length / 2), log.length]) {
          const records = [...leaseMachine.snapshot(replay(log.slice(0, count)))];
          for (const ref of refsOf(world)) {
            const { empty, restore: add, replay: apply } = jobView(ref);
            const view = empty();
            for (const record of records) add(view, record);
            for (const event of log.slice(count)) apply(view, event);
            expectToAgree(view, ref, state, count === log.length);
          }
        }
      }),
      { seed: SEED, numRuns: 20 },
    );
  }, 180_000);
});
