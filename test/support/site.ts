/**
 * A site that is ready for its first job: a cluster with certificates, configuration, running workers and a lease
 * log. Everything is done through the product's own commands, as an operator would.
 */
import { readFileSync } from 'node:fs';
import { Cluster, type ClusterOptions } from './cluster/cluster.ts';
import type { ExecOptions, Node } from './cluster/node.ts';

export const SUBMITTER = { name: 'alice', uid: 1001 } as const;
export const POOL = { first: 70_000, last: 70_015 } as const;
export const WORKSPACE = '/shared/xce';

export const CONFIG_PATH = '/etc/xce-sandbox/xce-sandbox.ini';

const configuration = (hosts: string, controlUid: number): string => `[cluster]
name = demo

[pool]
range = ${POOL.first}-${POOL.last}

[directory]
control_uid = ${controlUid}

[lease]
directory = /ctl-shared/leases
storage = local

[nodes]
hosts = ${hosts}

[sandbox]
stop_timeout = 3s

[storage shared]
path = /shared
workspace = ${WORKSPACE}

[mpi]
interfaces = 10.77.0.0/24
`;

export type CliEnd = {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
  /** stdout as bytes. */
  readonly bytes: Buffer;
};

export class Site {
  readonly cluster: Cluster;
  readonly controller: Node;
  readonly workers: readonly Node[];

  private constructor(cluster: Cluster, workers: readonly string[]) {
    this.cluster = cluster;
    this.controller = cluster.node('ctl');
    this.workers = workers.map((name) => cluster.node(name));
  }

  /** Boots ctl and the given nodes, default n1 to n3. `down()` must follow, whatever happens. */
  static async start(options: ClusterOptions & { readonly workers?: readonly string[] } = {}): Promise<Site> {
    const { workers = ['n1', 'n2', 'n3'], ...rest } = options;
    const cluster = await Cluster.start({ ...rest, nodes: ['ctl', ...workers] });
    try {
      return await Site.setUp(cluster);
    } catch (error) {
      await cluster.down();
      throw error;
    }
  }

  /** Makes a site of a cluster that is up: its node ctl is the controller, the others are workers unless told. */
  static async setUp(
    cluster: Cluster,
    options: { readonly workers?: readonly string[]; readonly controlUid?: number } = {},
  ): Promise<Site> {
    const others = cluster.nodes.map((node) => node.name).filter((name) => name !== 'ctl');
    const site = new Site(cluster, options.workers ?? others);
    await site.#setUp(options.controlUid ?? SUBMITTER.uid);
    return site;
  }

  async #setUp(controlUid: number): Promise<void> {
    const config = configuration(this.workers.map((node) => node.name).join(','), controlUid);
    await this.controller.must(['install', '-d', '-m', '0711', WORKSPACE]);
    await this.controller.must(['install', '-d', '-m', '0700', '/ctl-shared/leases']);
    await this.controller.must(['install', '-d', '-m', '0755', '/etc/xce-sandbox']);
    await this.controller.writeFile(CONFIG_PATH, config, { mode: 0o644 });
    await this.must('pki', 'init');
    await this.must('pki', 'issue', '--role', 'controller', '--node', 'ctl', '--out', '/etc/xce-sandbox/pki');
    await Promise.all(this.workers.map((node) => this.#setUpWorker(node, config)));
    await this.must('lease', 'init');
  }

  async #setUpWorker(node: Node, config: string): Promise<void> {
    const bundle = `/root/${node.name}-pki`;
    await this.must('pki', 'issue', '--role', 'worker', '--node', node.name, '--out', bundle);
    await node.must(['install', '-d', '-m', '0755', '/etc/xce-sandbox']);
    await node.must(['install', '-d', '-m', '0700', '/etc/xce-sandbox/pki']);
    for (const [file, mode] of [
      ['ca.crt', 0o644],
      ['ca.crl', 0o644],
      ['host.crt', 0o644],
      ['host.key', 0o600],
      ['ticket.pub', 0o644],
    ] as const) {
      await node.writeFile(
        `/etc/xce-sandbox/pki/${file}`,
        await this.controller.readFile(`${bundle}/${file}`),
        {
          mode,
        },
      );
    }
    await node.writeFile(CONFIG_PATH, config, { mode: 0o644 });
    await node.must([
      'sh',
      '-c',
      'cp "$(npm root -g)"/xce-sandbox/share/xce-sandbox-worker*.* /etc/systemd/system/',
    ]);
    await node.must(['systemctl', 'daemon-reload']);
    const units = ['xce-sandbox-worker-tls.socket', 'xce-sandbox-worker.service'];
    await node.must(['systemctl', 'enable', '--now', ...units]);
  }

  /** Runs `xce-sandbox ARGS` on the controller as root. */
  async run(args: readonly string[], options: ExecOptions = {}): Promise<CliEnd> {
    const end = await this.controller.exec(['xce-sandbox', ...args], { timeoutMs: 120_000, ...options });
    return {
      status: end.exitCode,
      stdout: end.stdout.toString('utf8'),
      stderr: end.stderr.toString('utf8'),
      bytes: end.stdout,
    };
  }

  /** The same, but any status except 0 is an error that says what the command said. */
  async must(...args: readonly string[]): Promise<string> {
    const end = await this.run(args);
    if (end.status !== 0) {
      throw new Error(`xce-sandbox ${args.join(' ')}: status ${end.status}\n${end.stdout}\n${end.stderr}`);
    }
    return end.stdout;
  }

  async json<T>(...args: readonly string[]): Promise<T> {
    return JSON.parse(await this.must(...args, '--json')) as T;
  }

  /** Allocates a lease on the given nodes (default: all) and returns what the command printed. */
  async allocate(job: string, nodes?: string): Promise<Allocated> {
    return await this.json<Allocated>(
      ...['lease', 'allocate', '--job', job, '--submitter', String(SUBMITTER.uid), '--ttl', '10m'],
      ...['--nodes', nodes ?? this.workers.map((node) => node.name).join(',')],
    );
  }

  /** Builds one of test/cluster/programs for all nodes to run, with the MPI compiler of the node image unless told. */
  async compile(name: string, compiler = 'mpicc.openmpi', binary = name): Promise<string> {
    const source = readFileSync(new URL(`../cluster/programs/${name}.c`, import.meta.url));
    await this.controller.must(['install', '-d', '-m', '0755', '/shared/bin']);
    await this.controller.writeFile(`/shared/bin/${name}.c`, source, { mode: 0o644 });
    await this.controller.must([compiler, '-o', `/shared/bin/${binary}`, `/shared/bin/${name}.c`]);
    return `/shared/bin/${binary}`;
  }

  async down(): Promise<void> {
    await this.cluster.down();
  }
}

export type Allocated = {
  readonly outcome: 'granted' | 'repeated';
  readonly lease: number;
  readonly uid: number;
  readonly job: string;
  readonly attempt: number;
  readonly status: string;
  readonly remainingMs: number;
  readonly workspace: { readonly path: string } | null;
};
