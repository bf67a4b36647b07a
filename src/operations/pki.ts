import { posix } from 'node:path';
import { XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import { parseNodeName } from '../base/ids.ts';
import { requireNodeName } from '../nodes/resolve.ts';
import { type Bundle, createAuthority, issue, validForDays } from '../pki/authority.ts';
import type { CertificateRole } from '../pki/names.ts';
import { type Revocation, type RevokeSelection, revoke } from '../pki/revocation.ts';
import { openConfig, requireRoot } from './open-config.ts';

/** Creates the cluster's authority in the directory of [cluster] pki. */
export const initAuthority = (configPath: string | undefined): Promise<Bundle> => {
  requireRoot();
  const { cluster } = openConfig(configPath).settings;
  return createAuthority(cluster.pki, { cluster: cluster.name });
};

/** Issues one host's files; `out` is taken relative to the working directory. */
export const issueIdentity = async (
  configPath: string | undefined,
  input: {
    readonly role: CertificateRole;
    readonly node: string;
    readonly out: string;
    readonly days: number;
  },
  tell: (text: string) => void,
): Promise<Bundle> => {
  requireRoot();
  const { cluster, nodes } = openConfig(configPath).settings;
  const node = requireNodeName(input.node);
  const bundle = await issue(cluster.pki, {
    role: input.role,
    node,
    validity: validForDays(input.days),
    out: posix.resolve(input.out),
  });
  // New nodes are certified before they are added; a name with a fault in it looks the same.
  if (input.role === 'worker' && !nodes.hosts.includes(node))
    tell(`${node} is none of [nodes] hosts: no job runs there before it is, under exactly this name`);
  return bundle;
};

const parseRevokeSelection = (input: {
  readonly node: string | undefined;
  readonly serial: string | undefined;
}): RevokeSelection => {
  const { serial } = input;
  if (serial !== undefined) {
    const digits = serial.replaceAll(':', '');
    if (/^[0-9A-Fa-f]{1,40}$/.test(digits)) return { serial: digits };
    throw new XceError('usage', `--serial: '${escapeText(serial)}' is not a serial number in hex`, {
      unchanged: 'no certificate was revoked',
      next: 'openssl x509 -noout -serial -in host.crt',
    });
  }
  const node = parseNodeName(input.node ?? '');
  if (node !== undefined) return { node };
  throw new XceError('usage', `--node: '${escapeText(input.node ?? '')}' is not a node name`, {
    unchanged: 'no certificate was revoked',
  });
};

/**
 * Revokes one certificate by its serial number in hex, or all that were issued to a node, and tells what is left to do.
 * A serial number that nobody knows here is revoked all the same: the record of what was issued may be lost.
 */
export const revokeCertificates = async (
  configPath: string | undefined,
  input: { readonly node: string | undefined; readonly serial: string | undefined },
  tell: (text: string) => void,
): Promise<Revocation> => {
  requireRoot();
  const { cluster } = openConfig(configPath).settings;
  const result = await revoke(cluster.pki, parseRevokeSelection(input));
  if (result.unknown !== null) {
    tell(
      `this authority has no record that it issued ${result.unknown}; compare with: openssl x509 -noout -serial -in host.crt`,
    );
  }
  const news =
    result.revoked.length > 0
      ? 'no host knows this yet'
      : 'nothing was added: all of it was revoked before; where a host may not know that yet';
  tell(
    `${news}: copy ${escapeText(result.list)} to the same place on every host, then on each: systemctl reload xce-sandbox-worker`,
  );
  return result;
};
