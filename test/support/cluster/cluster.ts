/**
 * Real nodes for tests: systemd as PID 1 of each, one private network, one shared directory.
 *
 *   const cluster = await Cluster.start({ nodes: ['ctl', 'n1', 'n2'] });   // root; a minute the first time, then 3 s
 *   try {
 *     const end = await cluster.node('n1').exec(['id', '-u'], { uid: 1001 });
 *     end.exitCode; end.stdout;                                            // 0, Buffer
 *     const child = await cluster.node('n1').spawn(['sleep', '60']);       // runs on the node now
 *     child.kill('SIGKILL'); await child.ended;                            // { exitCode: null, signal: 'SIGKILL' }
 *     await cluster.node('n1').killHard(); await cluster.node('n1').boot();
 *   } finally {
 *     await cluster.down();
 *   }
 *
 * What each node has: Debian 13 with Open MPI 5, gcc and Node 20; no sshd, and a canary in place of ssh; the product,
 * installed by npm from the packed work tree (`product: false`: nodes without it); /shared on all nodes and /ctl-shared on
 * controllers alone, both plain directories of the host (`cluster.sharedPath`, `cluster.controllerSharedPath`); users
 * alice (1001) and bob (1002); all names in /etc/hosts. Several clusters can be up at once; each is alone in its network.
 *
 * Nothing is left after `down()`, nor after the end of the owner by any signal (see scope.ts).
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { furnishNode } from './furnish.ts';
import { requireRoot } from './host.ts';
import { type CacheEntry, prepareImage, type Suite } from './image.ts';
import { type LayerName, prepareLayer } from './layer.ts';
import { Node } from './node.ts';
import { mustRun } from './process.ts';
import { prepareProduct } from './product.ts';
import { Scope } from './scope.ts';

export type ClusterOptions = {
  /** Default: ctl, n1, n2, n3. Their addresses are 10.77.0.11, .12, … in this order. */
  readonly nodes?: readonly string[];
  /** Those of `nodes` that see /ctl-shared. Default: ctl. */
  readonly controllers?: readonly string[];
  /** Of Debian; default: trixie. */
  readonly suite?: Suite;
  /** Further packages on every node, topmost first; of trixie alone. */
  readonly layers?: readonly LayerName[];
  /** The packed work tree (true, the default), nothing (false), or a tarball of npm pack. */
  readonly product?: boolean | string;
  /** Further host directories to bind, [host path, path on the node]. */
  readonly binds?: readonly (readonly [string, string])[];
  /** Receives a line at each stage. */
  readonly report?: (line: string) => void;
};

/** As Promise.all, but nothing is still being made when it rejects. */
const allDone = async <T>(works: readonly Promise<T>[]): Promise<readonly T[]> => {
  await Promise.allSettled(works);
  return await Promise.all(works);
};

const inNetns = (netns: string, argv: readonly string[]): readonly string[] => [
  'nsenter',
  `--net=${netns}`,
  '--',
  ...argv,
];

const makeNetns = async (file: string): Promise<void> => {
  writeFileSync(file, '');
  await mustRun(['unshare', `--net=${file}`, 'ip', 'link', 'set', 'dev', 'lo', 'up']);
};

export class Cluster {
  readonly nodes: readonly Node[];
  /** Directory of the cluster on the host; gone after `down`. */
  readonly directory: string;
  readonly sharedPath: string;
  readonly controllerSharedPath: string;
  readonly #scope: Scope;

  private constructor(scope: Scope, nodes: readonly Node[]) {
    this.#scope = scope;
    this.nodes = nodes;
    this.directory = scope.directory;
    this.sharedPath = join(scope.directory, 'shared');
    this.controllerSharedPath = join(scope.directory, 'ctl-shared');
  }

  static async start(options: ClusterOptions = {}): Promise<Cluster> {
    requireRoot();
    const {
      nodes: names = ['ctl', 'n1', 'n2', 'n3'],
      controllers = ['ctl'],
      report = () => undefined,
    } = options;
    const image = await prepareImage(report, options.suite);
    const { product: wanted = true } = options;
    const tarball = typeof wanted === 'string' ? wanted : undefined;
    const product = wanted === false ? undefined : await prepareProduct(image, report, tarball);
    const further: CacheEntry[] = [];
    for (const name of options.layers ?? []) further.push(await prepareLayer(name, report));
    const layers = [...(product === undefined ? [] : [product]), ...further, image];
    const scope = await Scope.open(layers.map(({ entry }) => entry));
    try {
      report(`booting ${names.join(', ')}`);
      const cluster = new Cluster(
        scope,
        await Cluster.#prepare(
          scope,
          names,
          controllers,
          layers.map(({ root }) => root),
          options.binds ?? [],
        ),
      );
      await allDone(cluster.nodes.map((node) => node.boot()));
      return cluster;
    } catch (error) {
      await scope.close();
      throw error;
    }
  }

  static async #prepare(
    scope: Scope,
    names: readonly string[],
    controllers: readonly string[],
    lowerDirectories: readonly string[],
    binds: readonly (readonly [string, string])[],
  ): Promise<readonly Node[]> {
    const net = join(scope.directory, 'net');
    const shared = join(scope.directory, 'shared');
    const controllerShared = join(scope.directory, 'ctl-shared');
    for (const directory of [net, shared]) mkdirSync(directory, { mode: 0o755 });
    mkdirSync(controllerShared, { mode: 0o700 });
    const hub = join(net, 'hub');
    await makeNetns(hub);
    await mustRun(inNetns(hub, ['ip', 'link', 'add', 'name', 'bridge', 'type', 'bridge']));
    await mustRun(inNetns(hub, ['ip', 'link', 'set', 'dev', 'bridge', 'up']));
    const places = names.map((name, index) => ({ name, address: `10.77.0.${index + 11}` }));
    const hosts = [
      '127.0.0.1 localhost',
      ...places.map(({ name, address }) => `${address} ${name}`),
      '',
    ].join('\n');
    return await allDone(
      places.map(async ({ name, address }, index) => {
        const directory = join(scope.directory, 'nodes', name);
        for (const part of ['upper', 'work', 'root']) mkdirSync(join(directory, part), { recursive: true });
        const root = join(directory, 'root');
        const upper = `upperdir=${join(directory, 'upper')},workdir=${join(directory, 'work')}`;
        await mustRun([
          'mount',
          '-t',
          'overlay',
          'overlay',
          '-o',
          `lowerdir=${lowerDirectories.join(':')},${upper}`,
          root,
        ]);
        furnishNode(root, name, hosts, scope.id);
        const netns = join(net, name);
        const hubPort = `port${index}`;
        await makeNetns(netns);
        const pair = [
          'ip',
          'link',
          'add',
          'name',
          hubPort,
          'type',
          'veth',
          'peer',
          'name',
          'eth0',
          'netns',
          netns,
        ];
        await mustRun(inNetns(hub, pair));
        await mustRun(inNetns(hub, ['ip', 'link', 'set', 'dev', hubPort, 'master', 'bridge', 'up']));
        await mustRun(inNetns(netns, ['ip', 'address', 'add', `${address}/24`, 'dev', 'eth0']));
        await mustRun(inNetns(netns, ['ip', 'link', 'set', 'dev', 'eth0', 'up']));
        const controllerBind = [[controllerShared, '/ctl-shared']] as const;
        return new Node({
          name,
          address,
          directory,
          cgroups: scope.cgroups(name),
          machine: `xt${scope.id}-${name}`,
          netns,
          hubNetns: hub,
          hubPort,
          binds: [[shared, '/shared'], ...(controllers.includes(name) ? controllerBind : []), ...binds],
        });
      }),
    );
  }

  node(name: string): Node {
    const node = this.nodes.find((candidate) => candidate.name === name);
    if (node === undefined) throw new Error(`the cluster has no node ${name}`);
    return node;
  }

  /** Ends and removes everything; a second call does nothing more. */
  async down(): Promise<void> {
    await this.#scope.close();
  }

  /** Leaves the cluster up after the end of this process. `directory` is what to take down later. */
  async keep(): Promise<void> {
    await this.#scope.keep();
  }
}
