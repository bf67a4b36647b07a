/**
 * What a certificate of the cluster says about its holder: cluster (O), role (OU), node (one dNSName).
 */
import { type NodeName, parseNodeName } from '../base/ids.ts';

/** 'storage': a host that has the shared storage and no jobs; it may say who it is, and ask for nothing yet. */
export type CertificateRole = 'controller' | 'worker' | 'operator' | 'storage';

export const CERTIFICATE_ROLES: readonly CertificateRole[] = ['controller', 'worker', 'operator', 'storage'];

export type CertificateNames = {
  readonly cluster: string;
  readonly role: CertificateRole;
  readonly node: NodeName;
};

/** A cluster name that survives as an organisation name without escapes, or undefined. */
export const parseClusterName = (text: string): string | undefined =>
  /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/.test(text) ? text : undefined;

const parseCertificateRole = (text: string): CertificateRole | undefined =>
  CERTIFICATE_ROLES.find((role) => text === `xce-${role}`);

/** A serial number in one form, since libraries differ in case and leading zeros. */
export const normalSerial = (hex: string): string => hex.toLowerCase().replace(/^0+(?=.)/, '');

/** The fields of a certificate that name its holder, as both node:tls and X509Certificate.toLegacyObject() give them. */
export type NamedCertificate = {
  readonly subject?: unknown;
  readonly subjectaltname?: unknown;
  readonly ca?: unknown;
};

/**
 * Reads the names of a leaf, or says what is wrong with them. Exactly one of each: with two roles or two nodes
 * it would depend on the reader which one counts.
 */
export const readCertificateNames = ({
  subject,
  subjectaltname,
  ca,
}: NamedCertificate): CertificateNames | { readonly refused: string } => {
  const parts: Readonly<Record<string, unknown>> =
    typeof subject === 'object' && subject !== null ? { ...subject } : {};
  const { O: organisation, OU: unit } = parts;
  const cluster = typeof organisation === 'string' ? parseClusterName(organisation) : undefined;
  if (cluster === undefined) return { refused: 'its subject has no single O with a cluster name' };
  const role = typeof unit === 'string' ? parseCertificateRole(unit) : undefined;
  if (role === undefined) return { refused: 'its subject has no single OU with a role' };
  const names = typeof subjectaltname === 'string' ? subjectaltname : '';
  const name = /^DNS:([a-z0-9._-]+)$/.exec(names)?.[1];
  const node = name === undefined ? undefined : parseNodeName(name);
  if (node === undefined) return { refused: 'it has no single dNSName with a node name' };
  if (ca !== false) return { refused: 'it is the certificate of an authority' };
  return { cluster, role, node };
};
