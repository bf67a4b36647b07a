import { execFileSync } from 'node:child_process';
import { generateKeyPairSync, sign, verify, X509Certificate } from 'node:crypto';
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { NodeName } from '../../../src/base/ids.ts';
import { createAuthority, issue, validForDays } from '../../../src/pki/authority.ts';
import { loadIdentity, loadTicketPrivateKey, loadTicketPublicKey } from '../../../src/pki/identity.ts';
import type { CertificateRole } from '../../../src/pki/names.ts';
import { type NamedCertificate, readCertificateNames } from '../../../src/pki/names.ts';

const node = (name: string) => name as NodeName;

let root: string;
let ca: string;

const codeOf = (run: () => unknown): string => {
  try {
    run();
  } catch (error) {
    if (error instanceof XceError) return error.code;
    throw error;
  }
  return 'no error';
};

const rejectedCode = async (promise: Promise<unknown>): Promise<string> => {
  try {
    await promise;
  } catch (error) {
    if (error instanceof XceError) return error.code;
    throw error;
  }
  return 'no error';
};

const modeOf = (path: string): string => (statSync(path).mode & 0o7777).toString(8);

beforeAll(async () => {
  root = mkdtempSync(join(tmpdir(), 'pki-'));
  ca = join(root, 'ca');
  await createAuthority(ca, { cluster: 'west' });
});
afterAll(() => rmSync(root, { recursive: true }));

const issueTo = async (name: string, role: CertificateRole): Promise<string> => {
  const out = join(root, `${name}-${role}`);
  await issue(ca, { role, node: node(name), validity: validForDays(10), out });
  return out;
};

describe('a directory of keys', () => {
  test('is none that others could write into or put another one in the place of', async () => {
    const others = mkdtempSync(join(root, 'others-'));
    const below = join(others, 'below');
    const issueInto = (out: string): Promise<unknown> =>
      issue(ca, { role: 'worker', node: node('n1'), validity: validForDays(10), out });
    chownSync(others, 60_690, 60_690);
    for (const out of [others, below]) expect(await rejectedCode(issueInto(out))).toBe('config-unsafe');
    chownSync(others, 0, 0);
    chmodSync(others, 0o777);
    for (const out of [others, below]) expect(await rejectedCode(issueInto(out))).toBe('config-unsafe');
    expect([readdirSync(others), readdirSync(below)]).toEqual([['below'], []]);
    chmodSync(others, 0o1777);
    await issueInto(below);
    expect(readdirSync(below)).toContain('host.key');
  });
});

describe('an authority', () => {
  test('keeps its keys to root and its directory closed', () => {
    expect(modeOf(ca)).toBe('700');
    expect(modeOf(join(ca, 'ca.key'))).toBe('600');
    expect(modeOf(join(ca, 'ticket.key'))).toBe('600');
    expect(modeOf(join(ca, 'ca.crt'))).toBe('644');
    expect(modeOf(join(ca, 'ticket.pub'))).toBe('644');
  });

  test('is never made over another one, not even over a part of one', async () => {
    const before = readFileSync(join(ca, 'ca.key'), 'latin1');
    expect(await rejectedCode(createAuthority(ca, { cluster: 'west' }))).toBe('pki-exists');
    expect(readFileSync(join(ca, 'ca.key'), 'latin1')).toBe(before);

    const half = mkdtempSync(join(root, 'half-'));
    writeFileSync(join(half, 'ticket.pub'), 'something');
    expect(await rejectedCode(createAuthority(half, { cluster: 'west' }))).toBe('pki-exists');
    expect(readdirSync(half)).toEqual(['ticket.pub']);
  });

  test('refuses a cluster name that a subject could not carry unchanged', async () => {
    for (const cluster of ['', 'a b', 'x,OU=xce-controller', 'é', 'a'.repeat(65)]) {
      expect(await rejectedCode(createAuthority(join(root, 'bad'), { cluster }))).toBe('config-value');
    }
    expect(existsSync(join(root, 'bad'))).toBe(false);
  });

  test('and its leaves pass openssl verify -x509_strict for both uses', async () => {
    const out = await issueTo('n1', 'worker');
    for (const purpose of ['sslserver', 'sslclient']) {
      const said = execFileSync(
        'openssl',
        [
          'verify',
          '-x509_strict',
          '-no-CApath',
          '-no-CAstore',
          '-purpose',
          purpose,
          '-CAfile',
          join(out, 'ca.crt'),
          join(out, 'host.crt'),
        ],
        { encoding: 'utf8' },
      );
      expect(said).toContain('host.crt: OK');
    }
    const text = execFileSync('openssl', ['x509', '-in', join(out, 'host.crt'), '-noout', '-text'], {
      encoding: 'utf8',
    });
    expect(text).toContain('Public Key Algorithm: id-ecPublicKey');
    expect(text).toContain('NIST CURVE: P-256');
    expect(text).toContain('DNS:n1');
    expect(text).toContain('CA:FALSE');
    expect(text).toMatch(/X509v3 Key Usage: critical\s+Digital Signature\n/);
  });
});

describe('a bundle', () => {
  test('holds the names of its host and no more than its role needs', async () => {
    const worker = await issueTo('n2', 'worker');
    expect(readdirSync(worker).sort()).toEqual(['ca.crl', 'ca.crt', 'host.crt', 'host.key', 'ticket.pub']);
    expect(modeOf(join(worker, 'host.key'))).toBe('600');
    expect(loadIdentity(worker)).toMatchObject({ cluster: 'west', role: 'worker', node: 'n2' });

    const controller = await issueTo('c1', 'controller');
    expect(readdirSync(controller).sort()).toEqual([
      'ca.crl',
      'ca.crt',
      'host.crt',
      'host.key',
      'ticket.key',
      'ticket.pub',
    ]);
    expect(modeOf(join(controller, 'ticket.key'))).toBe('600');
    expect(loadIdentity(controller)).toMatchObject({ role: 'controller', node: 'c1' });

    for (const role of ['operator', 'storage'] as const) {
      const other = await issueTo('c1', role);
      expect(readdirSync(other)).not.toContain('ticket.key');
      expect(loadIdentity(other)).toMatchObject({ role, node: 'c1' });
    }
  });

  test('carries the ticket keys as one pair', async () => {
    const controller = await issueTo('c2', 'controller');
    const worker = await issueTo('n3', 'worker');
    const message = Buffer.from('a claim');
    const signature = sign(null, message, loadTicketPrivateKey(controller));
    expect(verify(null, message, loadTicketPublicKey(worker), signature)).toBe(true);
  });

  test('may be issued into the directory of the authority itself, once', async () => {
    const own = join(root, 'own');
    await createAuthority(own, { cluster: 'west' });
    await issue(own, { role: 'controller', node: node('c1'), validity: validForDays(10), out: own });
    expect(loadIdentity(own)).toMatchObject({ role: 'controller' });
    const again = issue(own, { role: 'controller', node: node('c1'), validity: validForDays(10), out: own });
    expect(await rejectedCode(again)).toBe('pki-exists');
  });

  test('is not issued over the identity of another cluster', async () => {
    const east = join(root, 'east');
    await createAuthority(east, { cluster: 'east' });
    const out = await issueTo('n4', 'worker');
    rmSync(join(out, 'host.crt'));
    rmSync(join(out, 'host.key'));
    const over = issue(east, { role: 'worker', node: node('n4'), validity: validForDays(10), out });
    expect(await rejectedCode(over)).toBe('pki-exists');
    expect(existsSync(join(out, 'host.key'))).toBe(false);
  });

  test('never outlives its authority', async () => {
    const late = issue(ca, {
      role: 'worker',
      node: node('n5'),
      validity: validForDays(4000),
      out: join(root, 'late'),
    });
    expect(await rejectedCode(late)).toBe('usage');
    expect(existsSync(join(root, 'late'))).toBe(false);
  });

  test('can have a node name longer than a common name', async () => {
    const long = `${'a'.repeat(60)}.${'b'.repeat(60)}.example`;
    const out = join(root, 'long');
    await issue(ca, { role: 'worker', node: node(long), validity: validForDays(10), out });
    expect(loadIdentity(out).node).toBe(long);
  });
});

describe('reading an identity', () => {
  test('refuses a key that others may read', async () => {
    const out = await issueTo('n6', 'controller');
    chmodSync(join(out, 'host.key'), 0o640);
    expect(codeOf(() => loadIdentity(out))).toBe('config-unsafe');
    chmodSync(join(out, 'ticket.key'), 0o604);
    expect(codeOf(() => loadTicketPrivateKey(out))).toBe('config-unsafe');
  });

  test('refuses a certificate or ticket key that others may write', async () => {
    const out = await issueTo('n7', 'worker');
    chmodSync(join(out, 'ca.crt'), 0o664);
    expect(codeOf(() => loadIdentity(out))).toBe('config-unsafe');
    chmodSync(join(out, 'ticket.pub'), 0o646);
    expect(codeOf(() => loadTicketPublicKey(out))).toBe('config-unsafe');
  });

  test('refuses a key of another certificate, and a certificate of another authority', async () => {
    const one = await issueTo('n8', 'worker');
    const two = await issueTo('n9', 'worker');
    const keep = readFileSync(join(one, 'host.key'));
    writeFileSync(join(one, 'host.key'), readFileSync(join(two, 'host.key')));
    expect(codeOf(() => loadIdentity(one))).toBe('config-value');
    writeFileSync(join(one, 'host.key'), keep);
    expect(loadIdentity(one).node).toBe('n8');

    const other = join(root, 'other');
    await createAuthority(other, { cluster: 'west' });
    writeFileSync(join(one, 'ca.crt'), readFileSync(join(other, 'ca.crt')));
    expect(codeOf(() => loadIdentity(one))).toBe('config-value');
  });

  test('refuses a private key in the place of ticket.pub, and garbage anywhere', async () => {
    const out = await issueTo('n10', 'controller');
    writeFileSync(join(out, 'ticket.pub'), readFileSync(join(out, 'ticket.key')));
    expect(codeOf(() => loadTicketPublicKey(out))).toBe('config-value');
    const ec = generateKeyPairSync('ec', { namedCurve: 'P-256' });
    writeFileSync(join(out, 'ticket.pub'), ec.publicKey.export({ type: 'spki', format: 'pem' }));
    expect(codeOf(() => loadTicketPublicKey(out))).toBe('config-value');
    writeFileSync(join(out, 'ticket.key'), 'garbage');
    expect(codeOf(() => loadTicketPrivateKey(out))).toBe('config-value');
    writeFileSync(join(out, 'host.crt'), 'garbage');
    expect(codeOf(() => loadIdentity(out))).toBe('config-value');
    writeFileSync(join(out, 'ca.crt'), Buffer.alloc(1 << 20));
    expect(codeOf(() => loadIdentity(out))).toBe('too-large');
    rmSync(join(out, 'ca.crt'));
    expect(codeOf(() => loadIdentity(out))).toBe('io');
  });
});

describe('names of a certificate', () => {
  /** A leaf with any subject and names, made by openssl, independent of our writer. */
  const leafWith = (subject: string, names: string): NamedCertificate => {
    const key = join(root, 'leaf.key');
    const out = join(root, 'leaf.crt');
    execFileSync(
      'openssl',
      [
        'req',
        '-x509',
        '-newkey',
        'ec',
        '-pkeyopt',
        'ec_paramgen_curve:P-256',
        '-nodes',
        '-keyout',
        key,
        '-out',
        out,
        '-subj',
        subject,
        '-addext',
        'basicConstraints=critical,CA:FALSE',
        ...(names === '' ? [] : ['-addext', `subjectAltName=${names}`]),
      ],
      { stdio: 'ignore' },
    );
    return new X509Certificate(readFileSync(out));
  };

  test('are read when there is exactly one of each', () => {
    expect(readCertificateNames(leafWith('/O=west/OU=xce-operator/CN=whatever', 'DNS:n1.example'))).toEqual({
      cluster: 'west',
      role: 'operator',
      node: 'n1.example',
    });
  });

  test('are read past a value with everything that separates parts', () => {
    const subject = '/O=west/OU=xce-worker/CN=a \\+ OU=xce-controller\nOU=xce-controller';
    expect(readCertificateNames(leafWith(subject, 'DNS:n1'))).toHaveProperty('role', 'worker');
  });

  test('of an authority are refused', () => {
    const authority = new X509Certificate(readFileSync(join(ca, 'ca.crt')));
    const leaf = leafWith('/O=west/OU=xce-worker', 'DNS:n1');
    const { subject, subjectAltName } = leaf;
    expect(readCertificateNames({ subject, subjectAltName, ca: authority.ca })).toHaveProperty('refused');
  });

  test.each([
    ['two roles', '/O=west/OU=xce-worker/OU=xce-controller', 'DNS:n1'],
    ['two clusters', '/O=west/O=east/OU=xce-worker', 'DNS:n1'],
    ['no role', '/O=west/CN=n1', 'DNS:n1'],
    ['a role in capitals', '/O=west/OU=XCE-WORKER', 'DNS:n1'],
    ['a role without its prefix', '/O=west/OU=worker', 'DNS:n1'],
    ['two names', '/O=west/OU=xce-worker', 'DNS:n1,DNS:n2'],
    ['a name and an address', '/O=west/OU=xce-worker', 'DNS:n1,IP:10.0.0.1'],
    ['only an address', '/O=west/OU=xce-worker', 'IP:10.0.0.1'],
    ['no name', '/O=west/OU=xce-worker/CN=n1', ''],
    ['a wildcard', '/O=west/OU=xce-worker', 'DNS:*.example'],
    ['a role in a multi-valued part', '/O=west+OU=xce-worker+OU=xce-controller', 'DNS:n1'],
    ['a second role behind another field', '/O=west/OU=xce-worker/CN=n1+OU=xce-controller', 'DNS:n1'],
    [
      'a second role behind a plus and a backslash',
      '/O=west/OU=xce-worker/CN=n1\\\\+OU=xce-controller',
      'DNS:n1',
    ],
    ['no subject', '/', 'DNS:n1'],
  ])('are refused with %s', (_what, subject, names) => {
    expect(readCertificateNames(leafWith(subject, names))).toHaveProperty('refused');
  });
});
