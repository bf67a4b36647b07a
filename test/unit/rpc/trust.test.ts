import { spawn } from 'node:child_process';
import { EventEmitter, once } from 'node:events';
import { connect as connectHttp2 } from 'node:http2';
import { type AddressInfo, connect as connectTcp, createServer as createTcpServer } from 'node:net';
import { type ConnectionOptions, connect, type TLSSocket } from 'node:tls';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { XceError } from '../../../src/base/errors.ts';
import type { Identity } from '../../../src/pki/identity.ts';
import { connectTls } from '../../../src/rpc/client.ts';
import { decodeWireError } from '../../../src/rpc/decode.ts';
import type { ClientStream } from '../../../src/rpc/session.ts';
import {
  ANSWERS,
  asNode,
  createSite,
  echoTable,
  REQUESTS,
  refusalOf,
  refusedCode,
  type Site,
  STEP,
  startServer,
  type TestServer,
} from './site.ts';

const T = { timeoutMs: 10_000 };
const DAY_MS = 24 * 3600 * 1000;
const day = (from: number, to: number) => ({
  notBeforeMs: Date.now() + from * DAY_MS,
  notAfterMs: Date.now() + to * DAY_MS,
});

let site: Site;
let foreign: Site;
let running: TestServer;
let port: number;
let worker: Identity;
let controller: Identity;

/** A server with that identity, on a port of its own. */
const serveAs = async (identity: Identity): Promise<number> =>
  (await running.server.listenTls({ address: '127.0.0.1', port: 0 }, identity)).port;

const connectWith = (identity: Identity, toPort = port, node = 'n1') =>
  connectTls({ address: '127.0.0.1', port: toPort, identity, expectNode: asNode(node) }, T);

/** A client that shows one certificate and trusts the authority of the site, whatever the two have to do with each other. */
const withForeignTrust = (identity: Identity): Identity => ({
  ...identity,
  cluster: worker.cluster,
  authorityPem: worker.authorityPem,
  revocationsPem: worker.revocationsPem,
});

beforeAll(async () => {
  site = await createSite();
  foreign = await createSite();
  running = startServer(echoTable());
  worker = await site.identity('worker', 'n1');
  controller = await site.identity('controller', 'c1');
  port = await serveAs(worker);
});
afterAll(async () => {
  await running.server.close(1000);
  site.remove();
  foreign.remove();
});

describe('a client refuses a worker', () => {
  test('of another authority', async () => {
    const error = await refusalOf(connectWith(await foreign.identity('controller', 'c1')));
    expect(error.code).toBe('tls');
    expect(error.facts.detail).toMatchObject({ reason: expect.stringMatching(/SELF_SIGNED|UNABLE_TO/) });
  });

  test('of another node', async () => {
    const error = await refusalOf(connectWith(controller, port, 'n2'));
    expect(error.code).toBe('tls');
    expect(error.message).toContain('of the node n1, not n2');
  });

  test.each(['controller', 'operator', 'storage'] as const)('that is a %s of that name', async (role) => {
    const error = await refusalOf(connectWith(controller, await serveAs(await site.identity(role, 'n1'))));
    expect(error.code).toBe('tls');
    expect(error.message).toContain(`the role ${role}`);
  });

  test('whose certificate has run out, and names the clock', async () => {
    const old = await site.identity('worker', 'n1', day(-10, -1));
    const error = await refusalOf(connectWith(controller, await serveAs(old)));
    expect(error.code).toBe('tls');
    expect(error.facts.detail).toMatchObject({ reason: 'CERT_HAS_EXPIRED' });
    expect(error.message).toMatch(/has expired.*clock is wrong: here it is 20/);
  });

  test('whose certificate is not valid yet', async () => {
    const early = await site.identity('worker', 'n1', day(1, 10));
    const error = await refusalOf(connectWith(controller, await serveAs(early)));
    expect(error.facts.detail).toMatchObject({ reason: 'CERT_NOT_YET_VALID' });
  });

  test('whatever NODE_TLS_REJECT_UNAUTHORIZED says', async () => {
    process.env['NODE_TLS_REJECT_UNAUTHORIZED'] = '0';
    try {
      expect(await refusedCode(connectWith(await foreign.identity('controller', 'c1')))).toBe('tls');
    } finally {
      delete process.env['NODE_TLS_REJECT_UNAUTHORIZED'];
    }
  });
});

describe('a server refuses a client', () => {
  test('of another authority, and says so', async () => {
    const stranger = withForeignTrust(await foreign.identity('controller', 'c1'));
    const error = await refusalOf(connectWith(stranger));
    expect(error.code).toBe('tls');
    expect(error.facts.detail).toMatchObject({ reason: expect.stringMatching(/SELF_SIGNED|UNABLE_TO/) });
    expect(running.of('peer-refused').at(-1)).toMatchObject({ listener: 'tls', code: 'tls' });
  });

  test('whose certificate has run out, and names dates and clock', async () => {
    const error = await refusalOf(connectWith(await site.identity('controller', 'c1', day(-10, -1))));
    expect(error.code).toBe('tls');
    expect(error.facts.detail).toMatchObject({ reason: 'CERT_HAS_EXPIRED' });
    expect(error.message).toMatch(/has expired \(valid from .* to .*\), or a clock is wrong: here it is 20/);
  });

  test('whose certificate is not valid yet', async () => {
    const error = await refusalOf(connectWith(await site.identity('controller', 'c1', day(1, 10))));
    expect(error.facts.detail).toMatchObject({ reason: 'CERT_NOT_YET_VALID' });
  });

  test('of another cluster under the same authority', async () => {
    const other: Identity = { ...worker, cluster: 'east' };
    const error = await refusalOf(connectWith({ ...controller, cluster: 'west' }, await serveAs(other)));
    expect(error.code).toBe('tls');
    expect(error.facts.detail).toMatchObject({ reason: 'CLUSTER' });
  });

  /** The refusal that a client without our library reads from the connection. */
  const rawRefusal = (options: ConnectionOptions): Promise<XceError> =>
    new Promise((resolve, reject) => {
      const socket = connect({
        host: '127.0.0.1',
        port,
        ca: worker.authorityPem,
        ALPNProtocols: ['h2'],
        checkServerIdentity: () => undefined,
        ...options,
      });
      const session = connectHttp2('http://x', { createConnection: () => socket });
      session.on('goaway', (_code, _last, data) => resolve(decodeWireError(data ?? Buffer.alloc(0))));
      session.on('error', reject);
      socket.on('error', reject);
    });

  test('without a certificate', async () => {
    const error = await rawRefusal({});
    expect(error.code).toBe('tls');
    expect(error.facts.detail).toEqual({ reason: 'MISSING' });
  });

  /** How a handshake with these options ends. */
  const handshake = async (options: ConnectionOptions): Promise<string> => {
    const socket: TLSSocket = connect({
      host: '127.0.0.1',
      port,
      ca: worker.authorityPem,
      cert: controller.certificatePem,
      key: controller.keyPem,
      ALPNProtocols: ['h2'],
      checkServerIdentity: () => undefined,
      ...options,
    });
    // The reset that follows an alert.
    socket.on('error', () => undefined);
    try {
      await once(socket, 'secureConnect');
      return `${socket.getProtocol()} ${socket.alpnProtocol}`;
    } catch (error) {
      return error instanceof Error && 'code' in error ? String(error.code) : String(error);
    } finally {
      socket.destroy();
    }
  };

  test('that speaks TLS 1.2', async () => {
    expect(await handshake({})).toBe('TLSv1.3 h2');
    expect(await handshake({ minVersion: 'TLSv1.2', maxVersion: 'TLSv1.2' })).toBe(
      'ERR_SSL_TLSV1_ALERT_PROTOCOL_VERSION',
    );
  });

  test('that offers another protocol, or other signatures', async () => {
    expect(await handshake({ ALPNProtocols: ['http/1.1'] })).toBe(
      'ERR_SSL_TLSV1_ALERT_NO_APPLICATION_PROTOCOL',
    );
    expect(await handshake({ sigalgs: 'rsa_pss_rsae_sha256' })).toMatch(/^ERR_SSL_/);
  });

  test('that offers no protocol at all', async () => {
    const socket = connect({
      host: '127.0.0.1',
      port,
      ca: worker.authorityPem,
      cert: controller.certificatePem,
      key: controller.keyPem,
      checkServerIdentity: () => undefined,
    });
    socket.on('error', () => undefined);
    socket.resume();
    await once(socket, 'close');
    expect(running.of('peer-refused').at(-1)).toMatchObject({ message: 'the peer offers no ALPN' });
  });

  test('that resumes a session, so that no old proof counts', async () => {
    const first = connect({
      host: '127.0.0.1',
      port,
      ca: worker.authorityPem,
      cert: controller.certificatePem,
      key: controller.keyPem,
      ALPNProtocols: ['h2'],
      checkServerIdentity: () => undefined,
    });
    const sessions: Buffer[] = [];
    first.on('session', (session) => sessions.push(session));
    await once(first, 'secureConnect');
    // A ticket, if there is one, comes with the first bytes of the server.
    first.write('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0');
    await once(first, 'data');
    await new Promise((resolve) => setImmediate(resolve));
    first.destroy();
    const reused: boolean[] = [];
    for (const session of sessions) {
      const again = connect({
        host: '127.0.0.1',
        port,
        ca: worker.authorityPem,
        session,
        ALPNProtocols: ['h2'],
        cert: controller.certificatePem,
        key: controller.keyPem,
        checkServerIdentity: () => undefined,
      });
      await once(again, 'secureConnect');
      reused.push(again.isSessionReused());
      again.destroy();
    }
    expect(reused).not.toContain(true);
  });

  test('as seen by openssl: a request for a certificate, TLS 1.3, P-256', async () => {
    const client = spawn('openssl', ['s_client', '-connect', `127.0.0.1:${port}`, '-alpn', 'h2'], {
      stdio: ['pipe', 'pipe', 'ignore'],
    });
    const chunks: Buffer[] = [];
    client.stdout.on('data', (chunk: Buffer) => chunks.push(chunk));
    await once(client, 'close');
    const said = Buffer.concat(chunks).toString('latin1');
    expect(said).toContain('New, TLSv1.3');
    expect(said).toContain('Acceptable client certificate CA names');
    expect(said).toContain('Peer signature type: ECDSA');
  });
});

test('a certificate that runs out while its connection lives is refused at the next request', async () => {
  // X.509 knows whole seconds: valid until the end of the next but one.
  const notAfterMs = (Math.floor(Date.now() / 1000) + 2) * 1000;
  const short = await site.identity('controller', 'c1', { notBeforeMs: Date.now() - DAY_MS, notAfterMs });
  const session = await connectWith(short);
  await session.call('status', {}, T);
  await new Promise((resolve) => setTimeout(resolve, notAfterMs + 50 - Date.now()));
  const error = await refusalOf(session.call('status', {}, T));
  expect([error.code, error.facts.detail]).toEqual(['tls', { reason: 'CERT_HAS_EXPIRED' }]);
  session.close();
});

const drain = async (stream: ClientStream): Promise<void> => {
  for await (const _frame of stream) await undefined;
};

describe('a certificate that is revoked', () => {
  test('is refused on both sides by whoever has the list', async () => {
    const lost = await site.identity('worker', 'lost');
    const stolen = await site.identity('operator', 'stolen');
    const lostPort = await serveAs(lost);
    const before = await connectWith(controller, lostPort, 'lost');
    before.close();
    await site.revoke('lost');
    const { pem, serials } = await site.revoke('stolen');
    expect(serials.size).toBe(2);

    const client = await refusalOf(connectWith({ ...controller, revocationsPem: pem }, lostPort, 'lost'));
    expect(client.facts.detail).toMatchObject({ reason: 'CERT_REVOKED' });
    const server = await refusalOf(connectWith(stolen, await serveAs({ ...worker, revocationsPem: pem })));
    expect(server).toMatchObject({ code: 'tls', facts: { detail: { reason: 'CERT_REVOKED' } } });
    expect(await connectWith(controller, await serveAs({ ...worker, revocationsPem: pem }))).toBeDefined();
  });

  test('is refused by a list of another authority too: such a list says nothing', async () => {
    const foreignList = {
      ...worker,
      revocationsPem: (await foreign.identity('worker', 'n1')).revocationsPem,
    };
    const error = await refusalOf(connectWith(controller, await serveAs(foreignList)));
    expect(error.facts.detail).toMatchObject({ reason: 'UNABLE_TO_GET_CRL' });
  });
});

describe('a server whose certificates are renewed', () => {
  test('cuts who is revoked, keeps what runs for others, and shows the new certificate', async () => {
    const listening = await running.server.listenTls({ address: '127.0.0.1', port: 0 }, worker);
    const traitor = await connectWith(await site.identity('operator', 'traitor'), listening.port);
    const friend = await connectWith(controller, listening.port);
    const stream = await traitor.stream('step', STEP, T);
    const end = refusalOf(drain(stream));
    const renewed = await site.identity('worker', 'n1', day(-1, 99));
    const { pem, serials } = await site.revoke('traitor');
    listening.renew({ ...renewed, revocationsPem: pem, revokedSerials: serials });

    expect((await end).code).toBe('worker-unreachable');
    expect(await friend.call('challenge', REQUESTS.challenge, T)).toEqual(ANSWERS.challenge);
    const shown = connect({
      host: '127.0.0.1',
      port: listening.port,
      ca: worker.authorityPem,
      cert: controller.certificatePem,
      key: controller.keyPem,
      ALPNProtocols: ['h2'],
      checkServerIdentity: () => undefined,
    });
    await once(shown, 'secureConnect');
    expect(Date.parse(shown.getPeerCertificate().valid_to)).toBe(renewed.notAfterMs);
    shown.destroy();
    friend.close();
  });

  test('refuses who is revoked while the handshake is under way', async () => {
    const listening = await running.server.listenTls({ address: '127.0.0.1', port: 0 }, worker);
    const slow = await site.identity('operator', 'slow');
    // Lets the client's first words through, and its certificate only when it is told to.
    const gate = new EventEmitter();
    const released = once(gate, 'release');
    const answered = once(gate, 'answer');
    const between = createTcpServer(async (client) => {
      const server = connectTcp(listening.port, '127.0.0.1');
      server.pipe(client);
      server.once('data', () => gate.emit('answer'));
      const [hello] = await once(client, 'data');
      client.pause();
      server.write(hello);
      await released;
      client.pipe(server);
    });
    between.listen(0, '127.0.0.1');
    await once(between, 'listening');
    const { port: toPort } = between.address() as AddressInfo;
    const refused = refusalOf(connectWith(slow, toPort));
    await answered;
    const { pem, serials } = await site.revoke('slow');
    listening.renew({ ...worker, revocationsPem: pem, revokedSerials: serials });
    gate.emit('release');
    expect(await refused).toMatchObject({ code: 'tls', facts: { detail: { reason: 'CERT_REVOKED' } } });
    between.close();
  });
});
