/**
 * The lease log: `lease renew` and `lease allocate` as whole processes, allocations in one process beside an etcd, the
 * replay of a long log, and how all of it grows with the number of live leases. Measured on a node, of the product as
 * npm installs it; the log and etcd's data lie on the same disk of the host.
 */
import { posix } from 'node:path';
import { bundleText } from '../support/bundle.ts';
import { Cluster } from '../support/cluster/cluster.ts';
import type { Node } from '../support/cluster/node.ts';
import { interleave, type MeasureOn, measureOnce, type Usage } from './measure.ts';
import { type Goal, makeRow, type Row } from './rows.ts';

const PROGRAM = '/usr/bin/xce-sandbox';
const NODE_PROGRAM = '/usr/bin/node';
const NODE_ONLY = { name: 'node -e 0', argv: [NODE_PROGRAM, '-e', '0'] } as const;
const ETCD_URL = 'http://127.0.0.1:2379';
const RECORDS = 1_000_000;
const RENEW_LEASES = 100_000;
const LIVE_COUNTS = [10, 1000, 60_000] as const;
const PROCESS_ROUNDS = 15;
const RATE_ROUNDS = 5;
const REPLAY_ROUNDS = 3;
const OPERATIONS = 300;
const AT_ONCE = 100;
const MS_MAX = 300_000;

const configuration = (instance: string, pool: string): string => `[cluster]
name = bench
instance = ${instance}
[pool]
range = ${pool}
[directory]
control_uid = 1001
[lease]
directory = /ctl-shared/${instance}
storage = local
[nodes]
hosts = n[1-1000]
`;

type Report = (line: string) => void;
type Numbers = Readonly<Record<string, number>>;

/** The node with everything on it. */
type Bench = {
  readonly node: Node;
  readonly report: Report;
  /** Runs a part of lease-program.ts to its end and returns what it says. */
  part(...words: readonly string[]): Promise<Numbers>;
};

const takeNumber = (numbers: Numbers, name: string): number => {
  const value = numbers[name];
  if (value === undefined) throw new Error(`the program did not say ${name}`);
  return value;
};

/** Bundled to lie beside the product, whose packages it shares. */
const installProgram = async (node: Node): Promise<string> => {
  const text = await bundleText(new URL('./lease-program.ts', import.meta.url));
  const program = (await node.must(['readlink', '-f', PROGRAM])).trim();
  const path = posix.join(posix.dirname(program), '../dist/bench-lease.mjs');
  await node.writeFile(path, text);
  return path;
};

const openBench = async (node: Node, report: Report): Promise<Bench> => {
  const program = await installProgram(node);
  return {
    node,
    report,
    part: async (...words) => {
      const said = await node.must([NODE_PROGRAM, program, ...words], { timeoutMs: MS_MAX });
      return said === '' ? {} : (JSON.parse(said) as Numbers);
    },
  };
};

/** A log with that many live leases; returns the path of its configuration. */
const fillLog = async ({ node, part, report }: Bench, instance: string, leases: number): Promise<string> => {
  report(`a log of ${leases} live leases`);
  const config = `/etc/xce-sandbox/${instance}.ini`;
  const pool = leases < 10_000 ? '70000-79999' : '1900000000-1900199999';
  await node.writeFile(config, configuration(instance, pool));
  await node.must(['install', '-d', '-m', '0700', `/ctl-shared/${instance}`]);
  await part('fill', config, String(leases));
  return config;
};

const megabytes = ({ peakMiB }: Usage): number => peakMiB * 1.048576;

const processNumbers = (goals: {
  readonly cpu: Goal | null;
  readonly wall: Goal | null;
  readonly peak: Goal | null;
}) =>
  [
    { unit: 'ms CPU', of: (usage: Usage) => usage.cpuMs, goal: goals.cpu },
    { unit: 'ms wall', of: (usage: Usage) => usage.wallMs, goal: goals.wall },
    { unit: 'MB peak', of: megabytes, goal: goals.peak },
  ] as const;

type Command = { readonly name: string; readonly argv: readonly string[] };

const compareProcesses = async (
  { node, report }: Bench,
  subject: Command,
  peer: Command,
  goals: Parameters<typeof processNumbers>[0],
): Promise<readonly Row[]> => {
  report(`${subject.name}: ${PROCESS_ROUNDS} rounds`);
  const onNode: MeasureOn = (argv, timeoutMs) => node.exec(argv, { timeoutMs });
  const runs = await interleave(
    PROCESS_ROUNDS,
    () => measureOnce(onNode, subject.argv),
    () => measureOnce(onNode, peer.argv),
  );
  return processNumbers(goals).map(({ unit, of, goal }) =>
    makeRow({
      name: subject.name,
      unit,
      values: runs.subject.map(of),
      peer: peer.name,
      peerValues: runs.peer.map(of),
      goal,
    }),
  );
};

const benchRenew = async (bench: Bench): Promise<readonly Row[]> => {
  const config = await fillLog(bench, 'renew', RENEW_LEASES);
  const job = String(4_000_000 + RENEW_LEASES / 2);
  return await compareProcesses(
    bench,
    {
      name: `lease renew, ${RENEW_LEASES} live`,
      argv: [PROGRAM, 'lease', 'renew', '--config', config, '--job', job],
    },
    NODE_ONLY,
    { cpu: { ratioAtMost: 1.3 }, wall: null, peak: { valueAtMost: 60 } },
  );
};

/** Rates of two parts, by turns. */
const compareRates = async (
  { part, report }: Bench,
  subject: { readonly name: string; readonly words: readonly string[] },
  peer: { readonly name: string; readonly words: readonly string[] },
  goal: Goal | null,
): Promise<Row> => {
  report(`${subject.name}, ${peer.name}: ${RATE_ROUNDS} rounds of ${OPERATIONS}`);
  const rate = async (words: readonly string[]): Promise<number> =>
    takeNumber(await part(...words), 'perSecond');
  const runs = await interleave(
    RATE_ROUNDS,
    () => rate(subject.words),
    () => rate(peer.words),
  );
  const [values, peerValues] = [runs.subject, runs.peer];
  return makeRow({ name: subject.name, unit: '1/s', values, peer: peer.name, peerValues, goal });
};

/** Its data lie beside the lease log, which Debian's own service would not do. */
const startEtcd = async (node: Node): Promise<void> => {
  await node.must(['systemctl', 'stop', 'etcd.service']);
  await node.must(['install', '-d', '-m', '0700', '/ctl-shared/etcd']);
  const etcd = await node.spawn(['etcd', '--data-dir', '/ctl-shared/etcd', '--logger', 'zap']);
  etcd.stdout.resume();
  await new Promise<void>((resolve, reject) => {
    let said = '';
    etcd.stderr.on('data', (chunk: Buffer) => {
      said = `${said}${chunk.toString('utf8')}`.slice(-8000);
      if (said.includes('ready to serve client requests')) resolve();
    });
    void etcd.ended.then(() => reject(new Error(`etcd has ended: ${said}`)));
  });
};

const benchCommits = async (bench: Bench): Promise<readonly Row[]> => {
  const config = await fillLog(bench, 'commit', 10);
  await startEtcd(bench.node);
  const ours = (atOnce: number) => ({
    name: `allocate, ${atOnce} at once`,
    words: ['allocate', config, String((atOnce * OPERATIONS) / (atOnce > 1 ? 10 : 1)), String(atOnce)],
  });
  const theirs = (method: 'put' | 'grant', atOnce: number) => ({
    name: `etcd ${method}, ${atOnce} at once`,
    words: [method, ETCD_URL, String((atOnce * OPERATIONS) / (atOnce > 1 ? 10 : 1)), String(atOnce)],
  });
  const rows: Row[] = [];
  for (const method of ['put', 'grant'] as const) {
    // What the disk gives to whoever appends to a file and waits for it: nobody's commit is faster.
    const floor = { name: 'append and fsync', words: ['append', '/ctl-shared', String(OPERATIONS)] };
    rows.push(await compareRates(bench, floor, theirs(method, 1), null));
    rows.push(await compareRates(bench, ours(1), theirs(method, 1), { ratioAtLeast: 2 }));
    rows.push(await compareRates(bench, ours(AT_ONCE), theirs(method, 1), { ratioAtLeast: 5 }));
    rows.push(await compareRates(bench, ours(AT_ONCE), theirs(method, AT_ONCE), null));
  }
  return rows;
};

const benchReplay = async ({ node, part, report }: Bench): Promise<readonly Row[]> => {
  const directory = '/ctl-shared/replay';
  report(`a log of ${RECORDS} records`);
  await node.must(['install', '-d', '-m', '0700', directory]);
  await part('write-log', directory, String(RECORDS));
  report(`replay: ${REPLAY_ROUNDS} rounds`);
  const runs = await interleave(
    REPLAY_ROUNDS,
    () => part('replay', directory),
    () => part('replay-json', directory),
  );
  const row = (key: string, unit: string, goal: Goal): Row =>
    makeRow({
      name: `replay, ${RECORDS} records`,
      unit,
      values: runs.subject.map((run) => takeNumber(run, key)),
      peer: 'JSON lines and crc32',
      peerValues: runs.peer.map((run) => takeNumber(run, key)),
      goal,
    });
  return [row('ms', 'ms wall', { ratioAtMost: 0.25 }), row('peakMB', 'MB peak', { valueAtMost: 150 })];
};

const benchGrowth = async (bench: Bench): Promise<readonly Row[]> => {
  const places: { live: number; config: string }[] = [];
  for (const live of LIVE_COUNTS) places.push({ live, config: await fillLog(bench, `live${live}`, live) });
  const [base, ...others] = places;
  if (base === undefined) throw new Error('nothing to compare with');
  let jobs = 0;
  const process = (config: string): readonly string[] => {
    jobs += 1;
    const terms = ['--submitter', '1001', '--nodes', 'n1', '--job', `fresh${jobs}`];
    return [PROGRAM, 'lease', 'allocate', '--config', config, ...terms];
  };
  const onNode: MeasureOn = (argv, timeoutMs) => bench.node.exec(argv, { timeoutMs });
  const latency = async (config: string): Promise<number> =>
    takeNumber(await bench.part('allocate', config, String(OPERATIONS), '1'), 'msEach');
  const rows: Row[] = [];
  for (const { live, config } of others) {
    bench.report(`allocate with ${live} live leases`);
    const inProcess = await interleave(
      RATE_ROUNDS,
      () => latency(config),
      () => latency(base.config),
    );
    const fresh = await interleave(
      RATE_ROUNDS,
      async () => (await measureOnce(onNode, process(config))).wallMs,
      async () => (await measureOnce(onNode, process(base.config))).wallMs,
    );
    const goal = { ratioAtMost: 2 };
    const row = (name: string, runs: typeof fresh): Row =>
      makeRow({
        name: `${name}, ${live} live`,
        unit: 'ms wall',
        values: runs.subject,
        peer: `${base.live} live`,
        peerValues: runs.peer,
        goal,
      });
    rows.push(row('allocate in-process', inProcess), row('lease allocate', fresh));
  }
  return rows;
};

export const benchLease = async (report: Report): Promise<readonly Row[]> => {
  const cluster = await Cluster.start({ nodes: ['ctl'], layers: ['etcd'], report });
  try {
    const bench = await openBench(cluster.node('ctl'), report);
    const rows: Row[] = [];
    for (const part of [benchRenew, benchCommits, benchReplay, benchGrowth])
      rows.push(...(await part(bench)));
    return rows;
  } finally {
    await cluster.down();
  }
};
