/** Leases without a disk: a state, a moment, and short ways to make requests, proofs and decisions. */
import { generateKeyPairSync, type KeyObject } from 'node:crypto';
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
import { type AllocateRequest, decideAllocate } from '../../../src/lease/allocate.ts';
import { openCertificate, signCertificate } from '../../../src/lease/certificate.ts';
import type { LeaseDecision, RuleFacts } from '../../../src/lease/decision.ts';
import { encodeEvent, type LeaseEvent } from '../../../src/lease/event.ts';
import { type Lease, scopesOf } from '../../../src/lease/lease.ts';
import type { LeaseRow } from '../../../src/lease/lease-table.ts';
import { leaseMachine } from '../../../src/lease/machine.ts';
import type { LeaseRef } from '../../../src/lease/reference.ts';
import { unwrap } from '../../../src/lease/refusal.ts';
import {
  decideBeginNormalise,
  decideBind,
  decideCertify,
  decideDrain,
  decideFinishRoot,
  decideFree,
  type NodeBinding,
} from '../../../src/lease/rules.ts';
import { hexOfPublicKey } from '../../../src/lease/signed-text.ts';
import { emptyState, type LeaseState } from '../../../src/lease/state.ts';
import type { Now } from '../../../src/lease/term.ts';

export const job = (text: string): JobId => text as JobId;
export const node = (text: string): NodeName => text as NodeName;
export const nodes = (...texts: string[]): NodeName[] => texts.map(node);
export const uid = (value: number): Uid => value as Uid;
export const attempt = (value: number): Attempt => value as Attempt;
export const epoch = (value: number): Epoch => value as Epoch;
export const leaseNumber = (value: number): LeaseNumber => value as LeaseNumber;

/** An event that no rule has checked. */
export const applyEvent = (state: LeaseState, event: LeaseEvent): void =>
  leaseMachine.replay(state, encodeEvent(event));

export const IDENTITY = { cluster: 'hpc', instance: 'main' as InstanceName };
export const T0 = 1_800_000_000_000;
export const BOOT = '11111111-2222-4333-8444-555555555555';
export const OTHER_BOOT = '99999999-2222-4333-8444-555555555555';

/** A moment `ms` after T0 on the host of BOOT, with its clock in order. */
export const at = (ms: number, other: Partial<Now> = {}): Now => ({
  wallMs: T0 + ms,
  monotonicMs: 1_000_000 + ms,
  bootId: BOOT,
  skewBoundMs: 5000,
  skewMs: 0,
  stepMs: 0,
  ...other,
});

export const facts = (now: Now = at(0), other: Partial<RuleFacts> = {}): RuleFacts => ({
  epoch: epoch(1),
  now,
  pool: { first: 70_000, last: 70_009 },
  rememberMs: 7 * 24 * 3600 * 1000,
  ...other,
});

export const request = (other: Partial<AllocateRequest> = {}): AllocateRequest => ({
  job: job('42'),
  attempt: attempt(0),
  schedulerStartS: null,
  submitter: { uid: 1001, gid: 100 },
  nodes: nodes('n1', 'n2'),
  roots: [],
  workspace: { storage: 'scratch', path: '/scratch/xce' },
  ttlMs: 60_000,
  ...other,
});

/** One worker's key and boot. */
export type TestWorker = { readonly key: KeyObject; readonly hex: string; bootId: string };
export const makeWorker = (bootId = OTHER_BOOT): TestWorker => {
  const key = generateKeyPairSync('ed25519').privateKey;
  return { key, hex: hexOfPublicKey(key), bootId };
};

/** A lease as a value or as a row. */
type AnyLease = Omit<Lease, 'isLive'>;

/** Events go through their bytes, as they do in a log. */
export class Scene {
  state: LeaseState = emptyState();
  readonly log: Uint8Array[] = [];
  readonly workers = new Map<NodeName, TestWorker>();

  /** Decides and applies; throws a refusal as XceError. */
  run<Result>(decision: LeaseDecision<Result>): Result {
    const { events, result } = unwrap(decision);
    this.apply(...events);
    return result;
  }

  apply(...events: readonly LeaseEvent[]): void {
    for (const event of events) {
      const bytes = leaseMachine.encode(event);
      this.log.push(bytes);
      leaseMachine.replay(this.state, bytes);
    }
  }

  /** Grants with every candidate unknown to the name service. */
  allocate(wanted: AllocateRequest = request(), how: RuleFacts = facts()): LeaseRow {
    const present = new Set<Uid>();
    const ask = (absent: readonly Uid[]) =>
      this.run(decideAllocate(this.state, how, wanted, { absent, present, wanted: 1 }));
    const first = ask([]);
    const allocation = first.kind === 'look-up' ? ask(first.candidates) : first;
    if (allocation.kind === 'look-up') throw new XceError('bug', 'a listed candidate was not taken');
    return this.lease(allocation.lease.lease);
  }

  /** The lease as it is at any time. */
  lease(number: number): LeaseRow {
    const row = this.state.leases.row(leaseNumber(number));
    if (row === undefined) throw new XceError('bug', `there is no lease ${number}`);
    return row;
  }

  worker(name: NodeName): TestWorker {
    const known = this.workers.get(name);
    if (known !== undefined) return known;
    const worker = makeWorker();
    this.workers.set(name, worker);
    return worker;
  }

  bindings(names: readonly NodeName[]): NodeBinding[] {
    return names.map((name) => {
      const { hex, bootId } = this.worker(name);
      return { node: name, workerKey: hex, bootId };
    });
  }

  bind(ref: LeaseRef, names: readonly NodeName[], how: RuleFacts = facts()): void {
    this.run(decideBind(this.state, how, ref, this.bindings(names)));
  }

  /** Drains with every node answering; returns the nonces. */
  drain(lease: AnyLease, how: RuleFacts = facts()) {
    const bindings = this.bindings([...lease.nodes.names]);
    return this.run(
      decideDrain(this.state, how, { lease: lease.number }, { bindings, seed: Buffer.from('seed') }),
    ).nonces;
  }

  certificate(lease: AnyLease, name: NodeName, nonce: string): string {
    const { key, bootId } = this.worker(name);
    const { number, uid: holder } = lease;
    return signCertificate(
      { ...IDENTITY, lease: number, uid: holder, node: name, bootId, nonce, wallMs: T0 },
      key,
    );
  }

  certify(lease: AnyLease, texts: readonly { node: NodeName; text: string }[], how: RuleFacts = facts()) {
    const offered = texts.map(({ node: name, text }) => ({
      node: name,
      certificate: unwrap(openCertificate(text, this.worker(name).hex)),
    }));
    return this.run(decideCertify(this.state, how, { lease: lease.number }, offered, IDENTITY));
  }

  /** Drains and certifies every node. */
  clean(lease: AnyLease): void {
    const nonces = this.drain(lease);
    this.certify(
      lease,
      nonces.map(({ node: name, nonce }) => ({ node: name, text: this.certificate(lease, name, nonce) })),
    );
  }

  normalise(lease: AnyLease): void {
    const ref = { lease: lease.number };
    const { proof } = this.run(decideBeginNormalise(this.state, facts(), ref));
    for (const path of scopesOf(lease))
      this.run(decideFinishRoot(this.state, facts(), ref, { path, proof, walked: 10, changed: 2, left: 0 }));
  }

  /** The whole way from active to free. */
  release(lease: AnyLease, how: RuleFacts = facts()): void {
    this.clean(lease);
    this.normalise(lease);
    this.run(decideFree(this.state, how, { lease: lease.number }));
  }
}

/** The bytes of a state; equal states have equal bytes. */
export const bytesOf = (state: LeaseState): Buffer => Buffer.concat([...leaseMachine.snapshot(state)]);

/** The code that a call refuses with. */
export const codeOf = (call: () => unknown): string => {
  try {
    call();
  } catch (error) {
    if (error instanceof XceError) return error.code;
    throw error;
  }
  return 'no refusal';
};
