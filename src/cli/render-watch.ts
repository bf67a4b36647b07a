/** The lease log as it goes on, a line for each thing. */
import { formatDuration } from '../base/duration.ts';
import { escapeText } from '../base/escape.ts';
import type { LeaseEvent } from '../lease/event.ts';
import { foldNodes } from '../nodes/hostlist.ts';
import type { LeaseFollowed } from '../operations/lease-log-ports.ts';

/** What an event says beside its kind and its lease. */
const describeEvent = (event: LeaseEvent): string => {
  switch (event.kind) {
    case 'allocate': {
      const { uid, job, attempt, submitter, nodes, term } = event;
      const who = `uid ${uid} for job ${escapeText(job)}, attempt ${attempt}, of uid ${submitter.uid}`;
      return `${who}, on ${foldNodes(nodes)}, for ${formatDuration(term.ttlMs)}`;
    }
    case 'renew':
      return `for ${formatDuration(event.term.ttlMs)}`;
    case 'bind':
    case 'join':
    case 'mounts':
    case 'certify':
      return event.node;
    case 'drain':
    case 'ask':
      return foldNodes(event.nonces.map(({ node }) => node));
    case 'normalised':
      return `${escapeText(event.path)}: ${event.walked} walked, ${event.changed} changed`;
    case 'quarantine':
      return `${event.quarantine.code}: ${escapeText(event.quarantine.text)}`;
    case 'reclaim':
      return `${event.node}, by ${escapeText(event.reclaim.by)}: ${escapeText(event.reclaim.reason)}`;
    case 'forget':
      return `${event.count} ended attempts`;
    case 'normalise':
    case 'free':
      return '';
  }
};

const lineOf = (event: LeaseEvent): string => {
  const lease = 'lease' in event ? [`lease ${event.lease}`] : [];
  return [event.kind, ...lease, describeEvent(event)].filter(Boolean).join('  ');
};

type Place = { readonly epoch: number; readonly sequence: number };
const describeRange = (from: Place, to: Place): string =>
  `from record ${from.sequence} of epoch ${from.epoch} to record ${to.sequence} of epoch ${to.epoch}`;

const linesOf = (thing: LeaseFollowed): readonly string[] => {
  switch (thing.type) {
    case 'events': {
      const at = new Date(thing.wallMs).toISOString();
      return thing.events.map((event) => `${at}  ${lineOf(event)}`);
    }
    case 'epoch': {
      const { wallMs, epoch, host, sequence } = thing;
      return [
        `${new Date(wallMs).toISOString()}  epoch ${epoch} of ${escapeText(host)}, behind record ${sequence}`,
      ];
    }
    case 'gap':
      return [`gap: ${describeRange(thing.from, thing.to)} the log was emptied before it was read`];
    case 'withdrawn':
      return [
        `withdrawn: storage lost what was shown ${describeRange(thing.from, thing.to)}; it does not count`,
      ];
  }
};

export const renderFollowed = (thing: LeaseFollowed): string =>
  linesOf(thing)
    .map((line) => `${line}\n`)
    .join('');
