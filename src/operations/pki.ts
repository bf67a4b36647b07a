import { posix } from 'node:path';
import { XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import { parseNodeName } from '../base/ids.ts';
import { type Bundle, createAuthority, issue, validForDays } from '../pki/authority.ts';
import type { CertificateRole } from '../pki/names.ts';
import { type Revocation, revoke } from '../pki/revocation.ts';
import { openConfig, requireRoot } from './open-config.ts';

/** Creates the cluster's authority in the directory of [cluster] pki. */
export const initAuthority = (configPath: string | undefined): Promise<Bundle> => {
  requireRoot();
  const { cluster } = openConfig(configPath).settings;
  return createAuthority(cluster.pki, { cluster: cluster.name });
};

/** Issues one host's files; `out` is taken relative to the working directory. */
export const issueIdentity = (
  configPath: string | undefined,
  input: {
    readonly role: CertificateRole;
    readonly node: string;
    readonly out: string;
    readonly days: number;
  },
): Promise<Bundle> => {
  requireRoot();
  const { cluster } = openConfig(configPath).settings;
  const node = parseNodeName(input.node);
  if (node === undefined) throw new XceError('usage', `'${escapeText(input.node)}' is not a node name`);
  return issue(cluster.pki, {
    role: input.role,
    node,
    validity: validForDays(input.days),
    out: posix.resolve(input.out),
  });
};

/** Revokes one certificate by its serial number in hex, or all that were issued to a node. */
export const revokeCertificates = (
  configPath: string | undefined,
  input: { readonly node: string | undefined; readonly serial: string | undefined },
): Promise<Revocation> => {
  requireRoot();
  const { cluster } = openConfig(configPath).settings;
  const { serial } = input;
  if (serial !== undefined) {
    const digits = serial.replaceAll(':', '');
    if (!/^[0-9A-Fa-f]{1,40}$/.test(digits)) {
      throw new XceError('usage', `'${escapeText(serial)}' is not a serial number in hex`);
    }
    return revoke(cluster.pki, { serial: digits });
  }
  const node = parseNodeName(input.node ?? '');
  if (node === undefined) throw new XceError('usage', `'${escapeText(input.node ?? '')}' is not a node name`);
  return revoke(cluster.pki, { node });
};
