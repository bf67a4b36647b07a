/**
 * What the tests of the transport share: a cluster's certificates, a table that answers every verb, and a server
 * on real sockets.
 */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type ErrorCode, XceError } from '../../../src/base/errors.ts';
import type { InstanceName, JobId, LeaseNumber, NodeName, Uid } from '../../../src/base/ids.ts';
import { createAuthority, issue, type Validity, validForDays } from '../../../src/pki/authority.ts';
import { type Identity, loadIdentity } from '../../../src/pki/identity.ts';
import type { CertificateRole } from '../../../src/pki/names.ts';
import { revoke } from '../../../src/pki/revocation.ts';
import { parseRevocations } from '../../../src/pki/revocation-list.ts';
import { connectUnix } from '../../../src/rpc/client.ts';
import type { RequestOf, ResponseOf, StepResult, UnaryVerb } from '../../../src/rpc/message.ts';
import { createServer } from '../../../src/rpc/server.ts';
import type { RpcSession } from '../../../src/rpc/session.ts';
import type { RpcTimes } from '../../../src/rpc/times.ts';
import type { Caller, RpcServer, ServerReport, VerbTable } from '../../../src/rpc/verbs.ts';

export const asNode = (name: string) => name as NodeName;
export const LEASE = 7 as LeaseNumber;
export const SANDBOX_UID = 70_007 as Uid;

export const SUCCESS: StepResult = { result: 'success', code: 'exited', status: 0, stopped: false };

/** A directory with an authority; identities are issued on demand and removed with it. */
export type Site = {
  readonly root: string;
  identity(role: CertificateRole, node: string, validity?: Validity): Promise<Identity>;
  /** Revokes what was issued to the node; resolves with the list and the serial numbers it has now. */
  revoke(node: string): Promise<{ readonly pem: string; readonly serials: ReadonlySet<string> }>;
  remove(): void;
};

export const createSite = async (cluster = 'west'): Promise<Site> => {
  const root = mkdtempSync(join(tmpdir(), 'rpc-'));
  const authority = join(root, 'authority');
  await createAuthority(authority, { cluster });
  let issued = 0;
  return {
    root,
    async identity(role, node, validity = validForDays(10)) {
      issued += 1;
      const out = join(root, `identity-${issued}`);
      await issue(authority, { role, node: asNode(node), validity, out });
      return loadIdentity(out);
    },
    async revoke(node) {
      const { list } = await revoke(authority, { node: asNode(node) });
      const pem = readFileSync(list, 'latin1');
      const entries = parseRevocations(pem, list);
      return { pem, serials: new Set(entries.map(({ serial }) => serial)) };
    },
    remove: () => rmSync(root, { recursive: true }),
  };
};

const ALL: readonly Caller[] = ['controller', 'operator', 'worker', 'local-root', 'sandbox'];

/** Answers of every unary verb, and streams that echo their stdin to stdout. */
export const ANSWERS = {
  challenge: {
    protocol: { major: 1, minor: 2 },
    version: '0.1.0',
    node: asNode('n1'),
    instance: 'main' as InstanceName,
    bootId: 'b0b0',
    workerKey: 'ab'.repeat(32),
    nonce: 'cd'.repeat(16),
    wallMs: 1,
  },
  prepare: {
    unit: 'xce-main-7.42.0.anchor.service',
    invocationId: 'f'.repeat(32),
    created: true,
    workspace: '/scratch/xce/main/42.0',
    mounts: [{ path: '/scratch', source: 'srv:/scratch', type: 'nfs4', fsid: '0011' }],
  },
  renew: { remainingMs: 60_000 },
  stop: { stopped: true },
  drain: { certificate: 'xcc1.a.b' },
  status: {
    node: asNode('n1'),
    bootId: 'b0b0',
    sandboxes: [
      {
        lease: 7,
        job: '42' as JobId,
        attempt: 0,
        uid: 70_007,
        unit: 'u',
        state: 'ready',
        remainingMs: 1,
        steps: [{ step: 's1', kind: 'task', unit: 's' }],
      },
    ],
  },
  strays: { node: asNode('n1'), leases: [3, 5] },
  metrics: {
    node: asNode('n1'),
    families: [
      {
        name: 'xce_worker_steps',
        type: 'gauge',
        help: 'Steps that run.',
        samples: [{ labels: {}, value: 1 }],
      },
    ],
  },
  'probe-begin': {},
  'probe-act': { results: [{ done: true, text: 'a' }] },
  'probe-kill': {},
  'probe-end': {},
} as const satisfies { readonly [V in keyof VerbTable & UnaryName]: ResponseOf<V> };
type UnaryName = UnaryVerb;

export const REQUESTS = {
  challenge: { purpose: 'ticket' },
  prepare: { ticket: 'xce1.a.b' },
  renew: { ticket: 'xce1.a.b' },
  stop: { lease: 7 },
  drain: { epoch: 1, lease: 7, uid: 70_007, job: '42' as JobId, attempt: 0, nonce: '0f'.repeat(16) },
  status: {},
  strays: {},
  metrics: {},
  'probe-begin': {
    probe: '0f'.repeat(8),
    instance: 'main' as InstanceName,
    type: 'nfs4',
    client: 'b0b0 0:51',
  },
  'probe-act': {
    probe: '0f'.repeat(8),
    by: 'first',
    actions: [
      { act: 'create', name: 'a', text: 'a' },
      { act: 'lock', name: 'a', waitMs: 0 },
      { act: 'sync-directory' },
    ],
  },
  'probe-kill': { probe: '0f'.repeat(8) },
  'probe-end': { probe: '0f'.repeat(8), kept: ['look'], problem: null },
} as const satisfies { readonly [V in UnaryName]: RequestOf<V> };

export const base64 = (text: string): string => Buffer.from(text).toString('base64');

export const STEP: RequestOf<'step'> = {
  ticket: 'xce1.a.b',
  step: 's1',
  kind: 'task',
  argv: [base64('cat')],
  environment: [base64('A=b')],
  directory: null,
  stdin: true,
};
export const DAEMON: RequestOf<'daemon'> = { node: 'n2', argv: [base64('prted')], environment: [] };
export const SPAWN: RequestOf<'spawn'> = {
  lease: 7,
  epoch: 1,
  uid: 70_007,
  argv: [base64('prted')],
  environment: [],
};

export const echoTable = (): VerbTable => {
  const answer = <V extends UnaryName>(verb: V, callers: readonly Caller[]) => ({
    callers,
    answer: async () => ANSWERS[verb] as ResponseOf<V>,
  });
  return {
    challenge: answer('challenge', ['controller', 'operator', 'worker', 'local-root']),
    prepare: answer('prepare', ['controller']),
    renew: answer('renew', ['controller']),
    stop: answer('stop', ['controller', 'local-root']),
    drain: answer('drain', ['controller']),
    status: answer('status', ['controller', 'operator', 'local-root']),
    strays: answer('strays', ['controller', 'operator', 'local-root']),
    metrics: answer('metrics', ['controller', 'operator', 'local-root']),
    'probe-begin': answer('probe-begin', ['controller']),
    'probe-act': answer('probe-act', ['controller']),
    'probe-kill': answer('probe-kill', ['controller']),
    'probe-end': answer('probe-end', ['controller']),
    step: {
      callers: ALL,
      serve: async (_peer, _head, stream) => {
        await stream.sendEvent({ event: 'started', unit: 'step' });
        await stream.pump('stdout', stream.stdin);
        await stream.sendEvent({ event: 'ended', outcome: SUCCESS });
      },
    },
    daemon: {
      callers: ['sandbox'],
      serve: async (peer, head, stream) => {
        await stream.sendEvent({ event: 'started', unit: `${peer.kind} ${head.node}` });
        await stream.sendEvent({ event: 'ended', outcome: SUCCESS });
      },
    },
    spawn: {
      callers: ['worker'],
      serve: async (peer, head, stream) => {
        await stream.sendEvent({ event: 'started', unit: `${peer.kind} ${head.lease}` });
        await stream.sendEvent({ event: 'ended', outcome: SUCCESS });
      },
    },
  };
};

export type TestServer = {
  readonly server: RpcServer;
  readonly reports: ServerReport[];
  /** The reports of that kind so far. */
  of<W extends ServerReport['what']>(what: W): Extract<ServerReport, { what: W }>[];
};

export const startServer = (table: VerbTable, times?: Partial<RpcTimes>): TestServer => {
  const reports: ServerReport[] = [];
  const server = createServer({
    table,
    report: (entry) => reports.push(entry),
    ...(times === undefined ? {} : { times }),
  });
  const of = <W extends ServerReport['what']>(what: W) =>
    reports.filter((entry): entry is Extract<ServerReport, { what: W }> => entry.what === what);
  return { server, reports, of };
};

/** The refusal that a promise ends with; anything else fails the test. */
export const refusalOf = async (promise: Promise<unknown>): Promise<XceError> => {
  try {
    await promise;
  } catch (error) {
    if (error instanceof XceError) return error;
    throw error;
  }
  throw new Error('it was not refused');
};

export const refusedCode = async (promise: Promise<unknown>): Promise<ErrorCode> =>
  (await refusalOf(promise)).code;

/** Connects with the credentials of a job: the kernel records them in connect(2), which comes at once. */
export const connectAsUid = (path: string, uid: number): Promise<RpcSession> => {
  process.setegid?.(uid);
  process.seteuid?.(uid);
  try {
    return connectUnix(path, { timeoutMs: 10_000 });
  } finally {
    process.seteuid?.(0);
    process.setegid?.(0);
  }
};

/** Seeded numbers for fuzzing: fast-check would shrink and remember fifty thousand cases. */
export const createRandom = (start: number) => {
  let state = start >>> 0;
  return (below: number): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) % below;
  };
};
