import { createPrivateKey, createPublicKey, X509Certificate } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { CliHost, CONFIG_PATH, configuration, PKI_DIRECTORY } from './host.ts';
import { check, expectRefusal } from './transcript.ts';

let host: CliHost;
beforeAll(async () => {
  host = await CliHost.start();
});
afterAll(() => host.end());

const certificateOf = (path: string): X509Certificate => new X509Certificate(host.read(path));
const DAY_MS = 24 * 3600 * 1000;

test('nothing is issued without an authority', async () => {
  const args = 'pki issue --role worker --node n1 --out /root/n1';
  await expectRefusal(host, {
    args,
    code: 'io',
    status: 74,
    says: /\/etc\/xce-sandbox\/pki\/ca\.crt: ENOENT/,
  });
  expect(host.exists('/root/n1')).toBe(false);
});

test('init makes the authority and the ticket key, secrets for root alone', async () => {
  await check(host, {
    args: 'pki init',
    stdout:
      /^\/etc\/xce-sandbox\/pki\/ca\.key\n.*ticket\.key\n.*ticket\.pub\n.*ca\.crl\n.*ca\.crt\nvalid until 20[0-9-]+T[0-9:.]+Z\n$/,
  });
  expect(host.mode(PKI_DIRECTORY)).toBe('0700');
  const modes = ['ca.key', 'ticket.key', 'ticket.pub', 'ca.crt'].map((file) =>
    host.mode(`${PKI_DIRECTORY}/${file}`),
  );
  expect(modes).toEqual(['0600', '0600', '0644', '0644']);
});

test('init replaces nothing', async () => {
  const before = host.snapshot(PKI_DIRECTORY);
  await expectRefusal(host, {
    args: 'pki init',
    code: 'pki-exists',
    status: 77,
    says: /unchanged: no file was written/,
  });
  expect(host.snapshot(PKI_DIRECTORY)).toEqual(before);
});

describe('issue', () => {
  test('gives a worker what it needs and no key to sign with', async () => {
    const args = 'pki issue --role worker --node n1 --out /root/n1 --days 30 --json';
    const { stdout } = await check(host, { args, stdout: /^\{/ });
    const { files, validity } = JSON.parse(stdout) as { files: string[]; validity: { notAfterMs: number } };
    expect(files).toEqual(
      ['ca.crt', 'ca.crl', 'ticket.pub', 'host.key', 'host.crt'].map((file) => `/root/n1/${file}`),
    );
    expect(Object.keys(host.snapshot('/root/n1')).sort()).toEqual([
      'ca.crl',
      'ca.crt',
      'host.crt',
      'host.key',
      'ticket.pub',
    ]);
    expect([host.mode('/root/n1'), host.mode('/root/n1/host.key')]).toEqual(['0700', '0600']);
    expect(Math.abs(validity.notAfterMs - Date.now() - 30 * DAY_MS)).toBeLessThan(DAY_MS);
    const certificate = certificateOf('/root/n1/host.crt');
    expect(certificate.subject).toBe('O=test\nOU=xce-worker\nCN=n1');
    expect(certificate.subjectAltName).toBe('DNS:n1');
    expect(certificate.verify(certificateOf(`${PKI_DIRECTORY}/ca.crt`).publicKey)).toBe(true);
    expect(certificate.checkPrivateKey(createPrivateKey(host.read('/root/n1/host.key')))).toBe(true);
  });

  test('gives a controller the ticket key, also into the directory of the authority', async () => {
    const args = `pki issue --role controller --node ctl --out ${PKI_DIRECTORY}`;
    await check(host, { args, stdout: /ticket\.key\n.*host\.key\n/ });
    const signer = createPublicKey(createPrivateKey(host.read(`${PKI_DIRECTORY}/ticket.key`)));
    const known = createPublicKey(host.read(`${PKI_DIRECTORY}/ticket.pub`));
    expect(signer.equals(known)).toBe(true);
    expect(certificateOf(`${PKI_DIRECTORY}/host.crt`).subject).toContain('OU=xce-controller');
  });

  test('replaces nothing', async () => {
    const before = host.snapshot('/root/n1');
    for (const args of [
      'pki issue --role worker --node n1 --out /root/n1',
      'pki issue --role worker --node n2 --out /root/n1',
    ]) {
      await expectRefusal(host, {
        args,
        code: 'pki-exists',
        status: 77,
        says: /\/root\/n1\/host\.crt exists/,
      });
    }
    expect(host.snapshot('/root/n1')).toEqual(before);
  });

  test.each([
    ['--role worker --node bad_-name- --out /root/x', /'bad_-name-' is not a node name/],
    ['--role worker --node n1 --out /root/x --days 0', /--days: '0' is not a number/],
    ['--role worker --node n1 --out /root/x --days 9999', /the authority ends at/],
    ['--role worker --node n1', /--out is missing/],
  ])('refuses %s', async (flags, says) => {
    await expectRefusal(host, { args: `pki issue ${flags}`, code: 'usage', status: 64, says });
    expect(host.exists('/root/x')).toBe(false);
  });

  test('refuses an authority whose key others may read', async () => {
    await host.shell(`chmod 640 ${PKI_DIRECTORY}/ca.key`);
    const args = 'pki issue --role worker --node n3 --out /root/n3';
    await expectRefusal(host, { args, code: 'config-unsafe', status: 78, says: /ca\.key .*\n.*chmod 0600/ });
    await host.shell(`chmod 600 ${PKI_DIRECTORY}/ca.key`);
    expect(host.exists('/root/n3')).toBe(false);
  });
});

test('--config says where the keys lie', async () => {
  const content = configuration().replace('name = test', 'name = test\npki = /etc/second/pki');
  host.write('/etc/second/x.ini', content);
  await check(host, {
    args: 'pki init --config /etc/second/x.ini',
    stdout: /^\/etc\/second\/pki\/ca\.key\n/,
  });
  expect(host.read(CONFIG_PATH)).toBe(configuration());
});

describe('revoke', () => {
  test('puts every certificate of a node on the list, once', async () => {
    // It is certified before it is added.
    await check(host, {
      args: 'pki issue --role worker --node n7 --out /root/n7',
      stdout: /n7/,
      stderr: /^xce-sandbox: n7 is none of \[nodes\] hosts: .*\n$/,
    });
    const serial = certificateOf('/root/n7/host.crt').serialNumber.toLowerCase();
    const list = `${PKI_DIRECTORY}/ca.crl`;
    const next =
      /^xce-sandbox: no host knows this yet: copy \S+ca\.crl .*systemctl reload xce-sandbox-worker\n$/;
    await check(host, {
      args: 'pki revoke --node n7',
      stdout: `${serial}\n${list}: 1 revoked\n`,
      stderr: next,
    });
    const after = host.read(list);
    const known = /^xce-sandbox: nothing was added: all of it was revoked before; .*: copy \S+ca\.crl .*\n$/;
    await check(host, { args: 'pki revoke --node n7', stdout: `${list}: 1 revoked\n`, stderr: known });
    await check(host, {
      args: `pki revoke --serial ${serial}`,
      stdout: `${list}: 1 revoked\n`,
      stderr: known,
    });
    expect(host.read(list)).toEqual(after);
    await check(host, {
      args: 'pki revoke --serial 00:AB:cd',
      stdout: `abcd\n${list}: 2 revoked\n`,
      stderr: /^xce-sandbox: this authority has no record that it issued abcd; .*\n.*systemctl reload/,
    });
  });

  test.each([
    ['--node n99', /no certificate was issued to n99/],
    ['--serial xyz', /not a serial number/],
    ['', /one of --node, --serial must be given/],
  ])('refuses %s', async (args, says) => {
    await expectRefusal(host, { args: `pki revoke ${args}`, code: 'usage', status: 64, says });
  });
});
