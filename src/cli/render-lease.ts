/** Leases as an operator reads them. */
import { formatDuration } from '../base/duration.ts';
import { escapeText } from '../base/escape.ts';
import type { NodeName } from '../base/ids.ts';
import type { Reclaim } from '../lease/event.ts';
import type { LeaseView } from '../lease/view.ts';
import { foldNodes } from '../nodes/hostlist.ts';
import { sumCounts } from '../normalise/report.ts';
import type { EpilogResult } from '../operations/epilog.ts';
import type { AllocateResult } from '../operations/lease-allocate.ts';
import type { ExpireResult } from '../operations/lease-expire.ts';
import type { ClockReport, LogVerification } from '../operations/lease-log.ts';
import type { StorageProbe } from '../operations/lease-probe.ts';
import type { ReleaseResult } from '../operations/lease-release.ts';
import type { RepairResult } from '../operations/lease-repair.ts';
import type { AuditResult } from '../operations/uid-audit.ts';
import type { LogPosition } from '../wal/log.ts';
import { formatTable } from './print.ts';

const describeTime = (lease: LeaseView): string => {
  if (lease.status !== 'active') return '-';
  if (lease.remainingMs > 0) return formatDuration(lease.remainingMs);
  // 'expired' is what `lease expire` makes of it.
  return lease.expiry === 'expired' ? 'over' : lease.expiry;
};

const describeLeft = (lease: LeaseView): string => {
  const [left, ttl] = [describeTime(lease), formatDuration(lease.ttlMs)];
  if (lease.status !== 'active') return left;
  return lease.remainingMs > 0 ? `${left} of ${ttl}` : `${left} (it was ${ttl})`;
};

const returning = (lease: LeaseView): readonly NodeName[] =>
  lease.nodes.filter((node) => node.reclaim !== null).map(({ node }) => node);

/** Those whose return is waited for, together where the same operator has given his word for them. */
const describeGone = (lease: LeaseView): readonly string[] => {
  const nodesOf = new Map<string, NodeName[]>();
  for (const { node, reclaim } of lease.nodes) {
    if (reclaim === null) continue;
    const known = nodesOf.get(reclaim.by);
    if (known === undefined) nodesOf.set(reclaim.by, [node]);
    else known.push(node);
  }
  return [...nodesOf].map(
    ([by, nodes]) => `the return of ${foldNodes(nodes)}, reclaimed by ${escapeText(by)}`,
  );
};

const describeWait = (lease: LeaseView): string => {
  const uncertified = lease.nodes
    .filter((node) => !node.certified && node.reclaim === null)
    .map(({ node }) => node);
  if (lease.status === 'quarantined' && lease.quarantine !== null) {
    const { code, text } = lease.quarantine;
    const gone = describeGone(lease);
    // The text of a reclaim names the nodes that are gone, and none of the others.
    const others = uncertified.length > 0 ? [`certificate of ${foldNodes(uncertified)}`] : [];
    const reasons =
      code === 'reclaimed' && gone.length > 0 ? [...others, ...gone] : [escapeText(text), ...gone];
    return `${code}: ${reasons.join('; ')}`;
  }
  if (lease.status === 'active') return '-';
  if (uncertified.length > 0) return `certificate of ${foldNodes(uncertified)}`;
  const gone = returning(lease);
  return gone.length > 0 ? `normalise, and the return of ${foldNodes(gone)}` : 'normalise';
};

export const renderLeases = (leases: readonly LeaseView[]): string =>
  formatTable(
    ['LEASE', 'UID', 'JOB', 'ATTEMPT', 'STATE', 'LEFT', 'NODES', 'WAITS FOR'],
    leases.map((lease) => [
      String(lease.lease),
      String(lease.uid),
      lease.job,
      String(lease.attempt),
      lease.status,
      describeTime(lease),
      foldNodes(lease.nodes.map(({ node }) => node)),
      describeWait(lease),
    ]),
  );

type Field = readonly [name: string, value: string];

const renderFields = (fields: readonly Field[]): string => {
  const width = Math.max(...fields.map(([name]) => name.length));
  return fields.map(([name, value]) => `${`${name}:`.padEnd(width + 2)}${value}\n`).join('');
};

const describeReclaim = ({ by, reason, wallMs }: Reclaim): string =>
  `by ${escapeText(by)} at ${new Date(wallMs).toISOString()}: ${escapeText(reason)}`;

const fieldsOfLease = (lease: LeaseView): readonly Field[] => [
  ['lease', String(lease.lease)],
  ['uid', String(lease.uid)],
  ['job', `${lease.job} (attempt ${lease.attempt})`],
  ['state', lease.status],
  ['left', describeLeft(lease)],
  ['waits for', describeWait(lease)],
  ['submitter', `${lease.submitter.uid}:${lease.submitter.gid}`],
  ['nodes', foldNodes(lease.nodes.map(({ node }) => node))],
  ['certified', foldNodes(lease.nodes.filter((node) => node.certified).map(({ node }) => node)) || '-'],
  ...lease.nodes.flatMap(({ node, reclaim }): readonly Field[] =>
    reclaim === null ? [] : [['reclaimed', `${node} ${describeReclaim(reclaim)}`]],
  ),
  ['workspace', lease.workspace === null ? '-' : escapeText(lease.workspace.path)],
  ...lease.roots.map(({ path }): Field => ['writes', escapeText(path)]),
];

export const renderLease = (lease: LeaseView): string => renderFields(fieldsOfLease(lease));

export const renderAllocated = ({ outcome, ...lease }: AllocateResult): string =>
  renderFields([['outcome', outcome], ...fieldsOfLease(lease)]);

export const renderExpired = ({ outcomes }: ExpireResult): string =>
  formatTable(
    ['LEASE', 'UID', 'JOB', 'ATTEMPT', 'OUTCOME'],
    outcomes.map(({ lease, uid, job, attempt, outcome }) => [
      String(lease),
      String(uid),
      job,
      String(attempt),
      outcome,
    ]),
  );

export const renderAudit = (result: AuditResult): string =>
  renderFields([
    ['leases', String(result.leases)],
    ['uid unknown to all', String(result.absent)],
    ['not asked', String(result.skipped)],
  ]) +
  (result.found.length === 0
    ? ''
    : formatTable(
        ['LEASE', 'UID', 'JOB', 'ATTEMPT', 'ANSWER', 'REASON'],
        result.found.map(({ lease, uid, job, attempt, answer, reason }) => [
          String(lease),
          String(uid),
          job,
          String(attempt),
          answer,
          escapeText(reason),
        ]),
      ));

export const renderReleased = (result: ReleaseResult): string =>
  renderFields([
    ['lease', String(result.lease)],
    ['uid', `${result.uid} is free`],
    ['job', `${result.job} (attempt ${result.attempt})`],
    ['certified', foldNodes(result.nodes)],
    ...result.roots.map(
      (root): Field => ['handed over', `${sumCounts(root.changed)} inodes below ${escapeText(root.root)}`],
    ),
  ]);

export const renderEpilog = (result: EpilogResult): string =>
  result.outcome === 'released'
    ? renderReleased(result.released)
    : renderFields([
        ['job', `${result.job} (attempt ${result.attempt})`],
        ['outcome', result.outcome === 'ended' ? 'it was released before' : 'it never had a lease'],
      ]);

const fieldsOfPosition = ({ epoch, host, sequence }: LogPosition): readonly Field[] => [
  ['epoch', String(epoch)],
  ['owner', escapeText(host)],
  ['records', String(sequence)],
];

export const renderPosition = (position: LogPosition): string => renderFields(fieldsOfPosition(position));

/** The log may be whole, and this host fenced all the same. */
const describeRepair = (repaired: boolean, owned: boolean): string => {
  if (repaired) return 'repaired';
  return owned
    ? 'nothing was wrong'
    : 'the log is whole; this host does not own it, and writes only after "lease takeover"';
};

export const renderRepair = ({ repaired, owned, kept, ...position }: RepairResult): string =>
  renderFields([
    ['outcome', describeRepair(repaired, owned)],
    ...fieldsOfPosition(position),
    ...kept.map(
      ({ path, offset, bytes }): Field => ['kept', `${path}: ${bytes} bytes from offset ${offset}`],
    ),
  ]);

export const renderProbe = ({ directory, type, source, probe }: StorageProbe): string =>
  renderFields([
    ['directory', escapeText(directory)],
    ['storage', `${escapeText(source)} (${type})`],
    ...(probe.peer === null
      ? []
      : [
          ['peer', probe.peer.node] as const,
          ['looks', `${probe.peer.rounds} of each host, ${probe.peer.stale} stale`] as const,
        ]),
    ...probe.kept.map((promise): Field => ['kept', promise]),
  ]);

const describeSkew = (skewMs: number | null): string => {
  if (skewMs === null) return 'not measured: something stands behind the newest record';
  const apart = `${formatDuration(Math.abs(skewMs))} ${skewMs < 0 ? 'behind' : 'ahead of'}`;
  return `storage is ${Math.abs(skewMs) < 1000 ? 'in step with' : apart} the writer of the newest record`;
};

const describeNewest = ({ newestAgeMs, behindMs }: ClockReport): string =>
  behindMs < 1000
    ? `written ${formatDuration(newestAgeMs)} ago`
    : `written by a clock that is ${formatDuration(behindMs)} ahead of this host's, or more`;

export const renderVerification = (result: LogVerification): string =>
  renderFields([
    ...fieldsOfPosition(result),
    ['torn bytes', String(result.tornBytes)],
    ['leases', String(result.leases)],
    ...result.epochs.map(({ epoch, status, records, bytes }): [string, string] => [
      `epoch ${epoch}`,
      `${status}, ${records} records, ${bytes} bytes`,
    ]),
    ['skew', describeSkew(result.clocks.storageSkewMs)],
    ['newest', describeNewest(result.clocks)],
  ]);
