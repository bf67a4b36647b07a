/**
 * Start-up: what each command costs beside `node -e 0`, which is the floor for anything on Node. Measured on a node, of
 * the product as npm installs it, with a lease log of one lease.
 */
import { Cluster } from '../support/cluster/cluster.ts';
import type { Node } from '../support/cluster/node.ts';
import { interleave, type MeasureOn, measureOnce, type Usage } from './measure.ts';
import { type Goal, makeRow, type Row } from './rows.ts';

const ROUNDS = 15;

type Case = {
  readonly name: string;
  readonly argv: readonly string[];
  /** On the CPU time; wall time and memory are shown without one. */
  readonly goal: Goal | null;
};

const PROGRAM = '/usr/bin/xce-sandbox';
const PEER_NAME = 'node -e 0';
const PEER = ['/usr/bin/node', '-e', '0'] as const;

const CASES: readonly Case[] = [
  { name: '--version', argv: ['--version'], goal: null },
  { name: 'config show', argv: ['config', 'show'], goal: null },
  { name: 'lease show', argv: ['lease', 'show', '--job', '42'], goal: null },
];

const CONFIGURATION = `[cluster]
name = bench
[pool]
range = 70000-79999
[directory]
control_uid = 1001
[lease]
directory = /var/lib/xce-lease
storage = local
[nodes]
hosts = n1
`;

const NUMBERS = [
  { unit: 'ms CPU', of: (usage: Usage) => usage.cpuMs },
  { unit: 'ms wall', of: (usage: Usage) => usage.wallMs },
  { unit: 'MiB peak', of: (usage: Usage) => usage.peakMiB },
] as const;

const prepare = async (node: Node): Promise<void> => {
  await node.writeFile('/etc/xce-sandbox/xce-sandbox.ini', CONFIGURATION);
  await node.must(['install', '-d', '-m', '0700', '/var/lib/xce-lease']);
  await node.must([PROGRAM, 'pki', 'init']);
  await node.must([PROGRAM, 'lease', 'init']);
  const terms = ['--job', '42', '--submitter', '1001', '--nodes', 'n1', '--ttl', '1h'];
  await node.must([PROGRAM, 'lease', 'allocate', ...terms]);
};

export const benchStartup = async (report: (line: string) => void): Promise<readonly Row[]> => {
  const cluster = await Cluster.start({ nodes: ['ctl'], report });
  try {
    const node = cluster.node('ctl');
    await prepare(node);
    const onNode: MeasureOn = (argv, timeoutMs) => node.exec(argv, { timeoutMs });
    const rows: Row[] = [];
    for (const { name, argv, goal } of CASES) {
      report(`${name}: ${ROUNDS} rounds`);
      const runs = await interleave(
        ROUNDS,
        () => measureOnce(onNode, [PROGRAM, ...argv]),
        () => measureOnce(onNode, PEER),
      );
      NUMBERS.forEach(({ unit, of }, index) => {
        const [values, peerValues] = [runs.subject.map(of), runs.peer.map(of)];
        rows.push(
          makeRow({ name, unit, values, peer: PEER_NAME, peerValues, goal: index === 0 ? goal : null }),
        );
      });
    }
    return rows;
  } finally {
    await cluster.down();
  }
};
