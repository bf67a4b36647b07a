/**
 * The reading side of a host's PKI directory: ca.crt, ca.crl, host.crt, host.key, ticket.pub and, on controllers,
 * ticket.key. Everything is checked before it is used; a secret that others may read is refused.
 */
import { createPrivateKey, createPublicKey, type KeyObject, X509Certificate } from 'node:crypto';
import { join } from 'node:path';
import { XceError } from '../base/errors.ts';
import type { NodeName } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import { readBounded, requirePrivate, requireRootOnlyWrites } from '../os/files.ts';
import { type CertificateRole, readCertificateNames } from './names.ts';
import { parseRevocations } from './revocation-list.ts';

/** Names of the files in a PKI directory. */
export const PKI_FILES = {
  authority: 'ca.crt',
  revocations: 'ca.crl',
  authorityKey: 'ca.key',
  certificate: 'host.crt',
  key: 'host.key',
  ticketPublicKey: 'ticket.pub',
  ticketPrivateKey: 'ticket.key',
} as const;

/** Who this host is: its certificate and key, and the one authority it believes. */
export type Identity = {
  readonly cluster: string;
  readonly role: CertificateRole;
  readonly node: NodeName;
  readonly notBeforeMs: number;
  readonly notAfterMs: number;
  readonly authorityPem: string;
  /** Certificates of the authority that count no more. */
  readonly revocationsPem: string;
  /** Their serial numbers, as revocation-list.ts writes them. */
  readonly revokedSerials: ReadonlySet<string>;
  readonly certificatePem: string;
  readonly keyPem: string;
};

const refuse = (path: string, problem: string, cause?: unknown): XceError =>
  new XceError('config-value', `${path}: ${problem}`, {
    at: path,
    ...(cause === undefined ? {} : { cause }),
  });

const readPublic = (path: string, bytesMax: number = LIMITS.pemBytesMax): string =>
  readBounded(path, bytesMax, requireRootOnlyWrites(path)).toString('latin1');

const readSecret = (path: string): string =>
  readBounded(path, LIMITS.pemBytesMax, requirePrivate(path)).toString('latin1');

const parseOneCertificate = (path: string, pem: string): X509Certificate => {
  if (pem.split('-----BEGIN ').length !== 2) throw refuse(path, 'is not exactly one PEM block');
  try {
    return new X509Certificate(pem);
  } catch (error) {
    throw refuse(path, 'is not a certificate in PEM', error);
  }
};

const parseKey = (path: string, parse: () => KeyObject, type: 'ec' | 'ed25519'): KeyObject => {
  let key: KeyObject;
  try {
    key = parse();
  } catch (error) {
    throw refuse(path, 'is not a key in PEM', error);
  }
  if (key.asymmetricKeyType !== type) throw refuse(path, `is not a key of type ${type}`);
  return key;
};

/**
 * Reads and checks the identity of this host. Validity in time is not judged here: the TLS handshake does, and
 * `pki` commands and `doctor` want to read an expired one.
 */
export const loadIdentity = (directory: string): Identity => {
  const authorityPath = join(directory, PKI_FILES.authority);
  const certificatePath = join(directory, PKI_FILES.certificate);
  const keyPath = join(directory, PKI_FILES.key);
  const authorityPem = readPublic(authorityPath);
  const certificatePem = readPublic(certificatePath);
  const keyPem = readSecret(keyPath);
  const revocationsPath = join(directory, PKI_FILES.revocations);
  const revocationsPem = readPublic(revocationsPath, LIMITS.revocationsBytesMax);
  const revoked = parseRevocations(revocationsPem, revocationsPath);

  const authority = parseOneCertificate(authorityPath, authorityPem);
  if (!authority.ca) throw refuse(authorityPath, 'is not the certificate of an authority');
  const certificate = parseOneCertificate(certificatePath, certificatePem);
  if (!certificate.checkIssued(authority) || !certificate.verify(authority.publicKey)) {
    throw refuse(certificatePath, `was not issued by ${authorityPath}`);
  }
  const names = readCertificateNames(certificate);
  if ('refused' in names) throw refuse(certificatePath, names.refused);
  if (!certificate.checkPrivateKey(parseKey(keyPath, () => createPrivateKey(keyPem), 'ec'))) {
    throw refuse(keyPath, `is not the key of ${certificatePath}`);
  }
  return {
    ...names,
    notBeforeMs: Date.parse(certificate.validFrom),
    notAfterMs: Date.parse(certificate.validTo),
    authorityPem,
    revocationsPem,
    revokedSerials: new Set(revoked.map(({ serial }) => serial)),
    certificatePem,
    keyPem,
  };
};

/** Ed25519 public key that verifies tickets (ticket.pub, SPKI PEM). */
export const loadTicketPublicKey = (directory: string): KeyObject => {
  const path = join(directory, PKI_FILES.ticketPublicKey);
  const pem = readPublic(path);
  // createPublicKey would also accept a private key here and hide a leaked secret in a public file.
  if (!pem.startsWith('-----BEGIN PUBLIC KEY-----')) throw refuse(path, 'is not a public key in PEM');
  return parseKey(path, () => createPublicKey(pem), 'ed25519');
};

/** Ed25519 private key that signs tickets (ticket.key, PKCS8 PEM); only controllers have it. */
export const loadTicketPrivateKey = (directory: string): KeyObject => {
  const path = join(directory, PKI_FILES.ticketPrivateKey);
  const pem = readSecret(path);
  return parseKey(path, () => createPrivateKey(pem), 'ed25519');
};
