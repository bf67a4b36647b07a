/** What jobs, nodes and walks look like to an operator. */
import { formatDuration } from '../base/duration.ts';
import { escapeText } from '../base/escape.ts';
import { foldNodes } from '../nodes/hostlist.ts';
import { sumCounts } from '../normalise/report.ts';
import type { NormaliseResult } from '../operations/normalise.ts';
import type { ReconcileResult } from '../operations/reconcile.ts';
import type { StatusResult } from '../operations/status.ts';
import type { StopResult } from '../operations/stop.ts';
import { formatTable } from './print.ts';
import { renderLeases } from './render-lease.ts';

export const renderStopped = ({ lease, job, stopped, idle }: StopResult): string =>
  `lease ${lease} (job ${job}): ended on ${foldNodes(stopped) || 'no node'}` +
  `${idle.length === 0 ? '' : `; nothing to end on ${foldNodes(idle)}`}\n`;

export const renderStatus = ({ leases, pool, nodes }: StatusResult): string =>
  [
    `pool: ${pool.leased} of ${pool.size} uids leased\n`,
    ...(leases.length === 0 ? [] : ['\n', renderLeases(leases)]),
    '\n',
    formatTable(
      ['NODE', 'LEASE', 'JOB', 'UID', 'SANDBOX', 'LEFT', 'STEPS'],
      nodes.flatMap((node) => {
        if (!node.reachable)
          return [[node.node, '-', '-', '-', node.error.code, '-', escapeText(node.error.message)]];
        if (node.sandboxes.length === 0) return [[node.node, '-', '-', '-', 'none', '-', '']];
        return node.sandboxes.map((box) => [
          node.node,
          String(box.lease),
          box.job,
          String(box.uid),
          box.state,
          formatDuration(box.remainingMs),
          box.steps.map((step) => `${step.kind}:${step.step}`).join(' '),
        ]);
      }),
    ),
  ].join('');

const SHOWN_PER_FINDING = 3;

export const renderNormalised = ({ uid, mode, status, roots }: NormaliseResult): string =>
  [
    `${mode} of uid ${uid}: ${status}\n`,
    formatTable(
      ['ROOT', 'STATUS', 'NAMES', 'OWNED', 'CHANGED', 'LEFT', 'SECONDS'],
      roots.map((root) => [
        escapeText(root.root),
        root.status,
        String(sumCounts(root.names)),
        String(sumCounts(root.owned)),
        String(sumCounts(root.changed)),
        String(root.left),
        root.seconds.toFixed(1),
      ]),
    ),
    ...roots.flatMap((root) => [
      ...(root.refusal === null ? [] : [`${escapeText(root.root)}: ${root.refusal.message}\n`]),
      ...root.findings.map(
        (one) =>
          `${one.blocks ? 'blocks' : 'note'}: ${one.reason}${one.errno === null ? '' : ` ${one.errno}`}: ` +
          `${one.count}, ${one.hint}` +
          `${one.samples
            .slice(0, SHOWN_PER_FINDING)
            .map(({ shown }) => `\n    ${shown}`)
            .join('')}\n`,
      ),
    ]),
  ].join('');

export const renderReconciled = ({ differences, mended }: ReconcileResult): string =>
  [
    ...mended.map(({ difference, failed }) => {
      const what = `${difference.kind} ${difference.lease ?? ''}`.trim();
      return `${failed === null ? 'mended' : 'not mended'}: ${what}${
        failed === null ? '' : `: ${escapeText(failed.message)}`
      }\n`;
    }),
    ...(differences.length === 0
      ? ['nothing differs\n']
      : [
          formatTable(
            ['WHAT', 'LEASE', 'JOB', 'NODES', 'MEND', 'DETAIL'],
            differences.map((one) => [
              one.kind,
              one.lease === null ? '-' : String(one.lease),
              one.job ?? '-',
              foldNodes(one.nodes) || '-',
              one.mend ?? 'by hand',
              escapeText(one.text),
            ]),
          ),
          ...[...new Set(differences.flatMap(({ mend, next }) => (mend === null ? [next] : [])))].map(
            (next) => `next: ${escapeText(next)}\n`,
          ),
        ]),
  ].join('');
