/**
 * The authority of a cluster: made once by `pki init`, it issues one bundle of files per host. Only these two
 * commands load the certificate library, which costs 300 ms; everything else reads files (identity.ts).
 */
import {
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  type KeyObject,
  webcrypto,
  X509Certificate,
} from 'node:crypto';
import { join } from 'node:path';
import { asXceError, XceError } from '../base/errors.ts';
import type { NodeName } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import { readBounded, requirePrivate, requireRootOnlyWrites } from '../os/files.ts';
import { createFile, kindOf, makeDirectories } from '../os/root-files.ts';
import { closeDirectory, openRooted } from '../os/rooted.ts';
import { loadTicketPrivateKey, PKI_FILES } from './identity.ts';
import { type CertificateRole, parseClusterName } from './names.ts';
import { ISSUED_DIRECTORY, signRevocations } from './revocation.ts';
import {
  BACKDATE_MS,
  loadAuthority,
  loadX509,
  P256,
  pemOf,
  randomSerial,
  SIGNING,
  signingKeyOf,
} from './signing.ts';

type WebCryptoKeyPair = { readonly privateKey: webcrypto.CryptoKey; readonly publicKey: webcrypto.CryptoKey };

/** From and until when a certificate is valid, in milliseconds since the epoch. */
export type Validity = { readonly notBeforeMs: number; readonly notAfterMs: number };

export type Bundle = {
  /** Paths of all files of the bundle, whether written now or equal already. */
  readonly files: readonly string[];
  readonly validity: Validity;
};

const DAY_MS = 24 * 3600 * 1000;
const AUTHORITY_DAYS = 3650;
const PUBLIC_MODE = 0o644;
const SECRET_MODE = 0o600;

const SERVER_AUTH = '1.3.6.1.5.5.7.3.1';
const CLIENT_AUTH = '1.3.6.1.5.5.7.3.2';

export const validForDays = (days: number): Validity => {
  const nowMs = Date.now();
  return { notBeforeMs: nowMs - BACKDATE_MS, notAfterMs: nowMs + days * DAY_MS };
};

const makeKeyPair = (): Promise<WebCryptoKeyPair> =>
  webcrypto.subtle.generateKey(P256, true, ['sign', 'verify']);

const exportPrivatePem = (key: KeyObject): Buffer =>
  Buffer.from(key.export({ type: 'pkcs8', format: 'pem' }));

const exportPublicPem = (key: KeyObject): Buffer => Buffer.from(key.export({ type: 'spki', format: 'pem' }));

const privateKeyObject = async (key: webcrypto.CryptoKey): Promise<KeyObject> =>
  createPrivateKey({
    key: Buffer.from(await webcrypto.subtle.exportKey('pkcs8', key)),
    format: 'der',
    type: 'pkcs8',
  });

type NewFile = { readonly path: string; readonly bytes: Buffer; readonly mode: number };

const isSame = ({ path, bytes, mode }: NewFile): boolean => {
  const check = mode === SECRET_MODE ? requirePrivate(path) : requireRootOnlyWrites(path);
  return readBounded(path, LIMITS.pemBytesMax, check).equals(bytes);
};

/** Refuses a directory that others could put another one in the place of, or write into. */
const requireRootsAlone = (directory: string): void => {
  try {
    closeDirectory(openRooted(directory, 'roots'));
  } catch (error) {
    const { message, facts } = asXceError(error);
    throw new XceError('config-unsafe', message, {
      ...facts,
      unchanged: 'no file was written',
      cause: error,
    });
  }
};

/** Writes what is not there. Refuses, before it writes anything, when one of them is there with other bytes. */
const writeFiles = (directory: string, files: readonly NewFile[]): void => {
  const missing = files.filter((file) => kindOf(file.path) === 'none');
  const other = files.find((file) => !missing.includes(file) && !isSame(file));
  if (other !== undefined) {
    throw new XceError('pki-exists', `${other.path} exists and is another one`, {
      at: other.path,
      unchanged: 'no file was written',
    });
  }
  makeDirectories(directory, 0o700);
  requireRootsAlone(directory);
  for (const { path, bytes, mode } of missing) {
    if (createFile(path, bytes, { uid: 0, gid: 0, mode }, 'durable')) continue;
    throw new XceError('pki-exists', `${path} was made by another command meanwhile`, { at: path });
  }
};

/**
 * Makes the authority of a cluster in a directory of the host that will keep it: ca.key, ca.crt, ca.crl, ticket.key,
 * ticket.pub. Throws 'pki-exists' when any file of a PKI directory is there.
 */
export const createAuthority = async (
  directory: string,
  options: { readonly cluster: string },
): Promise<Bundle> => {
  const cluster = parseClusterName(options.cluster);
  if (cluster === undefined) {
    throw new XceError(
      'config-value',
      `'${options.cluster}' cannot be the name of a cluster in certificates`,
    );
  }
  const at = (name: string): string => join(directory, name);
  for (const name of Object.values(PKI_FILES)) {
    if (kindOf(at(name)) !== 'none') {
      throw new XceError('pki-exists', `${at(name)} exists`, {
        at: at(name),
        unchanged: 'no file was written',
        next: 'use what is there: xce-sandbox pki issue',
      });
    }
  }

  const x509 = await loadX509();
  const keys = await makeKeyPair();
  const validity = validForDays(AUTHORITY_DAYS);
  const certificate = await x509.X509CertificateGenerator.createSelfSigned({
    serialNumber: randomSerial(),
    name: [{ O: [cluster] }, { CN: [`xce-sandbox authority of ${cluster}`] }],
    notBefore: new Date(validity.notBeforeMs),
    notAfter: new Date(validity.notAfterMs),
    signingAlgorithm: SIGNING,
    keys,
    extensions: [
      new x509.BasicConstraintsExtension(true, 0, true),
      new x509.KeyUsagesExtension(x509.KeyUsageFlags.keyCertSign | x509.KeyUsageFlags.cRLSign, true),
      await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
    ],
  });
  const ticket = generateKeyPairSync('ed25519');
  const authorityKey = await privateKeyObject(keys.privateKey);
  const authority = {
    pem: pemOf(certificate),
    certificate: new X509Certificate(pemOf(certificate)),
    key: authorityKey,
    cluster,
  };
  const files: NewFile[] = [
    {
      path: at(PKI_FILES.authorityKey),
      bytes: exportPrivatePem(authorityKey),
      mode: SECRET_MODE,
    },
    {
      path: at(PKI_FILES.ticketPrivateKey),
      bytes: exportPrivatePem(ticket.privateKey),
      mode: SECRET_MODE,
    },
    { path: at(PKI_FILES.ticketPublicKey), bytes: exportPublicPem(ticket.publicKey), mode: PUBLIC_MODE },
    { path: at(PKI_FILES.revocations), bytes: await signRevocations(authority, []), mode: PUBLIC_MODE },
    // Last: a directory without it was not finished.
    { path: at(PKI_FILES.authority), bytes: authority.pem, mode: PUBLIC_MODE },
  ];
  writeFiles(directory, files);
  return { files: files.map(({ path }) => path), validity };
};

/**
 * Issues the identity of one host as a directory to be copied there: ca.crt, ca.crl, host.crt, host.key, ticket.pub,
 * and for controllers ticket.key. The authority keeps a copy of the certificate, so that it can be revoked by name.
 * `out` may be the authority's own directory. Throws 'pki-exists' when `out` holds another identity, 'usage' when the
 * authority would run out first.
 */
export const issue = async (
  directory: string,
  options: {
    readonly role: CertificateRole;
    readonly node: NodeName;
    readonly validity: Validity;
    readonly out: string;
  },
): Promise<Bundle> => {
  const { role, node, validity, out } = options;
  const authority = loadAuthority(directory);
  const authorityEndMs = Date.parse(authority.certificate.validTo);
  if (validity.notAfterMs > authorityEndMs || validity.notAfterMs <= validity.notBeforeMs) {
    throw new XceError(
      'usage',
      `a certificate cannot be valid until ${new Date(validity.notAfterMs).toISOString()}: ` +
        `the authority ends at ${new Date(authorityEndMs).toISOString()}`,
    );
  }
  const at = (name: string): string => join(out, name);
  for (const path of [at(PKI_FILES.certificate), at(PKI_FILES.key)]) {
    if (kindOf(path) !== 'none') {
      throw new XceError('pki-exists', `${path} exists`, {
        at: path,
        unchanged: 'no file was written',
        next: 'give a new directory as --out',
      });
    }
  }

  const x509 = await loadX509();
  const keys = await makeKeyPair();
  const authorityCertificate = new x509.X509Certificate(authority.certificate.raw);
  const serialNumber = randomSerial();
  const certificate = await x509.X509CertificateGenerator.create({
    serialNumber,
    subject: [{ O: [authority.cluster] }, { OU: [`xce-${role}`] }, { CN: [node.slice(0, 64)] }],
    issuer: authorityCertificate.subjectName,
    notBefore: new Date(validity.notBeforeMs),
    notAfter: new Date(validity.notAfterMs),
    signingAlgorithm: SIGNING,
    publicKey: keys.publicKey,
    signingKey: await signingKeyOf(authority),
    extensions: [
      new x509.BasicConstraintsExtension(false, undefined, true),
      new x509.KeyUsagesExtension(x509.KeyUsageFlags.digitalSignature, true),
      new x509.ExtendedKeyUsageExtension([SERVER_AUTH, CLIENT_AUTH]),
      new x509.SubjectAlternativeNameExtension([{ type: 'dns', value: node }]),
      await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
      await x509.AuthorityKeyIdentifierExtension.create(authorityCertificate.publicKey),
    ],
  });
  const ticketKey = loadTicketPrivateKey(directory);
  const revocationsPath = join(directory, PKI_FILES.revocations);
  const revocations = readBounded(
    revocationsPath,
    LIMITS.revocationsBytesMax,
    requireRootOnlyWrites(revocationsPath),
  );
  const kept = join(directory, ISSUED_DIRECTORY);
  writeFiles(kept, [
    { path: join(kept, `${serialNumber}.crt`), bytes: pemOf(certificate), mode: PUBLIC_MODE },
  ]);
  const files: NewFile[] = [
    { path: at(PKI_FILES.authority), bytes: authority.pem, mode: PUBLIC_MODE },
    { path: at(PKI_FILES.revocations), bytes: revocations, mode: PUBLIC_MODE },
    {
      path: at(PKI_FILES.ticketPublicKey),
      bytes: exportPublicPem(createPublicKey(ticketKey)),
      mode: PUBLIC_MODE,
    },
    ...(role === 'controller'
      ? [{ path: at(PKI_FILES.ticketPrivateKey), bytes: exportPrivatePem(ticketKey), mode: SECRET_MODE }]
      : []),
    {
      path: at(PKI_FILES.key),
      bytes: exportPrivatePem(await privateKeyObject(keys.privateKey)),
      mode: SECRET_MODE,
    },
    { path: at(PKI_FILES.certificate), bytes: pemOf(certificate), mode: PUBLIC_MODE },
  ];
  writeFiles(out, files);
  return { files: files.map(({ path }) => path), validity };
};
