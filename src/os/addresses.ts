/** Addresses of hosts: by name, of this host, and as bytes. */
import { lookup } from 'node:dns/promises';
import { BlockList, isIPv6 } from 'node:net';
import { networkInterfaces } from 'node:os';
import { assert, errnoOf, XceError } from '../base/errors.ts';

/** Names that are looked up together; each takes a thread while it is asked for. */
const TOGETHER = 8;

/** The addresses of this host on all its interfaces. */
export const ownAddresses = (): readonly string[] =>
  Object.values(networkInterfaces()).flatMap((list) => (list ?? []).map(({ address }) => address));

const familyOf = (address: string): 'ipv4' | 'ipv6' => (isIPv6(address) ? 'ipv6' : 'ipv4');

/** The first interface of this host that has one of these names, or an address in one of these networks. */
export const ownInterface = (wanted: readonly string[]): string | undefined => {
  if (wanted.length === 0) return undefined;
  const networks = new BlockList();
  for (const network of wanted) {
    const [address = '', prefix] = network.split('/');
    if (prefix !== undefined) networks.addSubnet(address, Number(prefix), familyOf(address));
  }
  return Object.entries(networkInterfaces()).find(
    ([name, list]) =>
      wanted.includes(name) || list?.some(({ address }) => networks.check(address, familyOf(address))),
  )?.[0];
};

const addressesOf = async (name: string): Promise<readonly string[]> => {
  try {
    return (await lookup(name, { all: true })).map(({ address }) => address);
  } catch (error) {
    throw new XceError('sandbox-refused', `${name} has no address here: ${errnoOf(error) ?? String(error)}`, {
      next: `getent hosts ${name}`,
      cause: error,
    });
  }
};

/** Every address that the names have on this host, each once. Throws 'sandbox-refused' for a name without any. */
export const resolveNames = async (names: readonly string[]): Promise<readonly string[]> => {
  const found = new Set<string>();
  let next = 0;
  const take = async (): Promise<void> => {
    for (let name = names[next++]; name !== undefined; name = names[next++]) {
      for (const address of await addressesOf(name)) found.add(address);
    }
  };
  await Promise.all(Array.from({ length: TOGETHER }, take));
  return [...found];
};

/** The 4 or 16 bytes of an address in text, in network order; a zone index does not count. */
export const addressBytes = (text: string): Buffer => {
  const [address = ''] = text.split('%');
  if (/^[0-9.]+$/.test(address)) return Buffer.from(address.split('.').map(Number));
  const [, dotted = ''] = /:([0-9]+(?:\.[0-9]+){3})$/.exec(address) ?? [];
  const tail = dotted === '' ? '' : Buffer.from(dotted.split('.').map(Number)).toString('hex');
  const hex =
    dotted === '' ? address : `${address.slice(0, -dotted.length)}${tail.slice(0, 4)}:${tail.slice(4)}`;
  const [left = '', right] = hex.split('::');
  const groups = (part: string): readonly string[] => (part === '' ? [] : part.split(':'));
  const [head, end] = [groups(left), groups(right ?? '')];
  const zeros = Array.from({ length: 8 - head.length - end.length }, () => '0');
  const all = [...head, ...(right === undefined ? [] : zeros), ...end];
  assert(all.length === 8, 'an IPv6 address has eight groups');
  return Buffer.from(all.map((group) => group.padStart(4, '0')).join(''), 'hex');
};
