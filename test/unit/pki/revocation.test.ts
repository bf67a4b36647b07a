import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { NodeName } from '../../../src/base/ids.ts';
import { createAuthority, issue, validForDays } from '../../../src/pki/authority.ts';
import { loadIdentity } from '../../../src/pki/identity.ts';
import { revoke } from '../../../src/pki/revocation.ts';
import { parseRevocations } from '../../../src/pki/revocation-list.ts';
import { loadX509 } from '../../../src/pki/signing.ts';

const MINUTE_MS = 60_000;
let root: string;
let ca: string;
let list: string;

beforeAll(async () => {
  root = mkdtempSync(join(tmpdir(), 'revocation-'));
  ca = join(root, 'ca');
  list = join(ca, 'ca.crl');
  await createAuthority(ca, { cluster: 'west' });
});
afterAll(() => rmSync(root, { recursive: true }));

const parseList = () => parseRevocations(readFileSync(list, 'latin1'), list);

describe('the list of an authority', () => {
  test('is there from the start, empty, and signed as openssl wants it', () => {
    expect(parseList()).toEqual([]);
    const argv = ['crl', '-in', list, '-CAfile', join(ca, 'ca.crt'), '-noout', '-text'];
    expect(execFileSync('openssl', argv, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })).toContain(
      'No Revoked Certificates',
    );
  });

  test('has each certificate of a node once, as the certificate library reads it', async () => {
    for (const out of ['one', 'two', 'other']) {
      const node = (out === 'other' ? 'n2' : 'n1') as NodeName;
      await issue(ca, { role: 'worker', node, validity: validForDays(1), out: join(root, out) });
    }
    const first = await revoke(ca, { node: 'n1' as NodeName });
    expect([first.revoked.length, first.total]).toEqual([2, 2]);
    expect(await revoke(ca, { node: 'n1' as NodeName })).toMatchObject({ revoked: [], total: 2 });
    expect((await revoke(ca, { serial: '00FFEE' })).revoked).toEqual(['ffee']);

    const own = parseList();
    const pem = readFileSync(list, 'latin1').replace(/-----.*-----\n/g, '');
    const { X509Crl } = await loadX509();
    const library = new X509Crl(Buffer.from(pem, 'base64')).entries;
    expect(own.map(({ serial }) => BigInt(`0x${serial}`))).toEqual(
      library.map(({ serialNumber }) => BigInt(`0x${serialNumber}`)),
    );
    expect(own.map(({ revokedMs }) => revokedMs)).toEqual(
      library.map((entry) => entry.revocationDate.getTime()),
    );
    for (const { revokedMs } of own) expect(Math.abs(revokedMs - Date.now())).toBeLessThan(MINUTE_MS);
  });

  test('holds whatever anybody was told is revoked, also where many revoke at once', async () => {
    const serials = ['a1', 'a2', 'a3', 'a4', 'a5'];
    const outcomes = await Promise.allSettled(serials.map((serial) => revoke(ca, { serial })));
    const told = serials.filter((_, index) => outcomes[index]?.status === 'fulfilled');
    expect(told.length).toBeGreaterThan(0);
    expect(parseList().map(({ serial }) => serial)).toEqual(expect.arrayContaining(told));
    for (const outcome of outcomes) {
      if (outcome.status === 'rejected') expect(outcome.reason).toMatchObject({ code: 'pki-busy' });
    }
    for (const serial of serials) await revoke(ca, { serial });
    expect(parseList().map(({ serial }) => serial)).toEqual(expect.arrayContaining(serials));
  });

  test('names the kept certificate that cannot be read, and takes serial numbers all the same', async () => {
    const broken = join(ca, 'issued', 'abcdef.crt');
    writeFileSync(broken, 'no certificate');
    await expect(revoke(ca, { node: 'n1' as NodeName })).rejects.toMatchObject({
      code: 'config-value',
      facts: { at: broken },
    });
    expect((await revoke(ca, { serial: 'b1' })).revoked).toEqual(['b1']);
    rmSync(broken);
  });

  test('goes with a bundle', async () => {
    const out = join(root, 'bundle');
    await issue(ca, { role: 'worker', node: 'n3' as NodeName, validity: validForDays(1), out });
    expect(loadIdentity(out).revocationsPem).toBe(readFileSync(list, 'latin1'));
  });

  test('is refused with any byte cut off, and gives nobody trust when it is no list', () => {
    const body = Buffer.from(readFileSync(list, 'latin1').replace(/-----.*-----\n/g, ''), 'base64');
    const wrap = (der: Buffer) =>
      `-----BEGIN X509 CRL-----\n${der.toString('base64')}\n-----END X509 CRL-----\n`;
    for (let length = 0; length < body.length; length += 1) {
      expect(() => parseRevocations(wrap(body.subarray(0, length)), 'ca.crl')).toThrow(
        /ca\.crl is not a revocation list: (?!The value)/,
      );
    }
    const out = join(root, 'bundle');
    for (const text of ['', 'no list', readFileSync(join(ca, 'ca.crt'), 'latin1')]) {
      writeFileSync(join(out, 'ca.crl'), text);
      expect(() => loadIdentity(out)).toThrow(/is not a revocation list/);
    }
  });
});
