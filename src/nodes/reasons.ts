/** What went wrong on several nodes, each reason once with the nodes that it holds for. */
import { type NodeName, parseNodeName } from '../base/ids.ts';

/** What a failure says, and of which node. */
export type Failure = { readonly message: string; readonly facts: { readonly at?: string } };

export type Reason = {
  /** None for what is no node's. */
  readonly nodes: readonly NodeName[];
  /** The reason in words, with `nodes` where each of them was named. */
  readonly tell: (nodes: string) => string;
};

/** Every place where a text names a node, and not one whose name only contains it. */
const mentionsOf = (node: string): RegExp =>
  new RegExp(`(?<![A-Za-z0-9._-])${node.replaceAll('.', '\\.')}(?![A-Za-z0-9_-]|\\.[A-Za-z0-9])`, 'g');

/** Failures that say the same of different nodes are one reason, which names all of them. */
export const foldReasons = (failed: readonly Failure[]): readonly Reason[] => {
  const reasons = new Map<string, { readonly nodes: NodeName[]; readonly tell: Reason['tell'] }>();
  for (const { message, facts } of failed) {
    const node = facts.at === undefined ? undefined : parseNodeName(facts.at);
    const pieces = node === undefined ? [message] : message.split(mentionsOf(node));
    const key = JSON.stringify(pieces);
    const known = reasons.get(key);
    if (known === undefined) {
      reasons.set(key, { nodes: node === undefined ? [] : [node], tell: (nodes) => pieces.join(nodes) });
    } else if (node !== undefined && !known.nodes.includes(node)) known.nodes.push(node);
  }
  return [...reasons.values()];
};
