/**
 * A certificate of cleanliness: a worker's signed word that nothing of a uid is left on its node. It answers one
 * drain request by repeating its nonce, and binds node, boot and lease, so an older or a foreign one never fits.
 */
import { createHash, type KeyObject } from 'node:crypto';
import * as v from 'valibot';
import type { InstanceName, LeaseNumber, NodeName, Uid } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import { accept, refuse, type Verdict } from './refusal.ts';
import { CLAIM, openText, publicKeyOfHex, type SignedForm, sealText } from './signed-text.ts';

const CertificateClaims = v.strictObject({
  cluster: CLAIM.cluster,
  instance: CLAIM.instance,
  lease: CLAIM.lease,
  uid: CLAIM.uid,
  node: CLAIM.node,
  bootId: CLAIM.bootId,
  nonce: CLAIM.nonce,
  wallMs: CLAIM.wallMs,
});
export type CertificateClaims = v.InferOutput<typeof CertificateClaims>;

const CERTIFICATE: SignedForm<CertificateClaims> = {
  name: 'certificate of cleanliness',
  prefix: 'xcc1.',
  domain: 'xce-sandbox certificate 1\0',
  charsMax: LIMITS.certificateCharsMax,
  schema: CertificateClaims,
  malformed: 'certificate',
  badSignature: 'certificate',
};

/** Signs with the worker's own Ed25519 key. */
export const signCertificate = (claims: CertificateClaims, key: KeyObject): string =>
  sealText(CERTIFICATE, claims, key);

/** A certificate whose signature was verified with the key it names. */
export type OpenedCertificate = {
  readonly claims: CertificateClaims;
  /** The raw public key that verified it, hex. */
  readonly workerKey: string;
  readonly text: string;
  /** SHA-256 of the text, hex. */
  readonly digest: string;
};

/** Refused with 'certificate'. What is accepted is authentic, no more: see fitCertificate. */
export const openCertificate = (text: string, workerKey: string): Verdict<OpenedCertificate> => {
  const opened = openText(CERTIFICATE, text, publicKeyOfHex(workerKey));
  if (!opened.ok) return opened;
  const digest = createHash('sha256').update(text).digest('hex');
  return accept({ claims: opened.value, workerKey, text, digest });
};

/** What the one certificate that fits must say. */
export type CertificateRequest = {
  readonly cluster: string;
  readonly instance: InstanceName;
  readonly lease: LeaseNumber;
  readonly uid: Uid;
  readonly node: NodeName;
  readonly bootId: string;
  readonly nonce: string;
  readonly workerKey: string;
};

/** Refused with 'certificate', naming the first claim that differs. */
export const fitCertificate = (
  certificate: OpenedCertificate,
  request: CertificateRequest,
): Verdict<CertificateClaims> => {
  const { claims } = certificate;
  const names = ['cluster', 'instance', 'node', 'lease', 'uid', 'bootId', 'nonce'] as const;
  const foreign = names.find((name) => claims[name] !== request[name]);
  if (foreign !== undefined)
    return refuse(
      'certificate',
      `the certificate of ${request.node} is for ${foreign} ${claims[foreign]}, not ${request[foreign]}`,
    );
  if (certificate.workerKey !== request.workerKey)
    return refuse(
      'certificate',
      `the certificate of ${request.node} is signed by another key than the lease's`,
    );
  return accept(claims);
};
