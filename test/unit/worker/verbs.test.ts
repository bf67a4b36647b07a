import { describe, expect, test } from 'vitest';
import type { LeaseNumber, NodeName } from '../../../src/base/ids.ts';
import type { RequestOf } from '../../../src/rpc/message.ts';
import type { Peer } from '../../../src/rpc/verbs.ts';
import { codeOf, FakeStream, GOOD, Host, settle, ticketFor, UID, verbsOf } from './fakes.ts';

const CONTROLLER: Peer = { kind: 'certificate', role: 'controller', node: 'ctl' as NodeName };
const OPERATOR: Peer = { kind: 'certificate', role: 'operator', node: 'ctl' as NodeName };
const WORKER: Peer = { kind: 'certificate', role: 'worker', node: 'n2' as NodeName };
const STORAGE: Peer = { kind: 'certificate', role: 'storage', node: 'io1' as NodeName };
const SANDBOX: Peer = { kind: 'sandbox', lease: 7 as LeaseNumber, uid: UID, pid: 99 };
const quiet = new AbortController().signal;
const base64 = (text: string): string => Buffer.from(text).toString('base64');

const setUp = () => {
  const host = new Host();
  const worker = host.startWorker();
  const table = verbsOf(host, worker, {
    report: (report) => host.reports.push(report),
    wallMs: () => 1_800_000_000_000,
  });
  return { host, table, nonces: worker.nonces };
};

const preparedTable = async () => {
  const parts = setUp();
  const ticket = ticketFor(parts.nonces.issue());
  await parts.table.prepare.answer(CONTROLLER, { ticket }, quiet);
  const step = (changes: Partial<RequestOf<'step'>> = {}): RequestOf<'step'> => ({
    ticket,
    step: 't1',
    kind: 'task',
    argv: [base64('/bin/echo')],
    environment: [],
    directory: null,
    stdin: false,
    ...changes,
  });
  return { ...parts, ticket, step };
};

describe('the table of verbs', () => {
  test('names exactly these callers', () => {
    const { table } = setUp();
    expect(Object.fromEntries(Object.entries(table).map(([verb, { callers }]) => [verb, callers]))).toEqual({
      challenge: ['controller', 'operator', 'worker', 'storage', 'local-root'],
      prepare: ['controller'],
      renew: ['controller'],
      stop: ['controller'],
      drain: ['controller'],
      status: ['controller', 'operator', 'local-root'],
      strays: ['controller', 'operator', 'local-root'],
      metrics: ['controller', 'operator', 'local-root'],
      step: ['controller'],
      spawn: ['worker'],
      daemon: ['sandbox'],
    });
  });

  test('a challenge tells who the worker is, and keeps a nonce for a controller alone', async () => {
    const { table, nonces } = setUp();
    const answer = await table.challenge.answer(CONTROLLER, { purpose: 'ticket' }, quiet);
    expect(answer).toMatchObject({
      protocol: { major: 1, minor: 2 },
      version: '1.2.3',
      node: 'n1',
      bootId: 'boot-1',
    });
    expect(nonces.issuedMs(answer.nonce)).toBeDefined();
    for (const peer of [OPERATOR, WORKER, STORAGE]) {
      const hello = await table.challenge.answer(peer, { purpose: 'hello' }, quiet);
      expect(nonces.issuedMs(hello.nonce)).toBeUndefined();
      expect(await codeOf(table.challenge.answer(peer, { purpose: 'ticket' }, quiet))).toBe('peer-role');
    }
  });
});

describe('a step', () => {
  test('gets the variables that lead launchers to our agent, and its own win', async () => {
    const { host, step, table } = await preparedTable();
    const specs: string[][] = [];
    const startStep = host.backend.startStep.bind(host.backend);
    host.backend.startStep = (spec, invocation, given) => {
      specs.push(given.environment.map(String));
      return startStep(spec, invocation, given);
    };
    const environment = ['A=b', 'PRTE_MCA_plm_ssh_agent=/mine'].map(base64);
    const stream = new FakeStream();
    const served = table.step.serve(CONTROLLER, step({ environment }), stream);
    await stream.sent('started');
    host.backend.step(7, 't1').finish(GOOD);
    await served;
    expect(specs[0]).toEqual(
      expect.arrayContaining(['A=b', 'PRTE_MCA_plm_ssh_agent=/mine', 'HYDRA_LAUNCHER_EXEC=/opt/agent']),
    );
    expect(specs[0]).not.toContain('PRTE_MCA_plm_ssh_agent=/opt/agent');
  });

  test('with too much or with a NUL byte is refused before anything starts', async () => {
    const { host, step, table } = await preparedTable();
    const big = base64('x'.repeat(600_000));
    const ask = (changes: Partial<RequestOf<'step'>>) =>
      codeOf(table.step.serve(CONTROLLER, step(changes), new FakeStream()));
    expect(await ask({ argv: [big, big] })).toBe('too-large');
    expect(await ask({ environment: [base64('A=b\0C=d')] })).toBe('protocol');
    expect(host.backend.trace).toEqual(['create 7']);
  });

  test('that is a head and is refused leaves no head behind', async () => {
    const { step, table } = await preparedTable();
    const refused = table.step.serve(CONTROLLER, step({ kind: 'head', ticket: '' }), new FakeStream());
    expect(await codeOf(refused)).toBe('ticket-missing');
  });
});

describe('daemons', () => {
  const spawn = (changes: Partial<RequestOf<'spawn'>> = {}): RequestOf<'spawn'> => ({
    lease: 7,
    epoch: 3,
    uid: UID,
    argv: [base64('/usr/bin/prted')],
    environment: [],
    ...changes,
  });

  test('are started for the worker of a node of the lease, under a name of their own', async () => {
    const { host, table } = await preparedTable();
    const stream = new FakeStream();
    const served = table.spawn.serve(WORKER, spawn(), stream);
    await stream.sent('started');
    const [step] = [...(host.backend.steps.get(7)?.keys() ?? [])];
    expect(step).toMatch(/^d[0-9a-f]{14}$/);
    host.backend.step(7, step ?? '').finish(GOOD);
    await served;
    expect(stream.events.at(-1)).toEqual({ event: 'ended', outcome: GOOD });
  });

  test('are nothing but what launchers start', async () => {
    const { host, table } = await preparedTable();
    const refused = table.spawn.serve(WORKER, spawn({ argv: [base64('/bin/sh')] }), new FakeStream());
    expect(await codeOf(refused)).toBe('mpi-agent');
    expect(host.backend.trace).toEqual(['create 7']);
  });

  test('of a sandbox that is over, or of another uid, are refused', async () => {
    const { host, table } = await preparedTable();
    const request = { node: 'n2', argv: [base64('/usr/bin/prted')], environment: [] };
    const ask = (peer: Peer) => codeOf(table.daemon.serve(peer, request, new FakeStream()));
    expect(await ask(SANDBOX)).toBe('worker-unreachable');
    expect(await ask({ ...SANDBOX, uid: 70_002 as typeof UID })).toBe('peer-unknown');
    host.backend.loseAnchor(7);
    await settle();
    expect(await ask(SANDBOX)).toBe('sandbox-lost');
    expect(await ask({ ...SANDBOX, lease: 8 as LeaseNumber })).toBe('sandbox-missing');
  });
});
