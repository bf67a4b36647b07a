/** Which nodes a batch system is to give no further job, why, and how it is told. */
import type { NodeName } from '../base/ids.ts';
import { foldNodes } from '../nodes/hostlist.ts';
import { type Failure, foldReasons } from '../nodes/reasons.ts';
import type { SchedulerName } from './schedulers.ts';

export type NodesToDrain = { readonly nodes: readonly NodeName[]; readonly reason: string };

/** What `sinfo -R`, `pbsnodes -l` and `flux resource drain` show without wrapping a terminal many times. */
const REASON_CHARS_MAX = 200;
/** Each reason is a run of the program that drains. */
const REASONS_MAX = 8;

const reasonOf = (text: string): string => {
  const reason = `xce-sandbox: ${text}`;
  return reason.length <= REASON_CHARS_MAX ? reason : `${reason.slice(0, REASON_CHARS_MAX - 1)}~`;
};

/** Exactly the nodes that are at fault, each once, those of one reason together, and beyond a bound all others. */
export const nodesToDrain = (faults: readonly Failure[]): readonly NodesToDrain[] => {
  const seen = new Set<string | undefined>();
  const first = faults.filter(({ facts }) => !seen.has(facts.at) && seen.add(facts.at));
  const all = foldReasons(first).filter(({ nodes }) => nodes.length > 0);
  const told = all.slice(0, REASONS_MAX);
  const rest = all.slice(REASONS_MAX).flatMap(({ nodes }) => nodes);
  return [
    ...told.map(({ nodes, tell }) => ({ nodes, reason: reasonOf(tell(foldNodes(nodes))) })),
    ...(rest.length === 0 ? [] : [{ nodes: rest, reason: reasonOf('not certified clean; lease show') }]),
  ];
};

/**
 * Arguments of the program with which an administrator of that batch system drains nodes; the site's own program gets
 * the nodes and the reason.
 */
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
