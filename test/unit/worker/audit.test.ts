/** What privileged requests leave in the log, asked for over real sockets with real certificates. */
import { chmodSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { JobId, LeaseNumber, Uid } from '../../../src/base/ids.ts';
import { connectTls } from '../../../src/rpc/client.ts';
import type { RequestOf } from '../../../src/rpc/message.ts';
import { createServer } from '../../../src/rpc/server.ts';
import type { RpcSession } from '../../../src/rpc/session.ts';
import type { RpcServer } from '../../../src/rpc/verbs.ts';
import { entryOfServerReport, type JournalEntry } from '../../../src/worker/journal.ts';
import { asNode, base64, connectAsUid, createSite, LEASE, refusedCode, type Site } from '../rpc/site.ts';
import { drainOf, GOOD, Host, ticketFor, UID, verbsOf } from './fakes.ts';

const T = { timeoutMs: 10_000 };

let site: Site;
let server: RpcServer;
let controller: RpcSession;
let worker: RpcSession;
let operator: RpcSession;
let sandbox: RpcSession;
let nonces: ReturnType<Host['startWorker']>['nonces'];
const host = new Host();
const entries: JournalEntry[] = [];

beforeAll(async () => {
  site = await createSite();
  chmodSync(site.root, 0o711);
  const started = host.startWorker();
  nonces = started.nonces;
  const table = verbsOf(host, started);
  server = createServer({ table, report: (report) => entries.push(entryOfServerReport(report)) });
  const { port } = await server.listenTls(
    { address: '127.0.0.1', port: 0 },
    await site.identity('worker', 'n1'),
  );
  const connect = async (role: 'controller' | 'worker' | 'operator', node: string) =>
    connectTls(
      { address: '127.0.0.1', port, identity: await site.identity(role, node), expectNode: asNode('n1') },
      T,
    );
  controller = await connect('controller', 'ctl');
  worker = await connect('worker', 'n2');
  operator = await connect('operator', 'op');
  const path = join(site.root, 'agent.sock');
  await server.listenSandbox(path, LEASE, UID);
  sandbox = await connectAsUid(path, UID);
}, 60_000);
afterAll(async () => {
  for (const session of [controller, worker, operator, sandbox]) session?.close();
  await server.close(0);
  site.remove();
});

/** The audit entries that `act` leaves. */
const auditOf = async (act: () => Promise<unknown>): Promise<unknown[]> => {
  const before = entries.length;
  await act();
  return entries.slice(before).flatMap(({ audit }) => (audit === undefined ? [] : [audit]));
};

const ABOUT = { XCE_LEASE: '7', XCE_JOB: '42', XCE_UID: String(UID) };
const done = (caller: string, verb: string) => ({
  XCE_CALLER: caller,
  XCE_VERB: verb,
  XCE_VERDICT: 'done',
  XCE_CODE: 'ok',
  ...ABOUT,
});
const refused = (caller: string, verb: string, code: string, about: object = {}) => ({
  XCE_CALLER: caller,
  XCE_VERB: verb,
  XCE_VERDICT: 'refused',
  XCE_CODE: code,
  ...about,
});

/** Uses a stream verb to its end. */
const stream = async (session: RpcSession, verb: 'step' | 'spawn', head: never): Promise<void> => {
  const opened = await session.stream(verb, head, T);
  opened.endStdin();
  for await (const frame of opened) {
    if (frame.channel !== 'event' || frame.event.event !== 'started') continue;
    const [step] = host.backend.steps.get(7)?.keys() ?? [];
    if (step !== undefined) host.backend.step(7, step).finish(GOOD);
  }
};

const stepWith = (ticket: string): RequestOf<'step'> => ({
  ticket,
  step: 't1',
  kind: 'task',
  argv: [base64('/bin/true')],
  environment: [],
  directory: null,
  stdin: false,
});
const spawnWith = (changes: Partial<RequestOf<'spawn'>> = {}): RequestOf<'spawn'> => ({
  lease: 7,
  epoch: 3,
  uid: UID,
  argv: [base64('/usr/bin/prted')],
  environment: [],
  ...changes,
});

describe('each use of a privileged verb leaves one entry with caller, job, uid and verdict', () => {
  test('prepare, renew, step, spawn, stop and drain, when they are done', async () => {
    const ticket = ticketFor(nonces.issue());
    const newer = ticketFor(nonces.issue(), { ttlMs: 70_000 });
    const ctl = 'controller ctl';
    expect(await auditOf(() => controller.call('prepare', { ticket }, T))).toEqual([done(ctl, 'prepare')]);
    expect(await auditOf(() => controller.call('renew', { ticket: newer }, T))).toEqual([done(ctl, 'renew')]);
    expect(await auditOf(() => stream(controller, 'step', stepWith(newer) as never))).toEqual([
      done(ctl, 'step'),
    ]);
    expect(await auditOf(() => stream(worker, 'spawn', spawnWith() as never))).toEqual([
      done('worker n2', 'spawn'),
    ]);
    expect(await auditOf(() => controller.call('stop', { lease: 7 }, T))).toEqual([done(ctl, 'stop')]);
    expect(await auditOf(() => controller.call('drain', drainOf(), T))).toEqual([done(ctl, 'drain')]);
  });

  test('a ticket of another key names no job, because nobody has vouched for it', async () => {
    const forged = ticketFor(nonces.issue()).slice(0, -4).concat('AAAA');
    const codes = ['prepare', 'renew'] as const;
    for (const verb of codes) {
      expect(await auditOf(() => refusedCode(controller.call(verb, { ticket: forged }, T)))).toEqual([
        refused('controller ctl', verb, 'ticket-signature'),
      ]);
    }
    expect(await auditOf(() => refusedCode(controller.stream('step', stepWith(forged), T)))).toEqual([
      refused('controller ctl', 'step', 'ticket-signature'),
    ]);
  });

  test('an authentic ticket that is refused names its job', async () => {
    const ticket = ticketFor('ff'.repeat(16));
    expect(await auditOf(() => refusedCode(controller.call('prepare', { ticket }, T)))).toEqual([
      refused('controller ctl', 'prepare', 'ticket-tombstone', ABOUT),
    ]);
    expect(await auditOf(() => refusedCode(controller.stream('step', stepWith(ticket), T)))).toEqual([
      refused('controller ctl', 'step', 'ticket-tombstone', ABOUT),
    ]);
  });

  test('drain, spawn and daemon, when they are refused', async () => {
    const older = drainOf({ epoch: 1 });
    expect(await auditOf(() => refusedCode(controller.call('drain', older, T)))).toEqual([
      refused('controller ctl', 'drain', 'ticket-epoch', ABOUT),
    ]);
    expect(await auditOf(() => refusedCode(worker.stream('spawn', spawnWith(), T)))).toEqual([
      refused('worker n2', 'spawn', 'sandbox-missing', { XCE_LEASE: '7', XCE_UID: String(UID) }),
    ]);
    const daemon = { node: 'n2', argv: [base64('prted')], environment: [] };
    expect(await auditOf(() => refusedCode(sandbox.stream('daemon', daemon, T)))).toEqual([
      refused(`sandbox of lease 7, uid ${UID}, pid ${process.pid}`, 'daemon', 'sandbox-missing', {
        XCE_LEASE: '7',
      }),
    ]);
  });

  test('whoever may not ask at all is named with the verb alone', async () => {
    const ticket = ticketFor(nonces.issue());
    const asks = {
      prepare: () => operator.call('prepare', { ticket }, T),
      renew: () => operator.call('renew', { ticket }, T),
      stop: () => operator.call('stop', { lease: 7 }, T),
      drain: () => operator.call('drain', { ...drainOf(), job: '42' as JobId }, T),
      step: () => operator.stream('step', stepWith(ticket), T),
      spawn: () => operator.stream('spawn', spawnWith(), T),
      daemon: () => operator.stream('daemon', { node: 'n2', argv: [base64('prted')], environment: [] }, T),
    };
    for (const [verb, ask] of Object.entries(asks)) {
      expect(await auditOf(() => refusedCode(ask()))).toEqual([refused('operator op', verb, 'peer-role')]);
    }
  });

  test('what nobody needs a privilege for leaves none', async () => {
    expect(await auditOf(() => operator.call('status', {}, T))).toEqual([]);
    expect(await auditOf(() => worker.call('challenge', { purpose: 'hello' }, T))).toEqual([]);
  });
});

test('a step that ends because its caller went away was done, and is not refused afterwards', async () => {
  const ticket = ticketFor(nonces.issue(), { lease: 9 as LeaseNumber, uid: 70_009 as Uid });
  await controller.call('prepare', { ticket }, T);
  const before = entries.length;
  const opened = await controller.stream('step', stepWith(ticket), T);
  for await (const frame of opened) {
    if (frame.channel === 'event') break;
  }
  await expect.poll(() => entries.length - before).toBe(2);
  const [first, second] = entries.slice(before);
  expect(first?.audit).toMatchObject({ XCE_VERDICT: 'done', XCE_LEASE: '9' });
  expect([second?.audit, second?.message]).toEqual([
    undefined,
    'controller ctl: step: broken off: cancelled: the peer went away',
  ]);
});
