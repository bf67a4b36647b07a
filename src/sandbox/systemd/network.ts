/** The addresses that a job may reach, where its network is limited. */
import { XceError } from '../../base/errors.ts';
import type { Settings } from '../../config/settings.ts';
import type { Network } from '../../config/values.ts';
import { addressBytes, ownAddresses, resolveNames } from '../../os/addresses.ts';
import { withinMs } from '../../os/within.ts';
import type { SandboxSpec } from '../backend.ts';

const asNetwork = (address: string): Network => ({
  address: address.split('%')[0] ?? address,
  prefix: addressBytes(address).length * 8,
});

/**
 * The nodes of the job under all names that the configuration gives them, this host itself, and what every job may
 * reach. Resolved here, as the job will do, so that the ticket needs to know no address. Null where the network is
 * open. Throws 'sandbox-refused' for a node without address.
 */
export const reachOf = async (
  settings: Pick<Settings, 'sandbox' | 'nodes'>,
  spec: Pick<SandboxSpec, 'nodes'>,
): Promise<readonly Network[] | null> => {
  const { network, networkNames, networkAllow } = settings.sandbox;
  if (network === 'open') return null;
  const names = spec.nodes.flatMap((node) => networkNames.map((pattern) => pattern.replace('%n', node)));
  const late = (): XceError =>
    new XceError('sandbox-refused', `the names of ${names.length} nodes were not resolved in time`, {
      next: '[sandbox] network_names',
    });
  const addresses = await withinMs(settings.nodes.requestTimeoutMs / 2, resolveNames(names), late);
  return [...new Set([...addresses, ...ownAddresses()])].map(asNetwork).concat(networkAllow);
};
