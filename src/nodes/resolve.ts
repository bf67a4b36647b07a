/**
 * Finds the configured node that a batch system means. Batch systems, host names and certificates disagree on
 * whether a name carries its domain (openpmix/prrte#2747); cutting every name at its first dot would merge
 * node01.a.example with node01.b.example, so a cut name counts only where it can mean one node.
 */
import { XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import { type NodeName, parseNodeName } from '../base/ids.ts';

export type ResolveFault = {
  readonly requested: NodeName;
  readonly reason: 'unknown' | 'ambiguous' | 'same-node';
  /** The configured nodes it may mean; for 'same-node' the one that another requested name means as well. */
  readonly candidates: readonly NodeName[];
};

export type ResolvedNodes =
  | { readonly nodes: readonly NodeName[]; readonly faults?: never }
  | { readonly faults: readonly ResolveFault[]; readonly nodes?: never };

const shortOf = (name: NodeName): NodeName | undefined => parseNodeName(name.split('.')[0] ?? '');

/** An IPv4 address looks like a name with dots, but its first number names nothing. */
const isAddress = (name: NodeName): boolean => /^[0-9]+(\.[0-9]+){3}$/.test(name);

/**
 * Maps each requested name to one configured node, in the order requested. A name means the configured node of
 * exactly that name; else, if one of the two is a bare host name and no second configured node shares it, the
 * configured node with the same first label. Everything else is a fault, and so are two requested names that
 * mean the same node.
 */
export const resolveNodes = (
  requested: readonly NodeName[],
  configured: readonly NodeName[],
): ResolvedNodes => {
  const exact = new Set(configured);
  const byShort = new Map<NodeName, NodeName[]>();
  for (const name of configured) {
    const short = isAddress(name) ? undefined : shortOf(name);
    if (short === undefined) continue;
    const sharing = byShort.get(short);
    if (sharing === undefined) byShort.set(short, [name]);
    else sharing.push(name);
  }
  const candidatesOf = (name: NodeName): readonly NodeName[] => {
    if (exact.has(name)) return [name];
    const short = isAddress(name) ? undefined : shortOf(name);
    const sharing = short === undefined ? [] : (byShort.get(short) ?? []);
    return name === short || sharing.some((other) => other === short) ? sharing : [];
  };
  const nodes = new Set<NodeName>();
  const faults: ResolveFault[] = [];
  for (const name of requested) {
    const candidates = candidatesOf(name);
    const [node] = candidates;
    if (node === undefined) faults.push({ requested: name, reason: 'unknown', candidates });
    else if (candidates.length > 1) faults.push({ requested: name, reason: 'ambiguous', candidates });
    else if (nodes.has(node)) faults.push({ requested: name, reason: 'same-node', candidates });
    else nodes.add(node);
  }
  return faults.length > 0 ? { faults } : { nodes: [...nodes] };
};

const describeFault = ({ requested, reason, candidates }: ResolveFault, among: string): string => {
  switch (reason) {
    case 'unknown':
      return `${requested} is none of ${among}`;
    case 'ambiguous':
      return `${requested} is ambiguous: it may mean ${candidates.slice(0, 4).join(' or ')}`;
    case 'same-node':
      return `${requested} means ${candidates.join()}, which is named already`;
  }
};

const CONFIGURED = { among: '[nodes] hosts', next: 'xce-sandbox config show' } as const;

/** One name that a caller gave. Throws 'usage'. */
export const requireNodeName = (text: string): NodeName => {
  const node = parseNodeName(text);
  if (node === undefined) throw new XceError('usage', `'${escapeText(text)}' is not a node name`);
  return node;
};

/**
 * resolveNodes for names that a caller gave; throws 'node-unknown' that tells the first few faults. `among` says what
 * they were to be, and `next` how to see it.
 */
export const requireNodes = (
  requested: readonly NodeName[],
  configured: readonly NodeName[],
  { among, next }: { readonly among: string; readonly next: string } = CONFIGURED,
): readonly NodeName[] => {
  const { nodes, faults } = resolveNodes(requested, configured);
  if (nodes !== undefined) return nodes;
  const shown = faults.slice(0, 4).map((fault) => describeFault(fault, among));
  const more = faults.length > shown.length ? [`and ${faults.length - shown.length} more`] : [];
  throw new XceError('node-unknown', [...shown, ...more].join('; '), {
    unchanged: 'no node was chosen and nothing was started',
    next,
    detail: { faults: faults.slice(0, 64) },
  });
};
