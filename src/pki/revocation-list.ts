/**
 * What a revocation list says (RFC 5280, 5.1), read without the certificate library: a worker reads one whenever it is
 * reloaded, and must stay small. Whether the authority signed it is for TLS to judge, at every handshake.
 */
import { XceError } from '../base/errors.ts';
import { normalSerial } from './names.ts';

export type RevokedSerial = {
  /** As normalSerial of names.ts writes it. */
  readonly serial: string;
  readonly revokedMs: number;
};

/** The label of RFC 7468, which OpenSSL wants. */
const PEM = /^-----BEGIN X509 CRL-----\n([A-Za-z0-9+/=\n]+)-----END X509 CRL-----\n*$/;

const TAG = { integer: 0x02, utcTime: 0x17, generalizedTime: 0x18, sequence: 0x30 } as const;

type Element = { readonly tag: number; readonly content: Buffer };

/** Splits DER into its elements (X.690, 10.1): one byte of tag, and a length of at most four bytes. */
function* elementsOf(der: Buffer): Generator<Element> {
  for (let at = 0; at < der.length; ) {
    if (at + 2 > der.length) throw new RangeError('an element is cut off');
    const tag = der.readUInt8(at);
    const first = der.readUInt8(at + 1);
    const lengthBytes = first < 0x80 ? 0 : first & 0x7f;
    if (lengthBytes > 4 || first === 0x80) throw new RangeError('a length is not one');
    const start = at + 2 + lengthBytes;
    if (start > der.length) throw new RangeError('an element is cut off');
    const length = lengthBytes === 0 ? first : der.readUIntBE(at + 2, lengthBytes);
    if (start + length > der.length) throw new RangeError('an element is cut off');
    yield { tag, content: der.subarray(start, start + length) };
    at = start + length;
  }
}

const sequence = (element: Element | undefined): readonly Element[] => {
  if (element?.tag !== TAG.sequence) throw new RangeError('a sequence is missing');
  return [...elementsOf(element.content)];
};

const timeOf = (element: Element | undefined): number => {
  const text = element?.content.toString('latin1') ?? '';
  const full = element?.tag === TAG.utcTime ? `${text < '5' ? '20' : '19'}${text}` : text;
  const [, ...parts] = /^(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)Z$/.exec(full) ?? [];
  const [year = Number.NaN, month = 1, ...rest] = parts.map(Number);
  const ms = Date.UTC(year, month - 1, ...rest);
  if (Number.isNaN(ms)) throw new RangeError('a time is not one');
  return ms;
};

const isTime = ({ tag }: Element): boolean => tag === TAG.utcTime || tag === TAG.generalizedTime;

const readEntries = (der: Buffer): readonly RevokedSerial[] => {
  const [list] = elementsOf(der);
  const [tbs] = sequence(list);
  const fields = sequence(tbs);
  // Behind one or two times comes the sequence of entries, unless nothing is revoked.
  const lastTime = fields.findLastIndex(isTime);
  const revoked = fields[lastTime + 1];
  if (lastTime < 0) throw new RangeError('it has no time');
  if (revoked?.tag !== TAG.sequence) return [];
  return sequence(revoked).map((entry) => {
    const [serial, time] = sequence(entry);
    if (serial?.tag !== TAG.integer) throw new RangeError('a serial number is missing');
    return { serial: normalSerial(serial.content.toString('hex')), revokedMs: timeOf(time) };
  });
};

/** Throws 'config-value' for a text that is no list in PEM. */
export const parseRevocations = (pem: string, path: string): readonly RevokedSerial[] => {
  try {
    const [, body] = PEM.exec(pem) ?? [];
    if (body === undefined) throw new RangeError('it is not one block of PEM');
    return readEntries(Buffer.from(body, 'base64'));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new XceError('config-value', `${path} is not a revocation list: ${error.message}`, {
      at: path,
      cause: error,
    });
  }
};

/** A list in PEM, from its DER. */
export const encodeRevocations = (der: Buffer): Buffer => {
  const lines = der.toString('base64').match(/.{1,64}/g) ?? [];
  return Buffer.from(['-----BEGIN X509 CRL-----', ...lines, '-----END X509 CRL-----', ''].join('\n'));
};
