/**
 * What the TLS peer's certificate proves.
 */
import { XceError } from '../base/errors.ts';
import type { NodeName } from '../base/ids.ts';
import { describeCertificateRefusal, type TLSSocket } from '../os/sockets.ts';
import {
  type CertificateNames,
  type CertificateRole,
  type NamedCertificate,
  normalSerial,
  readCertificateNames,
} from '../pki/names.ts';

/** Names of a peer, and of its certificate the moment it runs out (milliseconds since the epoch) and the number. */
export type CertifiedPeer = CertificateNames & {
  readonly notAfterMs: number;
  /** Lower-case hex without leading zeros, as pki/revocation.ts lists it. */
  readonly serial: string;
};

const refuse = (reason: string, text: string): XceError =>
  new XceError('tls', `the certificate of the peer is refused: ${text}`, { detail: { reason } });

/**
 * The server's view of a client, after the handshake. `revoked` are serial numbers of which the handshake may not have
 * known yet when it began. Throws 'tls' (detail: reason).
 */
export const certifyClient = (
  socket: TLSSocket,
  cluster: string,
  revoked: ReadonlySet<string>,
): CertifiedPeer => {
  const certificate = socket.getPeerX509Certificate();
  if (certificate === undefined) throw refuse('MISSING', 'it shows none');
  if (!socket.authorized) {
    const reason = String(socket.authorizationError);
    throw refuse(reason, describeCertificateRefusal(reason, certificate));
  }
  const names = readCertificateNames(certificate);
  if ('refused' in names) throw refuse('NAMES', names.refused);
  if (names.cluster !== cluster) throw refuse('CLUSTER', 'it is of another cluster');
  const { validTo, serialNumber } = certificate;
  const serial = normalSerial(serialNumber);
  if (revoked.has(serial)) throw refuse('CERT_REVOKED', 'it was revoked');
  return { ...names, notAfterMs: Date.parse(validTo), serial };
};

/** The client's view of a server: what is wrong with its certificate, or nothing. */
export const judgeServer =
  (cluster: string, node: NodeName, role: CertificateRole) =>
  (certificate: NamedCertificate): string | undefined => {
    const names = readCertificateNames(certificate);
    if ('refused' in names) return names.refused;
    if (names.cluster !== cluster) return `it is of the cluster ${names.cluster}, not ${cluster}`;
    if (names.role !== role) return `it has the role ${names.role}, not ${role}`;
    if (names.node !== node) return `it is of the node ${names.node}, not ${node}`;
    return undefined;
  };

/** Throws 'tls' when the certificate has run out since the handshake. */
export const requireStillValid = (peer: CertifiedPeer): void => {
  if (Date.now() > peer.notAfterMs) {
    throw refuse('CERT_HAS_EXPIRED', describeCertificateRefusal('CERT_HAS_EXPIRED', undefined));
  }
};
