/** Which nodes a batch system is to give no further job, why, and how it is told. */
import type { NodeName } from '../base/ids.ts';
import { foldNodes } from '../nodes/hostlist.ts';
import type { SchedulerName } from './schedulers.ts';

/** What is missing before a node is certified clean; null for what is no node's fault. */
export type Blocker = { readonly node: NodeName | null; readonly text: string };

export type NodesToDrain = { readonly nodes: readonly NodeName[]; readonly reason: string };

/** What `sinfo -R`, `pbsnodes -l` and `flux resource drain` show without wrapping a terminal many times. */
const REASON_CHARS_MAX = 200;

const shorten = (text: string): string =>
  text.length <= REASON_CHARS_MAX ? text : `${text.slice(0, REASON_CHARS_MAX - 1)}~`;

/** Exactly the nodes that something is missing of, each once, those with one reason together. */
export const nodesToDrain = (blockers: readonly Blocker[]): readonly NodesToDrain[] => {
  const reasonOf = new Map<NodeName, string>();
  for (const { node, text } of blockers) {
    if (node !== null && !reasonOf.has(node)) reasonOf.set(node, shorten(`xce-sandbox: ${text}`));
  }
  const byReason = new Map<string, NodeName[]>();
  for (const [node, reason] of reasonOf) byReason.set(reason, [...(byReason.get(reason) ?? []), node]);
  return [...byReason].map(([reason, nodes]) => ({ nodes, reason }));
};

/** Arguments of the program with which an administrator of that batch system drains nodes; the site's own program gets the nodes and the reason. */
export const drainArguments = (
  scheduler: SchedulerName,
  { nodes, reason }: NodesToDrain,
): readonly string[] => {
  switch (scheduler) {
    case 'slurm':
      return ['update', `nodename=${foldNodes(nodes)}`, 'state=drain', `reason=${reason}`];
    case 'pbs':
      return ['-C', reason, '-o', ...nodes];
    case 'flux':
      return ['resource', 'drain', foldNodes(nodes), reason];
    case 'xce':
      return [foldNodes(nodes), reason];
  }
};
