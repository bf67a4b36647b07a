import { describe, expect, test } from 'vitest';
import {
  type CertificateRequest,
  fitCertificate,
  openCertificate,
  signCertificate,
} from '../../../src/lease/certificate.ts';
import { unwrap } from '../../../src/lease/refusal.ts';
import { BOOT, IDENTITY, leaseNumber, makeWorker, node, T0, uid } from './scene.ts';

const worker = makeWorker(BOOT);
const claims = {
  ...IDENTITY,
  lease: leaseNumber(7),
  uid: uid(70_001),
  node: node('n1'),
  bootId: BOOT,
  nonce: '0123456789abcdef0123456789abcdef',
  wallMs: T0,
};
const { wallMs: _, ...bound } = claims;
const request: CertificateRequest = { ...bound, workerKey: worker.hex };
const text = signCertificate(claims, worker.key);

describe('a certificate of cleanliness', () => {
  test('fits the one request that it answers', () => {
    const opened = unwrap(openCertificate(text, worker.hex));
    expect(opened).toMatchObject({ claims, workerKey: worker.hex, text });
    expect(opened.digest).toMatch(/^[0-9a-f]{64}$/);
    expect(fitCertificate(opened, request)).toEqual({ ok: true, value: claims });
  });

  test('does not open with another key, or with any character changed', () => {
    expect(openCertificate(text, makeWorker().hex)).toMatchObject({ ok: false, code: 'certificate' });
    for (let index = 0; index < text.length; index += 1) {
      const other = text[index] === 'A' ? 'B' : 'A';
      const changed = `${text.slice(0, index)}${other}${text.slice(index + 1)}`;
      expect(openCertificate(changed, worker.hex)).toMatchObject({ ok: false, code: 'certificate' });
    }
  });

  test.each<[string, Partial<CertificateRequest>]>([
    ['cluster', { cluster: 'other' }],
    ['instance', { instance: 'nested' as typeof IDENTITY.instance }],
    ['lease', { lease: leaseNumber(8) }],
    ['uid', { uid: uid(70_002) }],
    ['node', { node: node('n2') }],
    ['bootId', { bootId: 'another' }],
    ['nonce', { nonce: '0'.repeat(32) }],
    ['key', { workerKey: '0'.repeat(64) }],
  ])('does not fit a request with another %s', (name, change) => {
    const verdict = fitCertificate(unwrap(openCertificate(text, worker.hex)), { ...request, ...change });
    expect(verdict).toMatchObject({ ok: false, code: 'certificate' });
    expect(verdict.ok ? '' : verdict.message).toContain(name);
  });
});
