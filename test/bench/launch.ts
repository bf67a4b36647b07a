/**
 * A launch as a whole process: beside a bare fan-out over node:tls to as many listeners, its output beside bare
 * HTTP/2, and on three real nodes beside systemd-run that is started there by nsenter, all at once, as pdsh does.
 */
import type { ChildProcess } from 'node:child_process';
import { CliHost, configuration } from '../cli/host.ts';
import { bundleText } from '../support/bundle.ts';
import type { Node } from '../support/cluster/node.ts';
import { Site } from '../support/site.ts';
import { interleave, measureOnce, onHost, type Usage } from './measure.ts';
import { makeRow, type Row } from './rows.ts';
import { firstOf, nameOf } from './worker-names.ts';

const SIZES = [64, 256, 1024] as const;
const LARGEST = 1024;
const SERVERS = 4;
const ROUNDS = 5;
const NODE_ROUNDS = 10;
const STREAM_BYTES = 512 << 20;
const PROGRAM = '/srv/bench/program.mjs';
/** Of the first worker; program.mjs makes those of the others from it. */
const MODEL = '/srv/bench/worker';
const OUTPUT = '/srv/bench/output';
const START_MS_MAX = 120_000;

type Report = (line: string) => void;
type Runs = { readonly subject: readonly Usage[]; readonly peer: readonly Usage[] };

const wallOf = ({ wallMs }: Usage): number => wallMs;
const cpuOf = ({ cpuMs }: Usage): number => cpuMs;

const bundle = (): Promise<string> =>
  bundleText(new URL('./launch-program.ts', import.meta.url), ['@peculiar/x509', 'reflect-metadata']);

const awaitReady = (server: ChildProcess): Promise<void> =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error('the servers did not start')), START_MS_MAX);
    server.stdout?.once('data', () => {
      clearTimeout(timer);
      resolve();
    });
    server.once('close', () => reject(new Error('a server ended')));
  });

class Fleet {
  readonly host: CliHost;
  readonly #servers: ChildProcess[] = [];

  private constructor(host: CliHost) {
    this.host = host;
  }

  static async start(report: Report): Promise<Fleet> {
    const fleet = new Fleet(await CliHost.start());
    try {
      await fleet.#setUp(report);
      return fleet;
    } catch (error) {
      await fleet.end();
      throw error;
    }
  }

  async #setUp(report: Report): Promise<void> {
    const { host } = this;
    const names = Array.from({ length: LARGEST }, (_, index) => index + 1);
    const hosts = names.map((index) => `127.77.${index >> 8}.${index & 255} ${nameOf(index)}\n`);
    host.write('/etc/hosts', `127.0.0.1 localhost\n${hosts.join('')}`);
    host.write('/etc/nsswitch.conf', 'passwd: files\ngroup: files\nhosts: files\n');
    host.write(
      '/etc/xce-sandbox/xce-sandbox.ini',
      configuration({ 'nodes.hosts': firstOf(LARGEST) }).replace(
        'connect_timeout = 2s',
        'connect_timeout = 60s',
      ),
    );
    // Beside the packages that it shares with the product.
    host.write(PROGRAM, await bundle());
    await host.shell('ln -s /mnt/product/node_modules /srv/bench/node_modules');
    await host.must(['lease', 'init']);
    await host.must(['pki', 'init']);
    const issue = ['pki', 'issue', '--out'];
    await host.must([...issue, '/etc/xce-sandbox/pki', '--role', 'controller', '--node', 'ctl']);
    await host.must([...issue, MODEL, '--role', 'worker', '--node', nameOf(1)]);
    report(`listeners of ${LARGEST} workers`);
    for (const size of SIZES) {
      const args = ['--submitter', '1001', '--workspace', 'none', '--ttl', '2h'];
      await host.must(['lease', 'allocate', '--job', `of${size}`, '--nodes', firstOf(size), ...args]);
    }
    const share = LARGEST / SERVERS;
    for (let index = 0; index < SERVERS; index += 1) {
      this.#servers.push(this.#begin('serve', MODEL, String(1 + index * share), String(share)));
    }
    await Promise.all(this.#servers.map(awaitReady));
  }

  #begin(...words: readonly string[]): ChildProcess {
    return this.host.serve([process.execPath, PROGRAM, ...words]);
  }

  /** A launch, or a bare part, measured. */
  measure(argv: readonly string[]): Promise<Usage> {
    return measureOnce((words, timeoutMs) => onHost(this.host.argvOf(words), timeoutMs), argv);
  }

  launch(size: number, ...args: readonly string[]): Promise<Usage> {
    return this.measure([
      ...[process.execPath, '--', '/mnt/product/bin/xce-sandbox', 'launch', '--job', `of${size}`],
      ...args,
    ]);
  }

  async end(): Promise<void> {
    for (const server of this.#servers) server.stdin?.end();
    await this.host.end();
  }
}

const benchFanOut = async (fleet: Fleet, report: Report): Promise<readonly Row[]> => {
  const rows: Row[] = [];
  const ours: { [size: number]: readonly Usage[] } = {};
  for (const size of SIZES) {
    report(`a launch on ${size} workers`);
    const runs: Runs = await interleave(
      ROUNDS,
      () => fleet.launch(size, '--', 'true'),
      () => fleet.measure([process.execPath, PROGRAM, 'bare', String(size)]),
    );
    ours[size] = runs.subject;
    const row = (what: string, of: (usage: Usage) => number, goal: Row['goal'], unit = 'ms'): Row =>
      makeRow({
        name: `launch on ${size} workers, ${what}`,
        unit,
        values: runs.subject.map(of),
        peer: 'bare node:tls',
        peerValues: runs.peer.map(of),
        goal,
      });
    rows.push(row('wall', wallOf, { ratioAtMost: 2 }), row('CPU', cpuOf, { ratioAtMost: 2 }));
    const peak = ({ peakMiB }: Usage): number => (peakMiB * 2 ** 20) / 1e6;
    rows.push(row('peak memory', peak, size === LARGEST ? { valueAtMost: 160 } : null, 'MB'));
  }
  const [smallest] = SIZES;
  for (const [what, of] of [
    ['wall', wallOf],
    ['CPU', cpuOf],
  ] as const) {
    rows.push(
      makeRow({
        name: `${what} of a launch on ${LARGEST} workers`,
        unit: 'ms',
        values: (ours[LARGEST] ?? []).map(of),
        peer: `on ${smallest}`,
        peerValues: (ours[smallest] ?? []).map(of),
        goal: { ratioAtMost: LARGEST / smallest },
      }),
    );
  }
  return rows;
};

const benchStream = async (fleet: Fleet, report: Report): Promise<Row> => {
  report('the output of one step');
  const perSecond = ({ wallMs }: Usage): number => STREAM_BYTES / 1e6 / (wallMs / 1000);
  const remove = (): Promise<unknown> => fleet.host.shell(`rm -f ${OUTPUT}`);
  const runs = await interleave(
    ROUNDS,
    async () => {
      await remove();
      return fleet.launch(64, '--nodes', nameOf(1), '--output', OUTPUT, '--', 'print', String(STREAM_BYTES));
    },
    async () => {
      await remove();
      return fleet.measure([process.execPath, PROGRAM, 'http2', OUTPUT, String(STREAM_BYTES)]);
    },
  );
  return makeRow({
    name: 'output of a step into a file',
    unit: 'MB/s',
    values: runs.subject.map(perSecond),
    peer: 'bare node:http2',
    peerValues: runs.peer.map(perSecond),
    goal: { ratioAtLeast: 0.5 },
  });
};

/** Within it the worker tells its watchdog at most twice that it lives. */
const WATCH_MS = 58_000;
/** Two of the worker's own looks at whether it is idle, and what V8 and the connections of the launches do meanwhile. */
const SETTLE_MS = 90_000;

const residentOf = (status: string): number =>
  (Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1]) * 1024) / 1e6;

const residentOfNode = async (site: Site): Promise<number> => {
  const program = 'process.stdout.write(require("fs").readFileSync("/proc/self/status"))';
  return residentOf((await site.workers[0]?.must(['node', '-e', program])) ?? '');
};

type Idle = { readonly residentMB: number; readonly wakeUps: number; readonly watchdog: number };

/** What the workers, which have a sandbox each, hold and do while nobody asks them for anything. */
const watchIdle = async (site: Site): Promise<readonly Idle[]> => {
  const wakeUpsOf = async (node: Node): Promise<number> => {
    const script = 'cat /proc/$(systemctl show -P MainPID xce-sandbox-worker)/task/*/status';
    const text = await node.must(['sh', '-c', script]);
    return [...text.matchAll(/^voluntary_ctxt_switches:\s+(\d+)$/gm)].reduce(
      (sum, [, count]) => sum + Number(count),
      0,
    );
  };
  await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
  const before = await Promise.all(site.workers.map(wakeUpsOf));
  const beganMs = performance.now();
  await new Promise((resolve) => setTimeout(resolve, WATCH_MS));
  const after = await Promise.all(site.workers.map(wakeUpsOf));
  const lastedMs = performance.now() - beganMs;
  return await Promise.all(
    site.workers.map(async (node, index) => {
      const of = '/proc/$(systemctl show -P MainPID xce-sandbox-worker)';
      const unit = await node.must(['sh', '-c', `cat ${of}/status ${of}/environ | tr "\\0" "\\n"`]);
      const intervalMs = Number(/^WATCHDOG_USEC=(\d+)$/m.exec(unit)?.[1]) / 2000;
      return {
        residentMB: residentOf(unit),
        wakeUps: (after[index] ?? 0) - (before[index] ?? 0),
        // It keeps its watchdog content twice in its interval.
        watchdog: Math.ceil(lastedMs / intervalMs),
      };
    }),
  );
};

const benchNodes = async (report: Report): Promise<readonly Row[]> => {
  report('three nodes');
  const site = await Site.start();
  try {
    await site.allocate('42');
    const enter = (pid: number): string => `nsenter --target ${pid} -m -u -i -n -p -C --root --wd --`;
    const [ctl, ...pids] = [site.controller, ...site.workers].map((node) => node.leaderPid);
    const all = pids.map((pid) => `${enter(pid)} systemd-run --wait --quiet true & `).join('');
    const runs = await interleave(
      NODE_ROUNDS,
      () =>
        measureOnce(onHost, ['/bin/sh', '-c', `exec ${enter(ctl ?? 0)} xce-sandbox launch --job 42 -- true`]),
      () => measureOnce(onHost, ['/bin/sh', '-c', `${all} wait`]),
    );
    report('an idle worker');
    const idle = await watchIdle(site);
    return [
      makeRow({
        name: 'launch -- true on three nodes, sandbox there',
        unit: 'ms',
        values: runs.subject.map(wallOf),
        peer: 'systemd-run --wait by nsenter',
        peerValues: runs.peer.map(wallOf),
        goal: { ratioAtMost: 1.2 },
      }),
      makeRow({
        name: 'idle worker, resident',
        unit: 'MB',
        values: idle.map(({ residentMB }) => residentMB),
        peer: 'node -e',
        peerValues: [await residentOfNode(site)],
        goal: { valueAtMost: 60 },
      }),
      makeRow({
        name: `idle worker, wake-ups of all threads in ${WATCH_MS / 1000} s`,
        unit: '1',
        values: idle.map(({ wakeUps }) => wakeUps),
        peer: 'for its watchdog, at most',
        peerValues: idle.map(({ watchdog }) => watchdog),
        goal: { ratioAtMost: 1 },
      }),
    ];
  } finally {
    await site.down();
  }
};

export const benchLaunch = async (report: Report): Promise<readonly Row[]> => {
  const fleet = await Fleet.start(report);
  let rows: readonly Row[];
  try {
    rows = [...(await benchFanOut(fleet, report)), await benchStream(fleet, report)];
  } finally {
    await fleet.end();
  }
  return [...rows, ...(await benchNodes(report))];
};
