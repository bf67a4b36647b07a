/**
 * The parts of `npm run bench -- launch` that are processes of their own, bundled into one file:
 *
 *   serve MODEL FIRST COUNT   listeners of that many workers: at port 7713 the server of the worker over a backend that
 *                             does nothing, at 7714 bare TLS, at 7715 bare HTTP/2; says `ready`, and ends with its
 *                             standard input. MODEL is what was issued for the first worker of all
 *   bare COUNT                one message to each of that many bare listeners, and one back
 *   http2 FILE BYTES          that many bytes from the first bare HTTP/2 listener into a file
 */
import { createPrivateKey, type KeyObject, randomBytes, sign, X509Certificate } from 'node:crypto';
import { createWriteStream, readFileSync } from 'node:fs';
import { connect as connectHttp2, createSecureServer, type ServerHttp2Stream } from 'node:http2';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { PassThrough, Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { connect as connectTls, createSecureContext, createServer as createTlsServer } from 'node:tls';
import type { InstanceName } from '../../src/base/ids.ts';
import { type Identity, loadIdentity, PKI_FILES } from '../../src/pki/identity.ts';
import type { StepResult } from '../../src/rpc/message.ts';
import { createServer } from '../../src/rpc/server.ts';
import type { VerbTable } from '../../src/rpc/verbs.ts';
import { serveStep } from '../../src/worker/step-stream.ts';
import { nameOf } from './worker-names.ts';

const PORTS = { worker: 7713, bare: 7714, http2: 7715 } as const;
const IN_FLIGHT = 64;
const MESSAGE = Buffer.alloc(1024, 'x');
const CHUNK = Buffer.alloc(64 << 10, 'x');
const CLIENT = '/etc/xce-sandbox/pki';
const GOOD: StepResult = { result: 'success', code: 'exited', status: 0, stopped: false };

const addressOf = (index: number): string => `127.77.${index >> 8}.${index & 255}`;
const MODEL_NAME = nameOf(1);

/** `count` bytes, made as fast as they are taken. */
const bytesOf = (count: number): Readable =>
  Readable.from(
    (function* () {
      for (let left = count; left > 0; left -= CHUNK.length) yield CHUNK.subarray(0, left);
    })(),
    { objectMode: false, highWaterMark: CHUNK.length },
  );

const tlsOptions = ({ authorityPem, revocationsPem, certificatePem, keyPem }: Identity) => ({
  minVersion: 'TLSv1.3' as const,
  ecdhCurve: 'P-256:X25519',
  sigalgs: 'ecdsa_secp256r1_sha256',
  ca: authorityPem,
  crl: revocationsPem,
  cert: certificatePem,
  key: keyPem,
});

/** Of a header of DER: the tag, that two bytes of length follow, and these. */
const DER_HEADER_BYTES = 4;
/** ecdsa-with-SHA256, as a certificate says what it was signed with. */
const ALGORITHM_BYTES = 12;

/**
 * The identity of another worker, with the key of the model. The library that issues certificates takes half a minute
 * for a thousand; this puts another name into the one that there is, and signs it again.
 */
const identityOf = (model: Identity, authorityKey: KeyObject, index: number): Identity => {
  const node = nameOf(index);
  const { raw } = new X509Certificate(model.certificatePem);
  const signedEnd = 2 * DER_HEADER_BYTES + raw.readUInt16BE(DER_HEADER_BYTES + 2);
  const signed = Buffer.from(
    raw.toString('latin1', DER_HEADER_BYTES, signedEnd).replaceAll(MODEL_NAME, node),
    'latin1',
  );
  const signature = sign('sha256', signed, authorityKey);
  const content = Buffer.concat([
    signed,
    raw.subarray(signedEnd, signedEnd + ALGORITHM_BYTES),
    // A BIT STRING of whole bytes.
    Buffer.from([0x03, signature.length + 1, 0]),
    signature,
  ]);
  const header = Buffer.from([0x30, 0x82, 0, 0]);
  header.writeUInt16BE(content.length, 2);
  const base64 = Buffer.concat([header, content]).toString('base64');
  const lines = base64.match(/.{1,64}/g) ?? [];
  const certificatePem = ['-----BEGIN CERTIFICATE-----', ...lines, '-----END CERTIFICATE-----', ''].join(
    '\n',
  );
  return { ...model, node, certificatePem };
};

const verbsOf = (index: number): VerbTable => ({
  challenge: {
    callers: ['controller'],
    answer: async () => ({
      protocol: { major: 1, minor: 0 },
      version: 'bench',
      node: nameOf(index),
      instance: 'main' as InstanceName,
      bootId: '6b0b6c2c-0000-4000-8000-000000000000',
      workerKey: String(index).padStart(64, '0'),
      nonce: randomBytes(16).toString('hex'),
      wallMs: Date.now(),
    }),
  },
  prepare: {
    callers: ['controller'],
    answer: async () => ({
      unit: 'anchor.service',
      invocationId: 'a1',
      created: false,
      workspace: null,
      mounts: [],
    }),
  },
  stop: { callers: ['controller'], answer: async () => ({ stopped: true }) },
  step: {
    callers: ['controller'],
    serve: async (_peer, head, stream) => {
      const [, bytes = '0'] = head.argv.map((word) => Buffer.from(word, 'base64').toString());
      const stderr = new PassThrough();
      stderr.end();
      const running = {
        unit: 'step.service',
        stdin: new PassThrough(),
        stdout: bytesOf(Number(bytes)),
        stderr,
        ended: Promise.resolve(GOOD),
        signal: async () => undefined,
        stop: async () => undefined,
      };
      await serveStep(stream, running, false, { fault: () => undefined });
    },
  },
});

const serve = async (place: string, first: number, count: number): Promise<void> => {
  const model = loadIdentity(place);
  const authorityKey = createPrivateKey(readFileSync(join(CLIENT, PKI_FILES.authorityKey)));
  const answer = (socket: Socket): void => {
    socket.on('error', () => undefined);
    socket.once('data', () => socket.end(MESSAGE));
  };
  for (let index = first; index < first + count; index += 1) {
    const identity = identityOf(model, authorityKey, index);
    const host = addressOf(index);
    const server = createServer({ table: verbsOf(index), report: () => undefined });
    await server.listenTls({ address: host, port: PORTS.worker }, identity);
    const options = { ...tlsOptions(identity), requestCert: true, rejectUnauthorized: true };
    await new Promise<void>((resolve) => {
      createTlsServer(options, answer).listen({ host, port: PORTS.bare }, resolve);
    });
    if (index > 1) continue;
    const bare = createSecureServer(options);
    bare.on('stream', (stream: ServerHttp2Stream, headers) => {
      stream.respond({ ':status': 200 });
      bytesOf(Number(headers['x-bytes'])).pipe(stream);
    });
    await new Promise<void>((resolve) => bare.listen({ host, port: PORTS.http2 }, () => resolve()));
  }
  process.stdout.write('ready\n');
  process.stdin.resume();
  process.stdin.once('end', () => process.exit(0));
};

const exchange = (host: string, context: ReturnType<typeof createSecureContext>): Promise<void> =>
  new Promise((resolve, reject) => {
    let length = 0;
    const socket = connectTls({
      host,
      port: PORTS.bare,
      secureContext: context,
      checkServerIdentity: () => undefined,
    });
    socket.setNoDelay(true);
    socket.once('secureConnect', () => socket.write(MESSAGE));
    socket.on('data', (bytes: Buffer) => {
      length += bytes.length;
    });
    socket.once('error', reject);
    socket.once('end', () => (length === MESSAGE.length ? resolve() : reject(new Error('no answer'))));
  });

const bare = async (count: number): Promise<void> => {
  const context = createSecureContext(tlsOptions(loadIdentity(CLIENT)));
  let next = 1;
  const lane = async (): Promise<void> => {
    for (let index = next++; index <= count; index = next++) await exchange(nameOf(index), context);
  };
  await Promise.all(Array.from({ length: IN_FLIGHT }, lane));
};

const http2 = async (file: string, bytes: number): Promise<void> => {
  const session = connectHttp2(`https://${MODEL_NAME}:${PORTS.http2}`, {
    ...tlsOptions(loadIdentity(CLIENT)),
    checkServerIdentity: () => undefined,
    settings: { initialWindowSize: 256 << 10 },
  });
  const stream = session.request({ ':path': '/', 'x-bytes': String(bytes) });
  await pipeline(stream, createWriteStream(file));
  session.destroy();
};

const [, , part = '', place = '', ...rest] = process.argv;
const [first = '', second = ''] = rest;

switch (part) {
  case 'serve':
    await serve(place, Number(first), Number(second));
    break;
  case 'bare':
    await bare(Number(place));
    break;
  case 'http2':
    await http2(place, Number(first));
    break;
  default:
    throw new Error(`there is no part '${part}'`);
}
