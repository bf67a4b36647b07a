/**
 * What signs certificates and revocation lists: the certificate library and the authority's own key. Only `pki`
 * commands load this; the library costs 300 ms.
 */
import { createPrivateKey, type KeyObject, randomBytes, webcrypto, X509Certificate } from 'node:crypto';
import { join } from 'node:path';
import { XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import { readBounded, requirePrivate, requireRootOnlyWrites } from '../os/files.ts';
import { PKI_FILES } from './identity.ts';

export const P256 = { name: 'ECDSA', namedCurve: 'P-256' } as const;
export const SIGNING = { name: 'ECDSA', hash: 'SHA-256' } as const;

/** Clocks of a cluster differ; what is signed must not be refused by the first host that it is copied to. */
export const BACKDATE_MS = 3600 * 1000;

export const loadX509 = async () => {
  // The library's dependency injection needs the metadata API before it is loaded.
  await import('reflect-metadata');
  const x509 = await import('@peculiar/x509');
  x509.cryptoProvider.set(webcrypto);
  return x509;
};

/** 16 random bytes whose first bit is 0 and that are not 0: RFC 5280 wants a positive number. */
export const randomSerial = (): string => {
  const bytes = randomBytes(16);
  bytes.writeUInt8((bytes.readUInt8(0) & 0x7f) | 0x40, 0);
  return bytes.toString('hex');
};

export type Authority = {
  readonly pem: Buffer;
  readonly certificate: X509Certificate;
  readonly key: KeyObject;
  readonly cluster: string;
};

/** The authority of a directory, checked to be one pair. */
export const loadAuthority = (directory: string): Authority => {
  const certificatePath = join(directory, PKI_FILES.authority);
  const keyPath = join(directory, PKI_FILES.authorityKey);
  const pem = readBounded(certificatePath, LIMITS.pemBytesMax, requireRootOnlyWrites(certificatePath));
  const keyPem = readBounded(keyPath, LIMITS.pemBytesMax, requirePrivate(keyPath));
  try {
    const certificate = new X509Certificate(pem);
    const key = createPrivateKey(keyPem);
    const { O: cluster } = certificate.toLegacyObject().subject as Record<string, unknown>;
    if (certificate.ca && certificate.checkPrivateKey(key) && typeof cluster === 'string') {
      return { pem, certificate, key, cluster };
    }
  } catch (error) {
    throw new XceError('config-value', `${directory}: authority or key cannot be read`, {
      at: directory,
      cause: error,
    });
  }
  throw new XceError('config-value', `${keyPath} is not the key of an authority in ${certificatePath}`, {
    at: keyPath,
  });
};

export const signingKeyOf = ({ key }: Authority): Promise<webcrypto.CryptoKey> =>
  webcrypto.subtle.importKey('pkcs8', key.export({ type: 'pkcs8', format: 'der' }), P256, false, ['sign']);

/** `toString` of what the library makes has no newline at its end. */
export const pemOf = (made: { toString(format: 'pem'): string }): Buffer =>
  Buffer.from(`${made.toString('pem').trimEnd()}\n`);
