/**
 * The revocation list of a cluster, ca.crl: which certificates of the authority count no more. It is made with the
 * authority, goes with every bundle, and grows by `pki revoke`; a host that has none, or a broken one, trusts nobody.
 */
import { X509Certificate } from 'node:crypto';
import { join } from 'node:path';
import { XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import type { NodeName } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import { readBounded, replaceFile, requireRootOnlyWrites } from '../os/files.ts';
import { withLockedFile } from '../os/lock-file.ts';
import { kindOf, listNames } from '../os/root-files.ts';
import { PKI_FILES } from './identity.ts';
import { normalSerial, readCertificateNames } from './names.ts';
import { encodeRevocations, parseRevocations, type RevokedSerial } from './revocation-list.ts';
import { type Authority, BACKDATE_MS, loadAuthority, loadX509, SIGNING, signingKeyOf } from './signing.ts';

/** Directory of the authority with each certificate that it issued, as SERIAL.crt. */
export const ISSUED_DIRECTORY = 'issued';
const ISSUED_NAME = /^([0-9a-f]{2,40})\.crt$/;

/** Signs a list of these. It holds for as long as the authority does: it is replaced when it changes. */
export const signRevocations = async (
  authority: Authority,
  revoked: readonly RevokedSerial[],
): Promise<Buffer> => {
  const x509 = await loadX509();
  const issuer = new x509.X509Certificate(authority.certificate.raw);
  const list = await x509.X509CrlGenerator.create({
    issuer: issuer.subjectName,
    thisUpdate: new Date(Math.max(Date.now() - BACKDATE_MS, Date.parse(authority.certificate.validFrom))),
    nextUpdate: new Date(authority.certificate.validTo),
    entries: revoked.map(({ serial, revokedMs }) => ({
      serialNumber: serial,
      revocationDate: new Date(revokedMs),
    })),
    signingAlgorithm: SIGNING,
    signingKey: await signingKeyOf(authority),
    extensions: [await x509.AuthorityKeyIdentifierExtension.create(issuer.publicKey)],
  });
  return encodeRevocations(Buffer.from(list.rawData));
};

const readRevocations = (path: string): readonly RevokedSerial[] =>
  parseRevocations(
    readBounded(path, LIMITS.revocationsBytesMax, requireRootOnlyWrites(path)).toString('latin1'),
    path,
  );

type IssuedCertificate = {
  /** Lower-case hex. */
  readonly serial: string;
  readonly node: NodeName;
};

const parseIssued = (path: string): X509Certificate => {
  const bytes = readBounded(path, LIMITS.pemBytesMax, requireRootOnlyWrites(path));
  try {
    return new X509Certificate(bytes);
  } catch (error) {
    throw new XceError('config-value', `${path} is not a certificate`, {
      at: path,
      unchanged: 'no certificate was revoked',
      next: 'remove it, and revoke the host that it was made for by its --serial, the name of the file',
      cause: error,
    });
  }
};

/** What this authority issued, as far as its directory has kept it. */
const listIssued = (directory: string): readonly IssuedCertificate[] => {
  const issued = join(directory, ISSUED_DIRECTORY);
  if (kindOf(issued) === 'none') return [];
  return listNames(issued).flatMap((name) => {
    const serial = ISSUED_NAME.exec(name)?.[1];
    if (serial === undefined) return [];
    const names = readCertificateNames(parseIssued(join(issued, name)));
    return 'refused' in names ? [] : [{ serial, node: names.node }];
  });
};

/** The same by the names of the files alone, whatever stands in them. */
const issuedSerials = (directory: string): readonly string[] => {
  const issued = join(directory, ISSUED_DIRECTORY);
  if (kindOf(issued) === 'none') return [];
  return listNames(issued).flatMap((name) => {
    const serial = ISSUED_NAME.exec(name)?.[1];
    return serial === undefined ? [] : [normalSerial(serial)];
  });
};

export type RevokeSelection = { readonly node: NodeName } | { readonly serial: string };

export type Revocation = {
  /** Path of the list. */
  readonly list: string;
  /** Serial numbers that this call added. */
  readonly revoked: readonly string[];
  /** How many certificates the list has now. */
  readonly total: number;
  /** The serial number that was given, where no certificate of it is known to this authority. */
  readonly unknown: string | null;
};

/**
 * Adds to the list: one certificate by its serial number, or all that were issued to a node. Those that are revoked
 * already stay so. Throws 'usage' when nothing was issued to the node, 'config-value' for a list that cannot be read,
 * and 'pki-busy' while another does the same: who replaced the list that it has read would undo what was added since.
 */
export const revoke = async (directory: string, selection: RevokeSelection): Promise<Revocation> => {
  const authority = loadAuthority(directory);
  const busy = new XceError('pki-busy', `another process changes the revocation list in ${directory}`, {
    at: directory,
    unchanged: 'no certificate was revoked',
    next: 'try again',
  });
  const keyPath = join(directory, PKI_FILES.authorityKey);
  return await withLockedFile(keyPath, busy, () => addToList(directory, authority, selection));
};

const addToList = async (
  directory: string,
  authority: Authority,
  selection: RevokeSelection,
): Promise<Revocation> => {
  const path = join(directory, PKI_FILES.revocations);
  const before = readRevocations(path);
  const known = new Set(before.map(({ serial }) => serial));
  const wanted =
    'serial' in selection
      ? [normalSerial(selection.serial)]
      : listIssued(directory)
          .filter(({ node }) => node === selection.node)
          .map(({ serial }) => serial);
  const issued = 'serial' in selection ? issuedSerials(directory) : wanted;
  const unknown = wanted.find((serial) => !issued.includes(serial)) ?? null;
  if (wanted.length === 0 && 'node' in selection) {
    throw new XceError('usage', `no certificate was issued to ${escapeText(selection.node)}`, {
      unchanged: 'no certificate was revoked',
      next: 'give its --serial: openssl x509 -noout -serial -in host.crt',
    });
  }
  const revoked = wanted.filter((serial) => !known.has(serial));
  const total = before.length + revoked.length;
  if (total > LIMITS.revocationsMax) {
    throw new XceError('too-large', `a revocation list has at most ${LIMITS.revocationsMax} certificates`);
  }
  if (revoked.length > 0) {
    const revokedMs = Date.now();
    const added = revoked.map((serial) => ({ serial, revokedMs }));
    replaceFile(path, await signRevocations(authority, [...before, ...added]), 0o644);
  }
  return { list: path, revoked, total, unknown };
};
