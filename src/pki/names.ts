/**
 * What a certificate of the cluster says about its holder: cluster (O), role (OU), node (one dNSName).
 */
import type { X509Certificate } from 'node:crypto';
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

/** The fields of an X509Certificate that name its holder. Its other views of them cost more than a handshake. */
export type NamedCertificate = Pick<X509Certificate, 'subject' | 'subjectAltName' | 'ca'>;

/**
 * The one value of a field of a subject; undefined where there is none, or several. Each line is one part of it, as
 * NAME=value; what a value must not hold to be read so is escaped by a backslash.
 */
const onlyValue = (lines: readonly string[], field: string): string | undefined => {
  const values = lines.filter((line) => line.startsWith(`${field}=`));
  return values.length === 1 ? values[0]?.slice(field.length + 1) : undefined;
};

/**
 * Reads the names of a leaf, or says what is wrong with them. Exactly one of each: with two roles or two nodes
 * it would depend on the reader which one counts.
 */
export const readCertificateNames = ({
  subject,
  subjectAltName,
  ca,
}: NamedCertificate): CertificateNames | { readonly refused: string } => {
  // undefined for an empty one, whatever the types say.
  const text = subject ?? '';
  // A part of several fields, whose second one stands in no line of its own; a plus within a value is escaped.
  if (text.includes(' + ')) return { refused: 'its subject has a part of several fields' };
  const lines = text.split('\n');
  const cluster = parseClusterName(onlyValue(lines, 'O') ?? '');
  if (cluster === undefined) return { refused: 'its subject has no single O with a cluster name' };
  const role = parseCertificateRole(onlyValue(lines, 'OU') ?? '');
  if (role === undefined) return { refused: 'its subject has no single OU with a role' };
  const name = /^DNS:([a-z0-9._-]+)$/.exec(subjectAltName ?? '')?.[1];
  const node = name === undefined ? undefined : parseNodeName(name);
  if (node === undefined) return { refused: 'it has no single dNSName with a node name' };
  if (ca) return { refused: 'it is the certificate of an authority' };
  return { cluster, role, node };
};
