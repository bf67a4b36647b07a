/**
 * The sandboxes of this node and what may happen to them.
 *
 *            prepare                     anchor is up
 *   (none) ─────────────> preparing ──────────────────> ready ──────────┐
 *      ▲                      │                           │             │ the anchor ended without us: deadline,
 *      │ refused, nothing left│              stop, drain  │             │ operator, crash; or a new worker
 *      ├──────────────────────┘                           ▼             │ cannot take it over
 *      │                  gone                                          ▼
 *      ├────────────────────────────────────────────── stopping <───── lost ── prepare ──> preparing
 *      │                                                  │ stop, drain
 *      │         stop, drain find nothing more            ▼ something was left
 *      └────────────────────────────────────────────── dirty
 *
 * Every state is on disk before it is acted upon. `preparing` and `stopping` are only seen by others after a
 * crash, and count as `lost` then: only `ready` starts anything. A lease that was drained is kept away by the
 * memory of its uid (memory.ts), not by a record.
 *
 * One turn per lease (turns.ts): starts of steps share it, everything else has it alone. A drain writes its
 * tombstone *before* it asks for its turn, so starts that come later refuse and starts in flight are waited out.
 * So does the stop of one launch, whose steps are then ended without the turn: other launches go on meanwhile.
 */
import { assert, messageOf, XceError } from '../base/errors.ts';
import { type LeaseNumber, type NodeName, parseLeaseNumber, type Uid } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import type { TicketClaims } from '../lease/ticket.ts';
import { withinMs } from '../os/within.ts';
import type { RequestOf, Resources, ResponseOf } from '../rpc/message.ts';
import type { Subject } from '../rpc/verbs.ts';
import type { Finding, RunningStep, StepSpec } from '../sandbox/backend.ts';
import { Admission, type OpenedTicket } from './admission.ts';
import { EndedLaunches } from './ended-launches.ts';
import { dirtyError, unknownFinding } from './findings.ts';
import type { Memory } from './memory.ts';
import type { Nonces } from './nonces.ts';
import type { AgentSocket, SupervisorPorts } from './ports.ts';
import {
  type Anchor,
  decodeRecord,
  encodeRecord,
  GRANTS_MAX,
  type Grant,
  type SandboxRecord,
  type SandboxState,
} from './record.ts';
import { type StepOwner, Steps } from './steps.ts';
import {
  chooseResources,
  identityOf,
  requireSameIdentity,
  requireSameTerms,
  type SandboxIdentity,
  specOf,
} from './terms.ts';
import { Turns } from './turns.ts';

/** Sandboxes looked at together when the worker starts. */
const RECONCILED_TOGETHER = 8;
/** A look at a living anchor that fails again and again is no look. */
const WATCH_FAILURES_MAX = 8;

type Sandbox = {
  record: SandboxRecord;
  readonly steps: Steps;
  /** The launch whose prepare made it, until another one uses it: the sandbox is the lease's from then on. */
  owner: string | undefined;
  /** Ends the watch over the anchor. */
  watch: AbortController | undefined;
  agentSocket: AgentSocket | undefined;
};

type Started = { readonly sandbox: Sandbox; readonly running: RunningStep };

const requireAnchor = ({ record }: Sandbox): Anchor => {
  assert(record.anchor !== null, 'a ready sandbox has an anchor');
  return record.anchor;
};

export class Supervisor {
  readonly #ports: SupervisorPorts;
  readonly #admission: Admission;
  readonly #endedLaunches = new EndedLaunches();
  readonly #turns = new Turns();
  readonly #sandboxes = new Map<LeaseNumber, Sandbox>();
  /** Leases with a record that does not decode: nothing starts for them; a drain, which names all, ends them. */
  readonly #unreadable = new Set<string>();
  #closing = false;

  constructor(ports: SupervisorPorts, memory: Memory, nonces: Nonces) {
    this.#ports = ports;
    this.#admission = new Admission(ports, memory, nonces);
  }

  /**
   * Reads the records of an earlier worker. A sandbox whose anchor lives and whose ticket has not ended is
   * adopted, without its steps; every other one is ended and counts as lost.
   */
  async reconcile(): Promise<void> {
    const leases: Sandbox[] = [];
    for (const name of this.#ports.records.list()) {
      const bytes = this.#ports.records.read(name);
      const record = bytes === undefined ? undefined : decodeRecord(bytes, this.#ports.openTicket);
      if (record === undefined || String(record.claims.lease) !== name) {
        this.#unreadable.add(name);
        this.#ports.report({ level: 'fault', message: `the record of lease ${name} cannot be read` });
        continue;
      }
      leases.push(this.#hold(record));
    }
    let next = 0;
    const take = async (): Promise<void> => {
      for (let sandbox = leases[next++]; sandbox !== undefined; sandbox = leases[next++]) {
        await this.#reconcileOne(sandbox);
      }
    };
    await Promise.all(Array.from({ length: RECONCILED_TOGETHER }, take));
  }

  #hold(record: SandboxRecord): Sandbox {
    const { lease } = record.claims;
    const steps = new Steps(this.#ports, lease);
    const sandbox: Sandbox = {
      record,
      steps,
      owner: undefined,
      watch: undefined,
      agentSocket: undefined,
    };
    this.#sandboxes.set(lease, sandbox);
    return sandbox;
  }

  async #reconcileOne(sandbox: Sandbox): Promise<void> {
    const { claims, state } = sandbox.record;
    const why = (await this.#whyNotAdopted(sandbox)) ?? (await this.#adopt(sandbox));
    if (why === undefined || state === 'dirty') return;
    try {
      await this.#end(sandbox);
      this.#save(sandbox, { ...sandbox.record, state: 'lost' });
      this.#ports.report({ level: 'notice', message: `lease ${claims.lease} was ended: ${why}` });
    } catch (error) {
      this.#ports.report({ level: 'fault', message: `lease ${claims.lease}: ${messageOf(error)}` });
    }
  }

  async #whyNotAdopted(sandbox: Sandbox): Promise<string | undefined> {
    const { record } = sandbox;
    const { anchor, claims } = record;
    if (record.state !== 'ready' || anchor === null) return `it was ${record.state}`;
    if (record.bootId !== this.#ports.bootId) return 'the node was booted since';
    if (record.deadlineMs <= this.#ports.clock.monotonicMs()) return 'its ticket has expired';
    try {
      const alive = await this.#ports.backend.isAlive(specOf(claims), anchor.invocationId);
      return alive ? undefined : 'its anchor is gone';
    } catch (error) {
      return `its anchor could not be asked for: ${messageOf(error)}`;
    }
  }

  /** Takes a living sandbox over; steps that a killed worker left are ended, because their streams are gone. */
  async #adopt(sandbox: Sandbox): Promise<string | undefined> {
    const { claims } = sandbox.record;
    try {
      if (this.#ports.busy.read(String(claims.lease)) !== undefined) {
        await this.#ports.backend.stopSteps(specOf(claims));
        this.#ports.busy.remove(String(claims.lease));
      }
      sandbox.agentSocket = await this.#ports.openAgentSocket(claims.lease, claims.uid);
    } catch (error) {
      return `it could not be taken over: ${messageOf(error)}`;
    }
    this.#watch(sandbox, 0);
    this.#ports.report({ level: 'notice', message: `lease ${claims.lease} goes on` });
    return undefined;
  }

  /** The lease that an authentic ticket names; whether it holds is for whoever uses it. */
  leaseOf(ticket: string): LeaseNumber {
    return this.#admission.open(ticket).claims.lease;
  }

  /**
   * For the audit: what an authentic ticket is about; of any other nothing is known but what was wanted. `link` stands
   * between that and the lease.
   */
  subjectOfTicket(wanted: string, ticket: string, link: ' ' | ' of ' = ' '): Subject {
    const opened = this.#ports.openTicket(ticket);
    if (!opened.ok) return { act: wanted };
    const { lease, job, uid } = opened.value;
    return { act: `${wanted}${link}lease ${lease}`, lease, job, uid };
  }

  /** For the audit: what is known here of a lease that somebody named. */
  subjectOfLease(verb: string, lease: number): Subject {
    const claims = this.#sandboxes.get(lease as LeaseNumber)?.record.claims;
    const known = claims === undefined ? {} : { job: claims.job, uid: claims.uid };
    return { act: `${verb} lease ${lease}`, lease, ...known };
  }

  /** Sets up the sandbox of a ticket, or finds it set up. No process of the job starts. */
  async prepare(ticket: string, launch?: string, asked?: Resources): Promise<ResponseOf<'prepare'>> {
    const opened = this.#admission.open(ticket);
    return this.#turns.alone(opened.claims.lease, () => this.#prepareInTurn(opened, launch, asked));
  }

  async #prepareInTurn(
    opened: OpenedTicket,
    launch: string | undefined,
    asked: Resources | undefined,
  ): Promise<ResponseOf<'prepare'>> {
    this.#requireOpen();
    const { claims } = opened;
    this.#endedLaunches.requireOpen(claims.lease, launch);
    const known = this.#sandboxes.get(claims.lease);
    const grant = this.#admission.accept(known?.record, claims);
    if (this.#unreadable.has(String(claims.lease)) || known?.record.state === 'dirty') {
      throw new XceError('node-dirty', `lease ${claims.lease} was not ended cleanly here; drain it first`);
    }
    if (known !== undefined) requireSameTerms(known.record.claims, claims);
    const resources = chooseResources(claims.lease, known?.record.resources, asked);
    if (known?.record.state === 'ready' && (await this.#isAlive(known))) {
      const anchor = await this.#extend(known, opened, grant);
      if (known.owner !== launch) known.owner = undefined;
      return this.#prepared(anchor, resources, false);
    }
    if (known !== undefined) await this.#remove(known);
    const anchor = await this.#create(opened, grant, launch, resources);
    // Only a ticket that was taken closes its nonce: the same request may come again after a lost answer.
    this.#admission.close(claims.nonce);
    return this.#prepared(anchor, resources, true);
  }

  #prepared(anchor: Anchor, resources: Resources, created: boolean): ResponseOf<'prepare'> {
    const { unit, invocationId, workspace, mounts } = anchor;
    return { unit, invocationId, created, workspace, mounts: [...mounts], resources };
  }

  async #create(
    { ticket, claims }: OpenedTicket,
    grant: Grant,
    launch: string | undefined,
    resources: Resources,
  ): Promise<Anchor> {
    const { lease, uid } = claims;
    if (this.#sandboxes.size >= LIMITS.sandboxesMax) {
      throw new XceError('worker-busy', `this node has ${LIMITS.sandboxesMax} sandboxes already`);
    }
    const rival = this.#rivalOf(lease, uid);
    if (rival !== undefined) {
      throw new XceError('sandbox-exists', `uid ${uid} belongs to lease ${rival} on this node still`);
    }
    this.#ports.requirePool(uid);
    const { bootId } = this.#ports;
    const { deadlineMs } = grant;
    // From here on the uid is taken on this node: two leases that ask for it at once cannot both go on.
    const sandbox = this.#hold({
      state: 'preparing',
      bootId,
      ticket,
      claims,
      grants: [grant],
      deadlineMs,
      anchor: null,
      resources,
    });
    sandbox.owner = launch;
    let touched = false;
    try {
      await this.#ports.requireUnused(uid);
      this.#ports.requireStorage(claims);
      this.#admission.recheck(claims, grant.issuedMs);
      this.#save(sandbox, sandbox.record);
      touched = true;
      const created = await this.#ports.backend.create(
        specOf(claims),
        resources,
        this.#remainingMs(deadlineMs),
      );
      const { unit, invocationId, workspace, mounts } = created;
      const anchor: Anchor = { unit, invocationId, workspace, mounts: [...mounts] };
      sandbox.agentSocket = await this.#ports.openAgentSocket(lease, uid);
      this.#save(sandbox, { ...sandbox.record, state: 'ready', anchor });
      this.#watch(sandbox, 0);
      return anchor;
    } catch (error) {
      if (touched) await this.#undo(sandbox);
      else this.#sandboxes.delete(lease);
      throw error;
    }
  }

  /** After a prepare that failed: the first error is the answer, one of the undoing goes to the log. */
  async #undo(sandbox: Sandbox): Promise<void> {
    try {
      await this.#remove(sandbox);
    } catch (error) {
      this.#ports.report({
        level: 'fault',
        message: `lease ${sandbox.record.claims.lease} could not be undone: ${messageOf(error)}`,
      });
    }
  }

  /** A newer ticket of a living sandbox: the deadline moves out. */
  async renew(ticket: string): Promise<ResponseOf<'renew'>> {
    const opened = this.#admission.open(ticket);
    const { claims } = opened;
    return this.#turns.alone(claims.lease, async () => {
      const sandbox = this.#requireReady(claims.lease);
      const grant = this.#admission.accept(sandbox.record, claims);
      requireSameTerms(sandbox.record.claims, claims);
      await this.#extend(sandbox, opened, grant);
      return { remainingMs: this.#remainingMs(sandbox.record.deadlineMs) };
    });
  }

  /** Takes a further ticket into the record; arms the deadline anew if it moves out. It never moves in. */
  async #extend(sandbox: Sandbox, { ticket, claims }: OpenedTicket, grant: Grant): Promise<Anchor> {
    const { record } = sandbox;
    const anchor = requireAnchor(sandbox);
    const nowMs = this.#ports.clock.monotonicMs();
    const others = record.grants.filter((old) => old.deadlineMs > nowMs && old.nonce !== grant.nonce);
    const deadlineMs = Math.max(record.deadlineMs, grant.deadlineMs);
    if (deadlineMs > record.deadlineMs) {
      await this.#ports.backend.armDeadline(specOf(claims), this.#remainingMs(deadlineMs));
    }
    // The anchor may have ended while its deadline was armed; then there is nothing left to extend.
    if (sandbox.record.state !== 'ready') throw this.#stateError(sandbox);
    this.#save(sandbox, {
      ...sandbox.record,
      ticket,
      claims,
      grants: [...others.slice(1 - GRANTS_MAX), grant],
      deadlineMs,
    });
    this.#admission.close(claims.nonce);
    return anchor;
  }

  /**
   * Ends what a launch owns here, or without one the sandbox with all its steps. A later prepare of the lease may
   * make a new one.
   */
  async stop(lease: LeaseNumber, launch?: string): Promise<ResponseOf<'stop'>> {
    if (launch !== undefined) this.#endedLaunches.add(lease, launch);
    const { stopped, steps } = await this.#turns.alone(lease, async () => {
      const sandbox = this.#sandboxes.get(lease);
      if (sandbox === undefined) return { stopped: false, steps: [] };
      if (launch !== undefined && sandbox.owner !== launch) {
        const own = sandbox.steps.ofLaunch(launch);
        return { stopped: own.length > 0, steps: own };
      }
      const wasReady = sandbox.record.state === 'ready';
      await this.#remove(sandbox);
      return { stopped: wasReady, steps: [] };
    });
    await Promise.all(steps.map((step) => this.#stopStep(lease, step)));
    return { stopped };
  }

  async #stopStep(lease: LeaseNumber, step: RunningStep): Promise<void> {
    try {
      await step.stop();
    } catch (error) {
      throw new XceError(
        'node-dirty',
        `lease ${lease}: ${step.unit} could not be ended: ${messageOf(error)}`,
        {
          cause: error,
        },
      );
    }
  }

  /**
   * Ends the lease on this node for good and proves that nothing of it is left. Answers with a certificate or
   * throws 'node-dirty' with what was found; may be asked again.
   */
  async drain(request: RequestOf<'drain'>): Promise<ResponseOf<'drain'>> {
    const { instance } = this.#ports;
    const { job } = request;
    const identity = {
      instance,
      job,
      attempt: request.attempt,
      lease: request.lease,
      uid: request.uid,
    } as SandboxIdentity;
    this.#requireSame(identity);
    this.#admission.bury({ uid: identity.uid, epoch: request.epoch, lease: identity.lease });
    return withinMs(
      this.#ports.drainTimeoutMs,
      this.#turns.alone(identity.lease, () => this.#drainInTurn(identity, request.nonce)),
      () => new XceError('timeout', `lease ${identity.lease} could not be ended and searched for in time`),
    );
  }

  async #drainInTurn(identity: SandboxIdentity, nonce: string): Promise<ResponseOf<'drain'>> {
    this.#requireSame(identity);
    const { lease, uid } = identity;
    const findings = await this.#endAndLook(identity);
    if (findings.length > 0) {
      const sandbox = this.#sandboxes.get(lease);
      if (sandbox !== undefined) this.#saveOrReport(sandbox, 'dirty');
      throw dirtyError(lease, findings);
    }
    this.#forget(lease);
    const { cluster, instance, node, bootId, clock } = this.#ports;
    const wallMs = clock.wallMs();
    return {
      certificate: this.#ports.signCertificate({
        cluster,
        instance,
        lease,
        uid,
        node,
        bootId,
        nonce,
        wallMs,
      }),
    };
  }

  #requireSame(identity: SandboxIdentity): void {
    const known = this.#sandboxes.get(identity.lease);
    if (known !== undefined) requireSameIdentity(known.record.claims, identity);
  }

  async #endAndLook(identity: SandboxIdentity): Promise<readonly Finding[]> {
    const findings: Finding[] = [];
    const unended: Finding[] = [];
    const sandbox = this.#sandboxes.get(identity.lease);
    try {
      if (sandbox === undefined) await this.#ports.backend.destroy(identity);
      else await this.#end(sandbox);
    } catch (error) {
      unended.push(unknownFinding('it could not be ended', error));
    }
    try {
      findings.push(...(await this.#ports.backend.scan(identity)));
    } catch (error) {
      findings.push(unknownFinding('the node could not be searched', error));
    }
    const rival = this.#rivalOf(identity.lease, identity.uid);
    if (rival !== undefined) {
      findings.push({ kind: 'unit', detail: `uid ${identity.uid} belongs to lease ${rival} on this node` });
    }
    // The first one is what people read: what is left says more than that something is.
    return [...findings, ...unended];
  }

  /** How many leases have something left here, or could not be looked at. */
  get dirtyLeases(): number {
    const dirty = [...this.#sandboxes.values()].filter(({ record }) => record.state === 'dirty');
    return dirty.length + this.#unreadable.size;
  }

  /** What is on this node, for people and for the tests of other parts. */
  status(): ResponseOf<'status'> {
    const nowMs = this.#ports.clock.monotonicMs();
    const { node, bootId } = this.#ports;
    const sandboxes = [...this.#sandboxes.values()].map(({ record, steps }) => ({
      lease: record.claims.lease,
      job: record.claims.job,
      attempt: record.claims.attempt,
      uid: record.claims.uid,
      unit: record.anchor?.unit ?? '',
      state: record.state,
      remainingMs:
        record.state === 'ready' && record.bootId === bootId ? Math.max(0, record.deadlineMs - nowMs) : 0,
      steps: steps.list(),
    }));
    return { node, bootId, sandboxes };
  }

  /** Leases that have left something on this node and of which `status` tells nothing, lowest first. */
  async strays(): Promise<ResponseOf<'strays'>> {
    // A sandbox has its record before its first name and until after its last one: what is made or ended meanwhile is
    // known before or after, unless all of its life lies in between.
    const before = new Set(this.#sandboxes.keys());
    const named = await this.#ports.backend.listLeases();
    const left = [...named].filter((lease) => !before.has(lease) && !this.#sandboxes.has(lease));
    const unreadable = [...this.#unreadable].flatMap((name) => parseLeaseNumber(name) ?? []);
    const leases = [...new Set([...left, ...unreadable])].sort((one, other) => one - other);
    return { node: this.#ports.node, leases: leases.slice(0, LIMITS.sandboxesMax) };
  }

  /** Starts one step of a prepared sandbox for the holder of a ticket that prepare or renew accepted. */
  async startStep(
    ticket: string,
    kind: 'task' | 'head',
    step: StepSpec,
    signal: AbortSignal,
    launch?: string,
  ): Promise<RunningStep> {
    const { claims } = this.#admission.open(ticket);
    const start = this.#turns.shared(claims.lease, () => {
      this.#endedLaunches.requireOpen(claims.lease, launch);
      this.#admission.check(this.#sandboxes.get(claims.lease)?.record, claims);
      const sandbox = this.#requireReady(claims.lease);
      requireSameTerms(sandbox.record.claims, claims);
      return this.#start(sandbox, { kind, launch }, step);
    });
    return this.#keepFor(signal, await start);
  }

  /** Starts a launcher daemon for the worker of another node of the same lease. */
  async startDaemon(
    caller: NodeName,
    request: Pick<RequestOf<'spawn'>, 'lease' | 'epoch' | 'uid' | 'launch'>,
    step: StepSpec,
    signal: AbortSignal,
  ): Promise<RunningStep> {
    const lease = request.lease as LeaseNumber;
    const { launch } = request;
    const start = this.#turns.shared(lease, () => {
      this.#endedLaunches.requireOpen(lease, launch);
      const sandbox = this.#requireReady(lease);
      const { claims } = sandbox.record;
      if (!claims.nodes.includes(caller) || claims.uid !== request.uid) {
        throw new XceError('peer-role', `${caller} is not a node of lease ${lease} with uid ${request.uid}`);
      }
      if (claims.epoch !== request.epoch) {
        throw new XceError(
          'ticket-epoch',
          `lease ${lease} is here of epoch ${claims.epoch}, not ${request.epoch}`,
        );
      }
      this.#admission.requireNotDrained(claims);
      return this.#start(sandbox, { kind: 'daemon', launch }, step);
    });
    try {
      const late = () =>
        new XceError('timeout', `the daemon did not start within ${this.#ports.startTimeoutMs} ms`);
      return this.#keepFor(signal, await withinMs(this.#ports.startTimeoutMs, start, late));
    } catch (error) {
      // A start that comes after its deadline is undone; one that failed has nothing to undo.
      start.then(
        ({ sandbox, running }) => sandbox.steps.stop(running),
        () => undefined,
      );
      throw error;
    }
  }

  /** The launch of a step that runs here. */
  launchOf(lease: LeaseNumber, step: string): string | undefined {
    return this.#sandboxes.get(lease)?.steps.launchOf(step);
  }

  /** What the newest ticket of a living sandbox says, for its own processes. Throws as a start would. */
  liveLease(lease: LeaseNumber, uid: Uid): TicketClaims {
    const { claims } = this.#requireReady(lease).record;
    if (claims.uid !== uid) throw new XceError('peer-unknown', `uid ${uid} is not the uid of lease ${lease}`);
    this.#admission.requireNotDrained(claims);
    return claims;
  }

  /**
   * Takes no more work and ends every step, because nobody could read its output or learn its end any more.
   * Sandboxes stay for the next worker. Resolves when all steps have ended; the caller bounds the wait.
   */
  async shutdown(): Promise<void> {
    this.#closing = true;
    const sandboxes = [...this.#sandboxes.values()];
    for (const sandbox of sandboxes) sandbox.watch?.abort();
    // A start in flight holds its turn; after one turn alone there is none left.
    await Promise.all(
      sandboxes.map((sandbox) =>
        this.#turns.alone(sandbox.record.claims.lease, async () => {
          await sandbox.steps.stopAll();
          await this.#closeSocket(sandbox);
        }),
      ),
    );
  }

  #requireOpen(): void {
    if (this.#closing) throw new XceError('worker-busy', 'the worker is about to end');
  }

  #remainingMs(deadlineMs: number): number {
    return Math.max(0, deadlineMs - this.#ports.clock.monotonicMs());
  }

  #rivalOf(lease: LeaseNumber, uid: Uid): LeaseNumber | undefined {
    for (const { record } of this.#sandboxes.values()) {
      if (record.claims.uid === uid && record.claims.lease !== lease) return record.claims.lease;
    }
    return undefined;
  }

  #requireReady(lease: LeaseNumber): Sandbox {
    this.#requireOpen();
    const sandbox = this.#sandboxes.get(lease);
    if (sandbox === undefined)
      throw new XceError('sandbox-missing', `this node has no sandbox of lease ${lease}`);
    if (sandbox.record.state !== 'ready') throw this.#stateError(sandbox);
    if (sandbox.record.deadlineMs <= this.#ports.clock.monotonicMs()) {
      throw new XceError('ticket-expired', `every ticket of lease ${lease} on this node has expired`);
    }
    return sandbox;
  }

  #stateError(sandbox: Sandbox): XceError {
    const { state, claims } = sandbox.record;
    const code = state === 'dirty' ? 'node-dirty' : 'sandbox-lost';
    return new XceError(code, `the sandbox of lease ${claims.lease} is ${state}`);
  }

  async #start(sandbox: Sandbox, whose: StepOwner, step: StepSpec): Promise<Started> {
    const { claims } = sandbox.record;
    const { invocationId } = requireAnchor(sandbox);
    return { sandbox, running: await sandbox.steps.start(specOf(claims), invocationId, whose, step) };
  }

  /** A step whose caller went away while it was started is ended. */
  async #keepFor(signal: AbortSignal, { sandbox, running }: Started): Promise<RunningStep> {
    if (!signal.aborted) return running;
    await sandbox.steps.stop(running);
    throw new XceError('cancelled', 'the peer went away while its step started', { cause: signal.reason });
  }

  async #isAlive(sandbox: Sandbox): Promise<boolean> {
    const { anchor, claims, bootId } = sandbox.record;
    if (anchor === null || bootId !== this.#ports.bootId) return false;
    return this.#ports.backend.isAlive(specOf(claims), anchor.invocationId);
  }

  #watch(sandbox: Sandbox, failures: number): void {
    const { invocationId } = requireAnchor(sandbox);
    const watch = new AbortController();
    sandbox.watch = watch;
    this.#ports.backend.watchEnd(specOf(sandbox.record.claims), invocationId, watch.signal).then(
      () => {
        if (!watch.signal.aborted) this.#noteLost(sandbox, 'its anchor ended');
      },
      (error: unknown) => {
        if (!watch.signal.aborted) this.#lookAgain(sandbox, failures + 1, error);
      },
    );
  }

  /** The watch failed, not the anchor: ask for the anchor, and watch on if it lives. */
  #lookAgain(sandbox: Sandbox, failures: number, cause: unknown): void {
    this.#ports.report({
      level: 'fault',
      message: `lease ${sandbox.record.claims.lease} could not be watched: ${messageOf(cause)}`,
    });
    this.#isAlive(sandbox).then(
      (alive) => {
        if (sandbox.record.state !== 'ready' || sandbox.watch?.signal.aborted !== false) return;
        if (alive && failures < WATCH_FAILURES_MAX) this.#watch(sandbox, failures);
        else this.#noteLost(sandbox, alive ? 'it cannot be watched' : 'its anchor ended');
      },
      (error: unknown) => this.#noteLost(sandbox, `its anchor cannot be asked for: ${messageOf(error)}`),
    );
  }

  #noteLost(sandbox: Sandbox, why: string): void {
    const { lease } = sandbox.record.claims;
    if (sandbox.record.state !== 'ready' || this.#sandboxes.get(lease) !== sandbox) return;
    this.#saveOrReport(sandbox, 'lost');
    this.#ports.report({ level: 'notice', message: `lease ${lease} is lost: ${why}` });
    this.#turns
      .alone(lease, async () => {
        // A stop, drain or prepare that had its turn before this one has ended the sandbox already.
        if (this.#sandboxes.get(lease) !== sandbox || sandbox.record.state !== 'lost') return;
        await this.#end(sandbox);
        this.#saveOrReport(sandbox, 'lost');
      })
      .catch((error: unknown) => {
        this.#ports.report({ level: 'fault', message: `lease ${lease}: ${messageOf(error)}` });
      });
  }

  async #remove(sandbox: Sandbox): Promise<void> {
    await this.#end(sandbox);
    this.#forget(sandbox.record.claims.lease);
  }

  /** Ends all steps and the anchor. Throws 'node-dirty' and leaves the state `dirty` when that fails. */
  async #end(sandbox: Sandbox): Promise<void> {
    const { claims } = sandbox.record;
    sandbox.watch?.abort();
    sandbox.watch = undefined;
    this.#saveOrReport(sandbox, 'stopping');
    await this.#closeSocket(sandbox);
    try {
      await this.#ports.backend.destroy(identityOf(claims));
      if (sandbox.steps.size === 0) this.#ports.busy.remove(String(claims.lease));
    } catch (error) {
      this.#saveOrReport(sandbox, 'dirty');
      throw new XceError('node-dirty', `lease ${claims.lease} could not be ended: ${messageOf(error)}`, {
        cause: error,
      });
    }
  }

  async #closeSocket(sandbox: Sandbox): Promise<void> {
    const socket = sandbox.agentSocket;
    sandbox.agentSocket = undefined;
    try {
      await socket?.close();
    } catch (error) {
      // What it would have let in finds no living sandbox any more.
      this.#ports.report({ level: 'fault', message: messageOf(error) });
    }
  }

  #forget(lease: LeaseNumber): void {
    this.#ports.records.remove(String(lease));
    this.#unreadable.delete(String(lease));
    this.#sandboxes.delete(lease);
  }

  /** The record is on disk when this returns. */
  #save(sandbox: Sandbox, record: SandboxRecord): void {
    this.#ports.records.write(String(record.claims.lease), encodeRecord(record));
    sandbox.record = record;
  }

  /** For ends: a full disk must not keep anything running. The next worker then finds an older state, looks
   * for the anchor and ends what is left. */
  #saveOrReport(sandbox: Sandbox, state: SandboxState): void {
    const record = { ...sandbox.record, state };
    sandbox.record = record;
    try {
      this.#save(sandbox, record);
    } catch (error) {
      this.#ports.report({ level: 'fault', message: messageOf(error) });
    }
  }
}
