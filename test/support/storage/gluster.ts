/**
 * A replica-3 Gluster volume on three nodes (g1, g2, g3) and two controllers (ctl1, ctl2) that mount it at MOUNT, each
 * as a client of its own. A brick is killed with `killBrick`, a node cut off or switched off with the verbs of Node.
 * Bring-up takes about ten seconds; whatever ends the owner, nothing is left (see cluster/scope.ts).
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Cluster, type ClusterOptions } from '../cluster/cluster.ts';
import type { Node } from '../cluster/node.ts';

export const MOUNT = '/ctl-shared';
export const VOLUME = 'gv0';

const BRICK = '/bricks/b';
const BRICK_NODES = ['g1', 'g2', 'g3'] as const;
const CONTROLLERS = ['ctl1', 'ctl2'] as const;

/** Python that glusterd runs at its start, for 6 to 20 s, where the program is there. */
const GEO_REPLICATION = '/usr/lib/x86_64-linux-gnu/glusterfs/gsyncd';

const UP_MS_MAX = 60_000;
const HEAL_MS_MAX = 60_000;

/** Waits until `fact` is true, asking again and again; there is no event to wait for on another node. */
export const until = async (
  what: string,
  timeoutMs: number,
  fact: () => Promise<boolean> | boolean,
  intervalMs = 50,
): Promise<void> => {
  const deadline = performance.now() + timeoutMs;
  while (!(await fact())) {
    if (performance.now() > deadline) throw new Error(`${what}: not within ${timeoutMs} ms`);
    await new Promise((resolve) => setTimeout(resolve, intervalMs));
  }
};

/** Where a client shows what it does; see src/os/gluster-client.ts. */
const clientPath = (path: string): string => join(MOUNT, '.meta/graphs/active', path);

export class GlusterLab {
  readonly cluster: Cluster;
  readonly bricks: readonly Node[];
  readonly controllers: readonly [Node, Node];
  readonly #first: Node;

  private constructor(cluster: Cluster) {
    this.cluster = cluster;
    this.bricks = BRICK_NODES.map((name) => cluster.node(name));
    this.controllers = [cluster.node('ctl1'), cluster.node('ctl2')];
    this.#first = cluster.node('g1');
  }

  /** The volume has its default options, and no controller has mounted it yet. */
  static async start(options: Pick<ClusterOptions, 'binds' | 'report'> = {}): Promise<GlusterLab> {
    const cluster = await Cluster.start({
      ...options,
      nodes: [...BRICK_NODES, ...CONTROLLERS],
      controllers: [],
      layers: ['gluster'],
      binds: [['/dev/fuse', '/dev/fuse'], ...(options.binds ?? [])],
    });
    try {
      const lab = new GlusterLab(cluster);
      await lab.#makeVolume();
      return lab;
    } catch (error) {
      await cluster.down();
      throw error;
    }
  }

  async #makeVolume(): Promise<void> {
    // glusterd refuses to start without a resolv.conf, if only an empty one
    await Promise.all(this.cluster.nodes.map((node) => node.must(['touch', '/etc/resolv.conf'])));
    await Promise.all(
      this.bricks.map(async (node) => {
        await node.must(['rm', '-f', GEO_REPLICATION]);
        await node.must(['mkdir', '-p', BRICK]);
        // enabled: a node that comes back brings its brick with it
        await node.must(['systemctl', 'enable', '--now', 'glusterd']);
      }),
    );
    for (const peer of BRICK_NODES.slice(1)) await this.gluster('peer', 'probe', peer);
    await until('all peers connected', UP_MS_MAX, async () => {
      const text = await this.gluster('peer', 'status');
      return text.split('Peer in Cluster (Connected)').length === BRICK_NODES.length;
    });
    const places = BRICK_NODES.map((name) => `${name}:${BRICK}`);
    await this.gluster('volume', 'create', VOLUME, 'replica', String(places.length), ...places, 'force');
    await this.gluster('volume', 'start', VOLUME);
  }

  /** Runs gluster(8) on the first brick's node. */
  async gluster(...args: readonly string[]): Promise<string> {
    return await this.#first.must(['gluster', '--mode=script', ...args]);
  }

  async set(options: Readonly<Record<string, string>>): Promise<void> {
    await this.gluster('volume', 'set', VOLUME, ...Object.entries(options).flat());
  }

  async reset(...options: readonly string[]): Promise<void> {
    for (const option of options) await this.gluster('volume', 'reset', VOLUME, option);
  }

  /** Mounts the volume on both controllers anew, so that the volume's options as they are now hold from the first call. */
  async mount(options: readonly string[]): Promise<void> {
    const servers = `backup-volfile-servers=${BRICK_NODES.slice(1).join(':')}`;
    const list = [servers, 'log-file=/var/log/gluster-mount.log', ...options].join(',');
    const script =
      'mkdir -p "$1"; ! mountpoint -q "$1" || umount "$1" || exit 1; mount -t glusterfs -o "$2" "$3" "$1" && touch "$1/.up"';
    await Promise.all(
      this.controllers.map((node) =>
        node.must(['/bin/sh', '-c', script, 'sh', MOUNT, list, `${BRICK_NODES[0]}:/${VOLUME}`]),
      ),
    );
  }

  /** What the client on a controller says of itself: a file below .meta/graphs/active. */
  async clientSays(controller: Node, path: string): Promise<string> {
    return (await controller.must(['cat', clientPath(path)])).trim();
  }

  /** SIGKILL to the process of a brick; its node and the other daemons there go on. */
  async killBrick(node: Node): Promise<void> {
    await node.must(['pkill', '-KILL', '-x', 'glusterfsd']);
    await until(`end of the brick on ${node.name}`, UP_MS_MAX, async () => {
      return (await node.exec(['pgrep', '-x', 'glusterfsd'])).exitCode === 1;
    });
  }

  /** Undoes whatever a test did to nodes, links and bricks. */
  async repair(): Promise<void> {
    for (const node of this.cluster.nodes) {
      if (!node.running) await node.boot();
      await node.linkUp();
    }
    await this.startBricks();
    await this.healed();
  }

  /** Starts the bricks that do not run, and waits until each controller's client has reached all of them. */
  async startBricks(): Promise<void> {
    await this.gluster('volume', 'start', VOLUME, 'force');
    await this.reached(this.controllers);
  }

  /** Waits until the client on each of these is connected to every brick. */
  async reached(controllers: readonly Node[]): Promise<void> {
    for (const controller of controllers) {
      await until(`${controller.name} has all bricks`, UP_MS_MAX, async () => {
        // Without a majority the client answers for nothing, not even for its own mount point.
        const end = await controller.exec(['cat', clientPath(`${VOLUME}-replicate-0/private`)]);
        const text = end.stdout.toString('utf8');
        return BRICK_NODES.every((_, index) => text.includes(`child_up[${index}] = 1`));
      });
    }
  }

  /** Waits until no brick lacks anything that another has. */
  async healed(timeoutMs = HEAL_MS_MAX): Promise<void> {
    await until('heal', timeoutMs, async () => {
      const end = await this.#first.exec(['gluster', '--mode=script', 'volume', 'heal', VOLUME, 'info']);
      const counts = [...end.stdout.toString('utf8').matchAll(/^Number of entries: (.*)$/gm)];
      const isClean = counts.length === BRICK_NODES.length && counts.every(([, count]) => count === '0');
      // Asks for what is left at once instead of at the next round of the daemon; refused while a brick comes up.
      if (!isClean) await this.#first.exec(['gluster', '--mode=script', 'volume', 'heal', VOLUME]);
      return isClean;
    });
  }

  /** A file of the volume as each brick has it on its own disk. */
  onBricks(path: string): readonly Buffer[] {
    return this.bricks.map((node) => readFileSync(join(node.rootPath, BRICK, path)));
  }

  async down(): Promise<void> {
    await this.cluster.down();
  }
}
