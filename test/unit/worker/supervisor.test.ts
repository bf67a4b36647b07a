import { describe, expect, test } from 'vitest';
import { asXceError, XceError } from '../../../src/base/errors.ts';
import type { Epoch, InstanceName, JobId, LeaseNumber, NodeName, Uid } from '../../../src/base/ids.ts';
import { fitCertificate, openCertificate } from '../../../src/lease/certificate.ts';
import { unwrap } from '../../../src/lease/refusal.ts';
import { hexOfPublicKey } from '../../../src/lease/signed-text.ts';
import type { TicketClaims } from '../../../src/lease/ticket.ts';
import {
  codeOf,
  drainOf,
  type FakeStep,
  GOOD,
  Host,
  NODE,
  settle,
  stepOf,
  ticketFor,
  UID,
  WORKER_KEYS,
  type Worker,
} from './fakes.ts';

const LEASE = 7 as LeaseNumber;
const quiet = new AbortController().signal;

const prepareWith = (worker: Worker, changes: Partial<TicketClaims> = {}): Promise<unknown> =>
  worker.supervisor.prepare(ticketFor(worker.nonces.issue(), changes));

/** A worker with one prepared sandbox, and the ticket that prepared it. */
const prepared = async () => {
  const host = new Host();
  const worker = host.startWorker();
  const ticket = ticketFor(worker.nonces.issue());
  await worker.supervisor.prepare(ticket);
  return {
    host,
    worker,
    ticket,
    start: (step: string) => worker.supervisor.startStep(ticket, 'task', stepOf(step), quiet),
  };
};

const stateOf = (worker: Worker, lease = 7): string | undefined =>
  worker.supervisor.status().sandboxes.find((sandbox) => sandbox.lease === lease)?.state;

describe('prepare', () => {
  test('makes the sandbox, its socket and its record, and arms the deadline from the issue of the nonce', async () => {
    const host = new Host();
    const worker = host.startWorker();
    const nonce = worker.nonces.issue();
    host.clock.nowMs += 2500;
    const answer = await worker.supervisor.prepare(ticketFor(nonce));
    expect(answer).toMatchObject({ created: true, invocationId: 'i1' });
    expect(host.backend.anchors.get(7)?.remainingMs).toBe(57_500);
    expect([...host.sockets]).toEqual([7]);
    expect(stateOf(worker)).toBe('ready');
    expect(host.seen.files.has(String(UID))).toBe(true);
  });

  test.each<[string, Partial<TicketClaims>]>([
    ['ticket-cluster', { cluster: 'other' }],
    ['ticket-cluster', { instance: 'sub' as InstanceName }],
    ['ticket-node', { node: 'n2' as NodeName }],
    ['ticket-node', { nodes: ['n2', 'n3'] as NodeName[] }],
    ['ticket-nonce', { nonce: 'ff'.repeat(16) }],
    ['sandbox-refused', { uid: 69_999 as Uid }],
  ])('refuses with %s a ticket with %j, and starts nothing', async (code, changes) => {
    const host = new Host();
    expect(await codeOf(prepareWith(host.startWorker(), changes))).toBe(code);
    expect(host.backend.trace).toEqual([]);
    expect(host.records.files.size).toBe(0);
  });

  test.each([290, -290])('takes a ticket of a controller whose clock is %i s off', async (seconds) => {
    const host = new Host();
    const worker = host.startWorker();
    const nonce = worker.nonces.issue();
    const issuedWallMs = host.clock.wallMs() + seconds * 1000;
    expect(await worker.supervisor.prepare(ticketFor(nonce, { issuedWallMs }))).toMatchObject({
      created: true,
    });
  });

  test.each([310, -310])(
    'refuses a ticket of a controller whose clock is %i s off, and says so and by how much',
    async (seconds) => {
      const host = new Host();
      const worker = host.startWorker();
      const nonce = worker.nonces.issue();
      const issuedWallMs = host.clock.wallMs() + seconds * 1000;
      const refusal = await worker.supervisor.prepare(ticketFor(nonce, { issuedWallMs })).catch(asXceError);
      expect(refusal).toMatchObject({
        code: 'clock-skew',
        message: expect.stringMatching(/^clock skew 310 s: /),
        facts: { detail: { skewMs: seconds * 1000, skewBoundMs: 300_000 } },
      });
      expect(host.backend.trace).toEqual([]);
      expect(host.seen.files.size).toBe(0);
      // The nonce is still good for a ticket of a clock that was set right.
      expect(
        await worker.supervisor.prepare(ticketFor(nonce, { issuedWallMs: host.clock.wallMs() })),
      ).toMatchObject({
        created: true,
      });
    },
  );

  test('goes on with a sandbox although the clock of its controller was set since', async () => {
    const host = new Host();
    const worker = host.startWorker();
    await worker.supervisor.prepare(ticketFor(worker.nonces.issue(), { issuedWallMs: host.clock.wallMs() }));
    const later = ticketFor(worker.nonces.issue(), { issuedWallMs: host.clock.wallMs() + 3_600_000 });
    expect(await worker.supervisor.renew(later)).toMatchObject({ remainingMs: expect.any(Number) });
  });

  test('does not take the age of a ticket for a wrong clock', async () => {
    const host = new Host();
    const worker = host.startWorker();
    const ticket = ticketFor(worker.nonces.issue(), { ttlMs: 3_600_000 });
    host.clock.nowMs += 500_000;
    expect(await worker.supervisor.prepare(ticket)).toMatchObject({ created: true });
    host.clock.nowMs += 500_000;
    expect(await worker.supervisor.prepare(ticket)).toMatchObject({ created: false });
  });

  test('refuses a ticket that is sent again after its sandbox was stopped with its own reason', async () => {
    const { worker } = await prepared();
    const nonce = worker.nonces.issue();
    const lease = 8 as LeaseNumber;
    const ticket = ticketFor(nonce, { lease, uid: 70_008 as Uid });
    await worker.supervisor.prepare(ticket);
    await worker.supervisor.stop(lease);
    expect(await codeOf(worker.supervisor.prepare(ticket))).toBe('ticket-nonce');
  });

  test('refuses a changed byte, a foreign signature and no ticket, each with its own code', async () => {
    const host = new Host();
    const worker = host.startWorker();
    const ticket = ticketFor(worker.nonces.issue());
    const dot = ticket.indexOf('.', 5);
    const swapped = ticket[dot + 5] === 'A' ? 'B' : 'A';
    expect(
      await codeOf(
        worker.supervisor.prepare(`${ticket.slice(0, dot + 5)}${swapped}${ticket.slice(dot + 6)}`),
      ),
    ).toBe('ticket-signature');
    expect(await codeOf(worker.supervisor.prepare('xce1.x'))).toBe('ticket-malformed');
    expect(await codeOf(worker.supervisor.prepare(''))).toBe('ticket-missing');
    expect(host.backend.trace).toEqual([]);
  });

  test('refuses a ticket once its time since the nonce is over', async () => {
    const host = new Host();
    const worker = host.startWorker();
    const ticket = ticketFor(worker.nonces.issue());
    host.clock.nowMs += 60_000;
    expect(await codeOf(worker.supervisor.prepare(ticket))).toBe('ticket-expired');
  });

  test('refuses an older epoch and an older lease of the uid, also after a restart', async () => {
    const host = new Host();
    const first = host.startWorker();
    await prepareWith(first);
    await first.supervisor.stop(LEASE);
    const worker = host.startWorker();
    await worker.supervisor.reconcile();
    expect(await codeOf(prepareWith(worker, { epoch: 2 as Epoch }))).toBe('ticket-epoch');
    expect(await codeOf(prepareWith(worker, { lease: 6 as LeaseNumber }))).toBe('ticket-lease');
    expect(await codeOf(prepareWith(worker))).toBe('none');
  });

  test('refuses a lease that was drained, whatever its ticket, also after a restart', async () => {
    const host = new Host();
    await host.startWorker().supervisor.drain(drainOf());
    const worker = host.startWorker();
    expect(await codeOf(prepareWith(worker, { epoch: 9 as Epoch }))).toBe('ticket-tombstone');
  });

  test.each([
    ['taken', 'uid-taken'],
    ['unknown', 'name-service'],
  ] as const)('refuses a uid that the name service says is %s', async (answer, code) => {
    const host = new Host();
    host.nameService = answer;
    const worker = host.startWorker();
    expect(await codeOf(prepareWith(worker))).toBe(code);
    expect(host.backend.trace).toEqual([]);
    expect(worker.supervisor.status().sandboxes).toEqual([]);
  });

  test('refuses when a storage is not there, and when the memory cannot be written', async () => {
    const host = new Host();
    const worker = host.startWorker();
    host.storageError = new XceError('mount-changed', 'not mounted');
    expect(await codeOf(prepareWith(worker))).toBe('mount-changed');
    host.storageError = undefined;
    host.seen.files.clear();
    host.seen.failing = true;
    expect(await codeOf(prepareWith(worker))).toBe('io');
    expect(host.backend.trace).toEqual([]);
  });

  test('takes back what it made when it fails half-way, and the same ticket may try again', async () => {
    const host = new Host();
    const socketFails = host.startWorker({
      openAgentSocket: () => Promise.reject(new XceError('os', 'no socket')),
    });
    expect(await codeOf(prepareWith(socketFails))).toBe('os');
    expect(host.backend.anchors.size).toBe(0);
    expect(host.records.files.size).toBe(0);

    const worker = host.startWorker();
    const ticket = ticketFor(worker.nonces.issue());
    host.backend.fail.create = new XceError('systemd', 'refused');
    expect(await codeOf(worker.supervisor.prepare(ticket))).toBe('systemd');
    expect(host.records.files.size).toBe(0);
    delete host.backend.fail.create;
    expect(await codeOf(worker.supervisor.prepare(ticket))).toBe('none');
  });

  test('asked twice at once with one ticket makes one sandbox', async () => {
    const host = new Host();
    const worker = host.startWorker();
    const ticket = ticketFor(worker.nonces.issue());
    const answers = await Promise.all([worker.supervisor.prepare(ticket), worker.supervisor.prepare(ticket)]);
    expect(answers.map((answer) => answer.created)).toEqual([true, false]);
    expect(host.backend.trace).toEqual(['create 7']);
  });

  test('of two leases of one uid asked for at once at most one gets a sandbox, and the newer one can', async () => {
    const host = new Host();
    const worker = host.startWorker();
    host.backend.gates.create.close();
    const both = [prepareWith(worker), prepareWith(worker, { lease: 8 as LeaseNumber })].map(codeOf);
    await settle();
    host.backend.gates.create.open();
    expect((await Promise.all(both)).filter((code) => code === 'none').length).toBeLessThan(2);
    expect(host.backend.anchors.size).toBeLessThan(2);
    await worker.supervisor.stop(LEASE);
    expect(await codeOf(prepareWith(worker, { lease: 8 as LeaseNumber }))).toBe('none');
  });

  test('a further ticket of the lease moves the deadline out, never in', async () => {
    const { host, worker } = await prepared();
    await prepareWith(worker, { ttlMs: 10_000 });
    expect(host.backend.anchors.get(7)?.remainingMs).toBe(60_000);
    host.clock.nowMs += 1000;
    await prepareWith(worker, { ttlMs: 120_000 });
    expect(host.backend.anchors.get(7)?.remainingMs).toBe(120_000);
    expect(host.backend.trace).toEqual(['create 7', 'arm 7']);
  });

  test('a lease with other terms than its sandbox is refused', async () => {
    const { worker } = await prepared();
    expect(await codeOf(prepareWith(worker, { job: '43' as JobId }))).toBe('lease-conflict');
    expect(await codeOf(prepareWith(worker, { roots: [{ path: '/shared/other' }] }))).toBe('lease-conflict');
    expect(await codeOf(prepareWith(worker, { uid: 70_002 as Uid }))).toBe('lease-conflict');
  });

  test('makes a new sandbox where the old one was lost', async () => {
    const { host, worker } = await prepared();
    host.backend.loseAnchor(7);
    await settle();
    expect(stateOf(worker)).toBe('lost');
    expect(await prepareWith(worker)).toMatchObject({ created: true, invocationId: 'i2' });
    expect(stateOf(worker)).toBe('ready');
  });
});

describe('renew', () => {
  test('arms the deadline anew and tells the time that is left', async () => {
    const { host, worker } = await prepared();
    host.clock.nowMs += 30_000;
    const answer = await worker.supervisor.renew(ticketFor(worker.nonces.issue(), { ttlMs: 90_000 }));
    expect(answer).toEqual({ remainingMs: 90_000 });
    expect(host.backend.anchors.get(7)?.remainingMs).toBe(90_000);
  });

  test('wants a fresh nonce, a sandbox, and one that is not over', async () => {
    const { host, worker } = await prepared();
    expect(await codeOf(worker.supervisor.renew(ticketFor('00'.repeat(16))))).toBe('ticket-nonce');
    expect(
      await codeOf(worker.supervisor.renew(ticketFor(worker.nonces.issue(), { lease: 9 as LeaseNumber }))),
    ).toBe('sandbox-missing');
    host.clock.nowMs += 60_000;
    expect(await codeOf(worker.supervisor.renew(ticketFor(worker.nonces.issue())))).toBe('ticket-expired');
  });
});

describe('a step', () => {
  test('starts by the ticket that prepared, as often as there are names', async () => {
    const { host, start, worker } = await prepared();
    await start('a');
    await start('b');
    expect(host.backend.runningCount).toBe(2);
    expect(worker.supervisor.status().sandboxes[0]?.steps.map((step) => step.step)).toEqual(['a', 'b']);
    host.backend.step(7, 'a').finish(GOOD);
    await settle();
    expect(worker.supervisor.status().sandboxes[0]?.steps.map((step) => step.step)).toEqual(['b']);
  });

  test('is refused for a name that is taken', async () => {
    const { start } = await prepared();
    await start('a');
    expect(await codeOf(start('a'))).toBe('sandbox-exists');
  });

  test('is refused past the limit of the sandbox', async () => {
    const { start } = await prepared();
    for (let count = 0; count < 256; count += 1) await start(`s${count}`);
    expect(await codeOf(start('more'))).toBe('worker-busy');
  });

  test('is refused without a sandbox, by a ticket that did not prepare it, and by one that is over', async () => {
    const { host, worker, start } = await prepared();
    const fresh = ticketFor(worker.nonces.issue());
    const other = ticketFor(worker.nonces.issue(), { lease: 9 as LeaseNumber, uid: 70_009 as Uid });
    expect(await codeOf(worker.supervisor.startStep(other, 'task', stepOf('a'), quiet))).toBe(
      'sandbox-missing',
    );
    expect(await codeOf(worker.supervisor.startStep(fresh, 'task', stepOf('a'), quiet))).toBe('ticket-nonce');
    host.clock.nowMs += 60_000;
    expect(await codeOf(start('a'))).toBe('ticket-expired');
    expect(host.backend.trace).toEqual(['create 7']);
  });

  test('is refused by its own old ticket though the sandbox was renewed by another', async () => {
    const { host, worker, start } = await prepared();
    host.clock.nowMs += 30_000;
    const renewed = ticketFor(worker.nonces.issue(), { ttlMs: 90_000 });
    await worker.supervisor.renew(renewed);
    host.clock.nowMs += 40_000;
    expect(await codeOf(start('a'))).toBe('ticket-expired');
    expect(await codeOf(worker.supervisor.startStep(renewed, 'task', stepOf('a'), quiet))).toBe('none');
  });

  test('is refused after a drain has begun, even before the drain has its turn', async () => {
    const { host, worker, start } = await prepared();
    host.backend.gates.startStep.close();
    const early = start('early');
    await settle();
    const drained = worker.supervisor.drain(drainOf());
    const late = codeOf(start('late'));
    await settle();
    expect(host.backend.trace).not.toContain('destroy 7');
    host.backend.gates.startStep.open();
    await early;
    expect(await late).toBe('ticket-tombstone');
    await drained;
    expect(host.backend.trace).toEqual(['create 7', 'start 7 early', 'destroy 7', 'scan 7']);
    expect(host.backend.runningCount).toBe(0);
  });

  test('that starts while its caller goes away is stopped', async () => {
    const { host, worker, ticket } = await prepared();
    const caller = new AbortController();
    host.backend.gates.startStep.close();
    const start = worker.supervisor.startStep(ticket, 'task', stepOf('a'), caller.signal);
    const code = codeOf(start);
    await settle();
    caller.abort();
    host.backend.gates.startStep.open();
    expect(await code).toBe('cancelled');
    await settle();
    expect(host.backend.runningCount).toBe(0);
  });

  test('is waited out by a stop that comes while it starts, and ends with the sandbox', async () => {
    const { host, worker, start } = await prepared();
    host.backend.gates.startStep.close();
    const starting = start('a');
    await settle();
    const stopped = worker.supervisor.stop(LEASE);
    await settle();
    expect(host.backend.anchors.size).toBe(1);
    host.backend.gates.startStep.open();
    const running = await starting;
    expect(await stopped).toEqual({ stopped: true });
    expect((await running.ended).stopped).toBe(true);
  });
});

describe('a daemon', () => {
  const from = (worker: Worker, caller: string, changes: object = {}) =>
    worker.supervisor.startDaemon(
      caller as NodeName,
      { lease: 7, epoch: 3, uid: UID, ...changes },
      stepOf('d1'),
      quiet,
    );

  test('starts for a worker of a node of the same lease', async () => {
    const { worker, host } = await prepared();
    await from(worker, 'n2');
    expect(host.backend.runningCount).toBe(1);
  });

  test('is refused for another node, uid, epoch or lease', async () => {
    const { worker, host } = await prepared();
    expect(await codeOf(from(worker, 'n9'))).toBe('peer-role');
    expect(await codeOf(from(worker, 'n2', { uid: 70_002 }))).toBe('peer-role');
    expect(await codeOf(from(worker, 'n2', { epoch: 4 }))).toBe('ticket-epoch');
    expect(await codeOf(from(worker, 'n2', { lease: 8 }))).toBe('sandbox-missing');
    expect(host.backend.trace).toEqual(['create 7']);
  });

  test('is refused once the tickets are over or the lease is drained', async () => {
    const { worker, host } = await prepared();
    host.backend.findings = [{ kind: 'process', detail: 'pid 9' }];
    expect(await codeOf(worker.supervisor.drain(drainOf()))).toBe('node-dirty');
    expect(await codeOf(from(worker, 'n2'))).toBe('node-dirty');
    const other = await prepared();
    other.host.clock.nowMs += 60_000;
    expect(await codeOf(from(other.worker, 'n2'))).toBe('ticket-expired');
  });

  test('that does not start in time is a timeout, and is stopped when it starts after all', async () => {
    const host = new Host();
    const worker = host.startWorker({ startTimeoutMs: 5 });
    await prepareWith(worker);
    host.backend.gates.startStep.close();
    expect(await codeOf(from(worker, 'n2'))).toBe('timeout');
    host.backend.gates.startStep.open();
    await settle();
    expect(host.backend.runningCount).toBe(0);
  });
});

describe('stop', () => {
  test('ends the sandbox, forgets it, and may be asked again', async () => {
    const { host, worker, start } = await prepared();
    const running = await start('a');
    expect(await worker.supervisor.stop(LEASE)).toEqual({ stopped: true });
    expect((await running.ended).code).toBe('killed');
    expect(await worker.supervisor.stop(LEASE)).toEqual({ stopped: false });
    expect(host.records.files.size + host.sockets.size + host.backend.anchors.size).toBe(0);
    expect(await codeOf(prepareWith(worker))).toBe('none');
  });

  test('that cannot end everything says so, and nothing starts until something can', async () => {
    const { host, worker, start } = await prepared();
    host.backend.fail.destroy = new XceError('systemd', 'stuck');
    expect(await codeOf(worker.supervisor.stop(LEASE))).toBe('node-dirty');
    expect(stateOf(worker)).toBe('dirty');
    expect(await codeOf(start('a'))).toBe('node-dirty');
    expect(await codeOf(prepareWith(worker))).toBe('node-dirty');
    delete host.backend.fail.destroy;
    await worker.supervisor.stop(LEASE);
    expect(worker.supervisor.status().sandboxes).toEqual([]);
  });

  test('ends the sandbox also when its socket cannot be closed', async () => {
    const host = new Host();
    const worker = host.startWorker({
      openAgentSocket: async () => ({ close: () => Promise.reject(new XceError('os', 'no')) }),
    });
    await prepareWith(worker);
    expect(await worker.supervisor.stop(LEASE)).toEqual({ stopped: true });
    expect(host.backend.anchors.size).toBe(0);
  });

  test('ends the sandbox also when nothing can be written', async () => {
    const { host, worker } = await prepared();
    host.records.failing = true;
    expect(await worker.supervisor.stop(LEASE)).toEqual({ stopped: true });
    expect(host.backend.anchors.size).toBe(0);
  });
});

describe('two launches in one sandbox', () => {
  const ofLaunch = async (worker: Worker, launch: string): Promise<string> => {
    const ticket = ticketFor(worker.nonces.issue());
    await worker.supervisor.prepare(ticket, launch);
    return ticket;
  };
  const spawnFor = (launch: string) => ({ lease: LEASE, epoch: 3, uid: UID, launch });

  test('each end their own steps and daemons, and the sandbox stays for the other', async () => {
    const host = new Host();
    const worker = host.startWorker();
    const one = await ofLaunch(worker, 'one');
    const other = await ofLaunch(worker, 'other');
    const steps = await Promise.all([
      worker.supervisor.startStep(one, 'head', stepOf('one'), quiet, 'one'),
      worker.supervisor.startDaemon('n2' as NodeName, spawnFor('one'), stepOf('d1'), quiet),
      worker.supervisor.startStep(other, 'head', stepOf('other'), quiet, 'other'),
      worker.supervisor.startDaemon('n2' as NodeName, spawnFor('other'), stepOf('d2'), quiet),
    ]);
    expect(await worker.supervisor.stop(LEASE, 'one')).toEqual({ stopped: true });
    expect(steps.map((step) => (step as FakeStep).stops)).toEqual([1, 1, 0, 0]);
    expect(stateOf(worker)).toBe('ready');
    expect(await worker.supervisor.stop(LEASE, 'one')).toEqual({ stopped: false });
    expect(host.backend.runningCount).toBe(2);
  });

  test('of which the maker fails: the sandbox goes with it if no other has used it', async () => {
    const host = new Host();
    const worker = host.startWorker();
    await ofLaunch(worker, 'one');
    expect(await worker.supervisor.stop(LEASE, 'other')).toEqual({ stopped: false });
    expect(stateOf(worker)).toBe('ready');
    expect(await worker.supervisor.stop(LEASE, 'one')).toEqual({ stopped: true });
    expect(host.backend.anchors.size).toBe(0);
  });

  test('of which one has ended: what was starting is ended too, and nothing of it begins any more', async () => {
    const host = new Host();
    const worker = host.startWorker();
    const one = await ofLaunch(worker, 'one');
    await ofLaunch(worker, 'other');
    host.backend.gates.startStep.close();
    const starting = worker.supervisor.startStep(one, 'task', stepOf('one'), quiet, 'one');
    await settle();
    const stopped = worker.supervisor.stop(LEASE, 'one');
    host.backend.gates.startStep.open();
    expect([((await starting) as FakeStep).stops, await stopped]).toEqual([1, { stopped: true }]);
    expect(host.backend.runningCount).toBe(0);
    expect(await codeOf(worker.supervisor.startStep(one, 'task', stepOf('one'), quiet, 'one'))).toBe(
      'cancelled',
    );
    expect(await codeOf(ofLaunch(worker, 'one'))).toBe('cancelled');
    const daemon = worker.supervisor.startDaemon('n2' as NodeName, spawnFor('one'), stepOf('d1'), quiet);
    expect(await codeOf(daemon)).toBe('cancelled');
  });

  test('of which one cannot be ended says so; the other starts steps meanwhile', async () => {
    const host = new Host();
    const worker = host.startWorker();
    const one = await ofLaunch(worker, 'one');
    const other = await ofLaunch(worker, 'other');
    const step = (await worker.supervisor.startStep(one, 'task', stepOf('one'), quiet, 'one')) as FakeStep;
    let fail: (error: Error) => void = () => undefined;
    step.stop = () =>
      new Promise((_, reject) => {
        fail = reject;
      });
    const stopped = codeOf(worker.supervisor.stop(LEASE, 'one'));
    await settle();
    await worker.supervisor.startStep(other, 'task', stepOf('other'), quiet, 'other');
    fail(new XceError('node-dirty', 'a process has outlived SIGKILL'));
    expect(await stopped).toBe('node-dirty');
    expect(stateOf(worker)).toBe('ready');
  });
});

describe('drain', () => {
  const fits = (text: string, host: Host, nonce = drainOf().nonce): boolean => {
    const workerKey = hexOfPublicKey(WORKER_KEYS.publicKey);
    const opened = unwrap(openCertificate(text, workerKey));
    return fitCertificate(opened, {
      cluster: 'cluster',
      instance: 'main' as InstanceName,
      lease: LEASE,
      uid: UID,
      node: NODE,
      bootId: host.bootId,
      nonce,
      workerKey,
    }).ok;
  };

  test('ends, looks, and certifies with the nonce of the request', async () => {
    const { host, worker } = await prepared();
    const { certificate } = await worker.supervisor.drain(drainOf());
    expect(fits(certificate, host)).toBe(true);
    expect(host.backend.trace).toEqual(['create 7', 'destroy 7', 'scan 7']);
    expect(host.records.files.size).toBe(0);
  });

  test('of a lease that this node never saw looks as well and leaves a tombstone', async () => {
    const host = new Host();
    const worker = host.startWorker();
    expect(fits((await worker.supervisor.drain(drainOf())).certificate, host)).toBe(true);
    expect(host.backend.trace).toEqual(['destroy 7', 'scan 7']);
    expect(await codeOf(prepareWith(worker))).toBe('ticket-tombstone');
  });

  test('repeated gives a fresh certificate', async () => {
    const { host, worker } = await prepared();
    await worker.supervisor.drain(drainOf());
    const nonce = 'ab'.repeat(16);
    expect(fits((await worker.supervisor.drain(drainOf({ nonce }))).certificate, host, nonce)).toBe(true);
  });

  test('names what is left, certifies nothing, and certifies once it is gone', async () => {
    const { host, worker } = await prepared();
    host.backend.findings = [{ kind: 'process', detail: 'pid 4711 sleep 600' }];
    const refused = await worker.supervisor.drain(drainOf()).catch((error: unknown) => error);
    expect(refused).toMatchObject({
      code: 'node-dirty',
      facts: { detail: { findings: [{ kind: 'process', detail: 'pid 4711 sleep 600' }], count: 1 } },
    });
    expect(String(refused)).toContain('pid 4711 sleep 600');
    expect(stateOf(worker)).toBe('dirty');
    host.backend.findings = [];
    expect(fits((await worker.supervisor.drain(drainOf())).certificate, host)).toBe(true);
    expect(stateOf(worker)).toBeUndefined();
  });

  test('bounds what it tells of a node with very much left', async () => {
    const { host, worker } = await prepared();
    host.backend.findings = Array.from({ length: 5000 }, () => ({
      kind: 'file' as const,
      detail: 'x'.repeat(5000),
    }));
    const refused = await worker.supervisor.drain(drainOf()).catch((error: unknown) => error);
    expect(JSON.stringify((refused as XceError).facts.detail).length).toBeLessThan(32 << 10);
    expect(refused).toMatchObject({ facts: { detail: { count: 5000 } } });
  });

  test('is dirty when it cannot end or cannot look', async () => {
    const { host, worker } = await prepared();
    host.backend.fail.destroy = new XceError('systemd', 'stuck');
    expect(await codeOf(worker.supervisor.drain(drainOf()))).toBe('node-dirty');
    delete host.backend.fail.destroy;
    host.backend.fail.scan = new XceError('os', 'no /proc');
    expect(await codeOf(worker.supervisor.drain(drainOf()))).toBe('node-dirty');
  });

  test('without a durable tombstone does nothing and certifies nothing', async () => {
    const { host, worker } = await prepared();
    host.seen.failing = true;
    expect(await codeOf(worker.supervisor.drain(drainOf()))).toBe('io');
    expect(host.backend.anchors.size).toBe(1);
  });

  test('of another uid, job or attempt than the sandbox has is refused', async () => {
    const { host, worker } = await prepared();
    expect(await codeOf(worker.supervisor.drain({ ...drainOf(), attempt: 1 }))).toBe('lease-conflict');
    expect(await codeOf(worker.supervisor.drain(drainOf({ uid: 70_002 })))).toBe('lease-conflict');
    expect(host.backend.anchors.size).toBe(1);
  });

  test('of an older epoch, which is another controller that lost its log, ends nothing', async () => {
    const { host, worker } = await prepared();
    expect(await codeOf(worker.supervisor.drain(drainOf({ epoch: 2 })))).toBe('ticket-epoch');
    expect(host.backend.anchors.size).toBe(1);
  });

  test('certifies no uid that another lease still has here', async () => {
    const { worker } = await prepared();
    const refused = codeOf(worker.supervisor.drain(drainOf({ lease: 8 })));
    expect(await refused).toBe('node-dirty');
  });

  test('during a prepare waits for it and then ends what it made', async () => {
    const host = new Host();
    const worker = host.startWorker();
    host.backend.gates.create.close();
    const preparing = prepareWith(worker);
    await settle();
    const drained = worker.supervisor.drain(drainOf());
    await settle();
    expect(host.backend.trace).toEqual(['create 7']);
    host.backend.gates.create.open();
    await preparing;
    expect(fits((await drained).certificate, host)).toBe(true);
    expect(host.backend.anchors.size).toBe(0);
  });

  test('that takes too long is a timeout, and goes on', async () => {
    const host = new Host();
    const worker = host.startWorker({ drainTimeoutMs: 5 });
    await prepareWith(worker);
    host.backend.gates.destroy.close();
    expect(await codeOf(worker.supervisor.drain(drainOf()))).toBe('timeout');
    host.backend.gates.destroy.open();
    await settle();
    expect(host.backend.anchors.size).toBe(0);
    expect(fits((await worker.supervisor.drain(drainOf())).certificate, host)).toBe(true);
  });
});

describe('an anchor that ends by itself', () => {
  test('makes the sandbox lost, clears it away, and is not certified before a drain', async () => {
    const { host, worker, start } = await prepared();
    const running = await start('a');
    host.backend.loseAnchor(7);
    await settle();
    expect((await running.ended).result).toBe('timeout');
    expect(stateOf(worker)).toBe('lost');
    expect(host.sockets.size).toBe(0);
    expect(await codeOf(start('b'))).toBe('sandbox-lost');
    expect(host.backend.trace.slice(-1)).toEqual(['destroy 7']);
    expect(await codeOf(worker.supervisor.drain(drainOf()))).toBe('none');
  });

  test('while it is being stopped changes nothing', async () => {
    const { host, worker } = await prepared();
    host.backend.gates.destroy.close();
    const stopped = worker.supervisor.stop(LEASE);
    await settle();
    host.backend.loseAnchor(7);
    host.backend.gates.destroy.open();
    expect(await stopped).toEqual({ stopped: true });
    await settle();
    expect(worker.supervisor.status().sandboxes).toEqual([]);
  });
});

describe('strays', () => {
  const straysOf = async ({ supervisor }: Worker): Promise<readonly number[]> =>
    (await supervisor.strays()).leases;

  test('are leases by whose names something is there without a record, lowest first', async () => {
    const { host, worker } = await prepared();
    for (const lease of [12, 3]) host.backend.named.add(lease as LeaseNumber);
    expect(await straysOf(worker)).toEqual([3, 12]);
  });

  test('are none of those that a prepare is making, or a stop is ending, at that moment', async () => {
    const { host, worker } = await prepared();
    host.backend.gates.destroy.close();
    const stopped = worker.supervisor.stop(LEASE);
    await settle();
    const asked = straysOf(worker);
    host.backend.gates.destroy.open();
    await stopped;
    expect(await asked).toEqual([]);
    host.backend.gates.create.close();
    const made = prepareWith(worker, { lease: 8 as LeaseNumber });
    await settle();
    host.backend.named.add(8 as LeaseNumber);
    expect(await straysOf(worker)).toEqual([]);
    host.backend.gates.create.open();
    await made;
  });
});

describe('a restarted worker', () => {
  const restart = async (host: Host): Promise<Worker> => {
    host.sockets.clear();
    const worker = host.startWorker();
    await worker.supervisor.reconcile();
    return worker;
  };

  test('adopts a living sandbox whose ticket is good, with its socket, its deadline and its tickets', async () => {
    const { host, ticket } = await prepared();
    host.clock.nowMs += 10_000;
    const worker = await restart(host);
    expect(worker.supervisor.status().sandboxes).toMatchObject([{ state: 'ready', remainingMs: 50_000 }]);
    expect([...host.sockets]).toEqual([7]);
    await worker.supervisor.startStep(ticket, 'task', stepOf('a'), quiet);
    expect(host.backend.runningCount).toBe(1);
  });

  test('watches what it adopted', async () => {
    const { host } = await prepared();
    const worker = await restart(host);
    host.backend.loseAnchor(7);
    await settle();
    expect(stateOf(worker)).toBe('lost');
  });

  test('ends steps that lost their streams and keeps their sandbox', async () => {
    const { host, start } = await prepared();
    const running = await start('a');
    const worker = await restart(host);
    expect((await running.ended).stopped).toBe(true);
    expect(stateOf(worker)).toBe('ready');
    expect(host.busy.files.size).toBe(0);
  });

  test('ends a sandbox whose steps it cannot end', async () => {
    const { host, start } = await prepared();
    await start('a');
    host.backend.fail.stopSteps = new XceError('systemd', 'stuck');
    expect(stateOf(await restart(host))).toBe('lost');
    expect(host.backend.anchors.size).toBe(0);
  });

  test('adopts a sandbox whose steps were ended by a shutdown', async () => {
    const { host, worker, start } = await prepared();
    const running = await start('a');
    await worker.supervisor.shutdown();
    expect((await running.ended).stopped).toBe(true);
    expect(await codeOf(start('b'))).toBe('worker-busy');
    expect(stateOf(await restart(host))).toBe('ready');
  });

  test.each<[string, (host: Host) => void]>([
    ['expired', (host) => host.clock.advance(60_000)],
    ['of another boot', (host) => host.reboot()],
    ['whose anchor is gone', (host) => void host.backend.anchors.delete(7)],
  ])('ends a sandbox %s and keeps its lease uncertified', async (_, change) => {
    const { host } = await prepared();
    change(host);
    const worker = await restart(host);
    expect(stateOf(worker)).toBe('lost');
    expect(host.backend.anchors.size).toBe(0);
    expect(await codeOf(worker.supervisor.drain(drainOf()))).toBe('none');
  });

  test('ends a sandbox that was being prepared', async () => {
    const host = new Host();
    host.backend.gates.create.close();
    void prepareWith(host.startWorker());
    await settle();
    expect(host.records.files.size).toBe(1);
    expect(stateOf(await restart(host))).toBe('lost');
    expect(host.backend.trace).toContain('destroy 7');
  });

  test('knows no nonce of the process before it', async () => {
    const host = new Host();
    const ticket = ticketFor(host.startWorker().nonces.issue());
    const worker = await restart(host);
    expect(await codeOf(worker.supervisor.prepare(ticket))).toBe('ticket-nonce');
  });

  test('refuses a lease whose record cannot be read until it is drained', async () => {
    const { host } = await prepared();
    host.records.files.set('7', Buffer.from('{"version":1'));
    const worker = await restart(host);
    expect(await codeOf(prepareWith(worker))).toBe('node-dirty');
    expect(await codeOf(worker.supervisor.drain(drainOf()))).toBe('none');
    expect(host.records.files.size).toBe(0);
    expect(host.backend.anchors.size).toBe(0);
  });
});
