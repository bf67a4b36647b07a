import { posix } from 'node:path';
import { XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import { parseNodeName } from '../base/ids.ts';
import { type Bundle, createAuthority, issue, validForDays } from '../pki/authority.ts';
import type { CertificateRole } from '../pki/names.ts';
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
