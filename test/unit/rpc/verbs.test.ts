import { chmodSync, chownSync, mkdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Identity } from '../../../src/pki/identity.ts';
import { connectTls, connectUnix } from '../../../src/rpc/client.ts';
import type { UnaryVerb } from '../../../src/rpc/message.ts';
import type { ClientStream, RpcSession } from '../../../src/rpc/session.ts';
import {
  ANSWERS,
  asNode,
  connectAsUid,
  createSite,
  DAEMON,
  echoTable,
  LEASE,
  REQUESTS,
  refusalOf,
  refusedCode,
  SANDBOX_UID,
  type Site,
  SPAWN,
  STEP,
  SUCCESS,
  startServer,
  type TestServer,
} from './site.ts';

const T = { timeoutMs: 10_000 };

let site: Site;
let running: TestServer;
let port: number;
let worker: Identity;
const clients = new Map<string, RpcSession>();

const connectAs = (identity: Identity): Promise<RpcSession> =>
  connectTls({ address: '127.0.0.1', port, identity, expectNode: asNode('n1') }, T);

beforeAll(async () => {
  site = await createSite();
  running = startServer(echoTable());
  worker = await site.identity('worker', 'n1');
  ({ port } = await running.server.listenTls({ address: '127.0.0.1', port: 0 }, worker));
  const local = join(site.root, 'worker.sock');
  await running.server.listenRoot({ path: local });
  clients.set('controller', await connectAs(await site.identity('controller', 'c1')));
  clients.set('operator', await connectAs(await site.identity('operator', 'c1')));
  clients.set('worker', await connectAs(await site.identity('worker', 'n2')));
  clients.set('local-root', await connectUnix(local, T));
});
afterAll(async () => {
  for (const session of clients.values()) session.close();
  await running.server.close(1000);
  site.remove();
});

const clientOf = (caller: string): RpcSession => {
  const session = clients.get(caller);
  if (session === undefined) throw new Error(caller);
  return session;
};

const collect = async (stream: ClientStream) => {
  const events: unknown[] = [];
  const bytes: Buffer[] = [];
  for await (const frame of stream) {
    if (frame.channel === 'event') events.push(frame.event);
    else bytes.push(frame.bytes);
  }
  return { events, stdout: Buffer.concat(bytes) };
};

const CALLERS: { readonly [V in UnaryVerb]: readonly string[] } = {
  challenge: ['controller', 'operator', 'worker', 'local-root'],
  prepare: ['controller'],
  renew: ['controller'],
  stop: ['controller', 'local-root'],
  drain: ['controller'],
  status: ['controller', 'operator', 'local-root'],
  strays: ['controller', 'operator', 'local-root'],
  metrics: ['controller', 'operator', 'local-root'],
  'probe-begin': ['controller'],
  'probe-act': ['controller'],
  'probe-kill': ['controller'],
  'probe-end': ['controller'],
};

describe('a unary verb', () => {
  for (const verb of Object.keys(CALLERS) as UnaryVerb[]) {
    for (const caller of ['controller', 'operator', 'worker', 'local-root']) {
      const allowed = CALLERS[verb].includes(caller);
      test(`${verb} is ${allowed ? 'answered to' : 'refused to'} ${caller}`, async () => {
        const answer = clientOf(caller).call(verb, REQUESTS[verb], T);
        if (allowed) expect(await answer).toEqual(ANSWERS[verb]);
        else expect(await refusedCode(answer)).toBe('peer-role');
      });
    }
  }

  test('carries many requests at once on one connection', async () => {
    const answers = await Promise.all(
      Array.from({ length: 500 }, () => clientOf('controller').call('status', {}, T)),
    );
    expect(answers).toHaveLength(500);
    expect(new Set(answers.map((answer) => JSON.stringify(answer))).size).toBe(1);
  });
});

describe('a stream verb', () => {
  test('step carries bytes both ways', async () => {
    const stream = await clientOf('controller').stream('step', STEP, T);
    await stream.writeStdin(Buffer.from('hello'));
    stream.endStdin();
    const { events, stdout } = await collect(stream);
    expect(stdout.toString()).toBe('hello');
    expect(events).toEqual([
      { event: 'started', unit: 'step' },
      { event: 'ended', outcome: SUCCESS },
    ]);
  });

  test('spawn is for workers alone', async () => {
    const { events } = await collect(await clientOf('worker').stream('spawn', SPAWN, T));
    expect(events[0]).toEqual({ event: 'started', unit: 'certificate 7' });
    for (const caller of ['controller', 'operator', 'local-root']) {
      expect(await refusedCode(clientOf(caller).stream('spawn', SPAWN, T))).toBe('peer-role');
    }
  });

  test('daemon is for the sandbox alone', async () => {
    for (const caller of ['controller', 'operator', 'worker', 'local-root']) {
      expect(await refusedCode(clientOf(caller).stream('daemon', DAEMON, T))).toBe('peer-role');
    }
  });
});

describe("a sandbox's socket", () => {
  test('belongs to its uid, which alone may use it, for daemon alone', async () => {
    chmodSync(site.root, 0o711);
    const box = join(site.root, 'box');
    mkdirSync(box, { mode: 0o711 });
    const path = join(box, 'agent.sock');
    const listening = await running.server.listenSandbox(path, LEASE, SANDBOX_UID);
    const facts = statSync(path);
    expect([facts.mode & 0o777, facts.uid, facts.gid]).toEqual([0o600, SANDBOX_UID, SANDBOX_UID]);

    const session = await connectAsUid(path, SANDBOX_UID);
    const { events } = await collect(await session.stream('daemon', DAEMON, T));
    expect(events[0]).toEqual({ event: 'started', unit: 'sandbox n2' });
    for (const verb of Object.keys(REQUESTS) as UnaryVerb[]) {
      expect(await refusedCode(session.call(verb, REQUESTS[verb], T))).toBe('peer-role');
    }
    expect(await refusedCode(session.stream('spawn', SPAWN, T))).toBe('peer-role');
    session.close();

    // Root may open the socket file, but is not the job.
    expect(await refusedCode(connectUnix(path, T))).toBe('peer-role');
    expect((await refusalOf(connectAsUid(path, 70_008))).facts.detail).toMatchObject({ errno: 'EACCES' });
    await listening.close();
    expect((await refusalOf(connectUnix(path, T))).facts.detail).toMatchObject({ errno: 'ENOENT' });
  });

  test('is not made where others than root may rename it', async () => {
    const box = join(site.root, 'theirs');
    mkdirSync(box, { mode: 0o711 });
    chownSync(box, SANDBOX_UID, SANDBOX_UID);
    const path = join(box, 'agent.sock');
    expect(await refusedCode(running.server.listenSandbox(path, LEASE, SANDBOX_UID))).toBe('config-unsafe');
    chownSync(box, 0, 0);
    chmodSync(box, 0o733);
    expect(await refusedCode(running.server.listenSandbox(path, LEASE, SANDBOX_UID))).toBe('config-unsafe');
  });
});

test("the node's own socket is for root alone", async () => {
  const path = join(site.root, 'open.sock');
  const listening = await running.server.listenRoot({ path });
  chmodSync(path, 0o666);
  chmodSync(site.root, 0o711);
  process.seteuid?.(SANDBOX_UID);
  const connecting = connectUnix(path, T);
  process.seteuid?.(0);
  expect(await refusedCode(connecting)).toBe('peer-role');
  expect(running.of('peer-refused').at(-1)).toMatchObject({ listener: 'local', code: 'peer-role' });
  await listening.close();
});
