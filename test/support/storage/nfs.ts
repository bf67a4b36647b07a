/**
 * A real NFS server and its clients, in one guest: the kernel's nfsd on an ext4 disk, and hosts c1, c2 and c3, each with
 * network, mount and host name of its own, which makes it another client to the server. c1 and c2 are controllers, with
 * the product, a log of their own to find at the usual places; c3 is squashed.
 *
 *   const lab = await NfsLab.start();
 *   try {
 *     await lab.mount('c1', '4.2', '/mnt/log');
 *     await lab.host('c1').exec(['xce-sandbox', 'lease', 'list']);
 *   } finally {
 *     await lab.down();
 *   }
 */
import { mkdirSync, readdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { furnishNode } from '../cluster/furnish.ts';
import { requireRoot } from '../cluster/host.ts';
import { prepareImage } from '../cluster/image.ts';
import { prepareLayer } from '../cluster/layer.ts';
import { type Finished, mustRun } from '../cluster/process.ts';
import { prepareProduct } from '../cluster/product.ts';
import { Scope } from '../cluster/scope.ts';
import { Guest, type GuestProgram } from './guest.ts';

export const HOSTS = ['c1', 'c2', 'c3'] as const;
export type HostName = (typeof HOSTS)[number];
export type NfsVersion = '4.2' | '3';

/** What the server exports, and where a version 4 mount has its root. */
const EXPORT = '/srv/export';
const DISK = 'guest/disk.img';
const DISK_BYTES = '256M';

/** How long the server keeps the locks of a client that is silent, and waits for clients when it starts. */
export const LEASE_SECONDS = 10;

/** The host's side of the wire to the server is .2. */
const networkOf = (name: HostName): string => `10.9.${HOSTS.indexOf(name) + 1}`;
export const addressOf = (name: HostName): string => `${networkOf(name)}.2`;
const serverFor = (name: HostName): string => `${networkOf(name)}.1`;

/** $1: seconds of lease and grace. */
const SERVER = `set -e
hostname server
modprobe -a nfsd nfs nfsv4 nfsv3 lockd veth
mount /dev/ubda ${EXPORT}
mount -t tmpfs tmpfs /var/lib/nfs
mkdir /var/lib/nfs/sm /var/lib/nfs/sm.bak /var/lib/nfs/nfsdcld /var/lib/nfs/rpc_pipefs
mount -t rpc_pipefs rpc_pipefs /var/lib/nfs/rpc_pipefs
touch /var/lib/nfs/etab /var/lib/nfs/rmtab /var/lib/nfs/state
chown -R statd /var/lib/nfs/sm /var/lib/nfs/sm.bak /var/lib/nfs/state
mount -t nfsd nfsd /proc/fs/nfsd
rpcbind -w
rpc.statd
nfsdcld
echo 1 >/proc/sys/net/ipv4/ip_forward
exportfs -o rw,sync,no_subtree_check,no_root_squash,fsid=0 10.9.1.0/24:${EXPORT} 10.9.2.0/24:${EXPORT}
exportfs -o rw,sync,no_subtree_check,root_squash,fsid=0 10.9.3.0/24:${EXPORT}
rpc.mountd
rpc.nfsd -G "$1" -L "$1" -V 4.2 -V 3 4
`;

/** $1: name of the host. It lives as long as its holder; statd is what locks of version 3 need. */
const HOST = `set -e
hostname "$1"
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /mnt
mount -t tmpfs tmpfs /var/lib/nfs
mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak /etc/xce-sandbox /var/lib/xce-sandbox
touch /var/lib/nfs/state
chown -R statd /var/lib/nfs
mount --bind "/hosts/$1/etc" /etc/xce-sandbox
mount --bind "/hosts/$1/var" /var/lib/xce-sandbox
ip link set lo up
rpcbind -w
rpc.statd
echo ready
exec sleep infinity
`;

/** $1: pid of the holder, $2: interface of the server, $3: its address, $4: the host's. */
const WIRE = `set -e
ip link add "$2" type veth peer name eth0 netns "$1"
ip addr add "$3/24" dev "$2"
ip link set "$2" up
nsenter -t "$1" -n -- ip addr add "$4/24" dev eth0
nsenter -t "$1" -n -- ip link set eth0 up
nsenter -t "$1" -n -- ip route add default via "$3"
`;

const script = (text: string, ...args: readonly string[]): readonly string[] => [
  'sh',
  '-c',
  text,
  'sh',
  ...args,
];

/** One client of the server, as a host. */
export class NfsHost {
  readonly name: HostName;
  readonly #guest: Guest;
  readonly #holder: string;
  readonly #enter: readonly string[];

  constructor(guest: Guest, name: HostName, holder: number) {
    this.#guest = guest;
    this.name = name;
    this.#holder = String(holder);
    this.#enter = ['nsenter', '-t', this.#holder, '-m', '-u', '-n', '--'];
  }

  exec(argv: readonly string[], options: { readonly timeoutMs?: number } = {}): Promise<Finished> {
    return this.#guest.exec([...this.#enter, ...argv], options);
  }

  must(argv: readonly string[], options: { readonly timeoutMs?: number } = {}): Promise<string> {
    return this.#guest.must([...this.#enter, ...argv], options);
  }

  start(argv: readonly string[]): Promise<GuestProgram> {
    return this.#guest.start([...this.#enter, ...argv]);
  }

  /** Mounts the export; `options` come after the version, and none are given unless told. */
  async mount(version: NfsVersion, point: string, options: readonly string[] = []): Promise<void> {
    await this.must(['mkdir', '-p', point]);
    await this.must(this.#mountArgs(version, point, options));
  }

  /** The same, but seen by programs of the guest itself, so that one of them can have mounts of several clients. */
  async mountForGuest(version: NfsVersion, point: string): Promise<void> {
    await this.#guest.must(['mkdir', '-p', point]);
    await this.#guest.must([
      'nsenter',
      '-t',
      this.#holder,
      '-n',
      '--',
      ...this.#mountArgs(version, point, []),
    ]);
  }

  #mountArgs(version: NfsVersion, point: string, options: readonly string[]): readonly string[] {
    const source = `${serverFor(this.name)}:${version === '3' ? EXPORT : '/'}`;
    return ['mount', '-t', 'nfs', '-o', [`vers=${version}`, ...options].join(','), source, point];
  }

  /** Pulls the cable, at the server's end: nothing gets through, and nobody is told. */
  async cut(): Promise<void> {
    await this.#guest.must(['ip', 'link', 'set', this.name, 'down']);
  }

  async join(): Promise<void> {
    await this.#guest.must(['ip', 'link', 'set', this.name, 'up']);
  }
}

export class NfsLab {
  readonly guest: Guest;
  readonly #scope: Scope;
  readonly #hosts: ReadonlyMap<HostName, NfsHost>;

  private constructor(scope: Scope, guest: Guest, hosts: ReadonlyMap<HostName, NfsHost>) {
    this.#scope = scope;
    this.guest = guest;
    this.#hosts = hosts;
  }

  /** `furnish` may write below the root of the guest before it boots; /hosts/NAME/etc is a host's /etc/xce-sandbox. */
  static async start(
    furnish: (root: string) => Promise<void> = async () => undefined,
    report: (line: string) => void = () => undefined,
  ): Promise<NfsLab> {
    requireRoot();
    const image = await prepareImage(report);
    const layers = [await prepareProduct(image, report), await prepareLayer('nfs', report), image];
    const scope = await Scope.open(layers.map(({ entry }) => entry));
    try {
      const root = await NfsLab.#makeRoot(
        scope,
        layers.map((layer) => layer.root),
      );
      await furnish(root);
      report('booting the guest');
      const guest = await Guest.boot({ scope, name: 'nfs', root, memory: '768M', disks: [`/${DISK}`] });
      await guest.must(script(SERVER, String(LEASE_SECONDS)));
      const hosts = new Map<HostName, NfsHost>();
      for (const name of HOSTS) hosts.set(name, await NfsLab.#startHost(guest, name));
      return new NfsLab(scope, guest, hosts);
    } catch (error) {
      await scope.close();
      throw error;
    }
  }

  static async #makeRoot(scope: Scope, lower: readonly string[]): Promise<string> {
    const [root, upper, work] = ['root', 'upper', 'work'].map((name) => join(scope.directory, name));
    if (root === undefined || upper === undefined || work === undefined) throw new Error('three directories');
    for (const directory of [root, upper, work]) mkdirSync(directory);
    const options = `lowerdir=${lower.join(':')},upperdir=${upper},workdir=${work}`;
    await mustRun(['mount', '-t', 'overlay', 'overlay', '-o', options, root]);
    const names = HOSTS.map((name) => `${addressOf(name)} ${name}`);
    furnishNode(root, 'server', ['127.0.0.1 localhost', ...names, ''].join('\n'), scope.id);
    const kernels = join(root, 'usr/lib/uml/modules');
    mkdirSync(join(root, 'usr/lib/modules'), { recursive: true });
    for (const kernel of readdirSync(kernels)) {
      symlinkSync(`/usr/lib/uml/modules/${kernel}`, join(root, 'usr/lib/modules', kernel));
    }
    for (const directory of ['guest', EXPORT.slice(1)]) mkdirSync(join(root, directory), { recursive: true });
    for (const name of HOSTS) {
      for (const part of ['etc', 'var']) mkdirSync(join(root, 'hosts', name, part), { recursive: true });
    }
    await mustRun(['truncate', '-s', DISK_BYTES, join(root, DISK)]);
    await mustRun(['mkfs.ext4', '-q', '-E', 'nodiscard', join(root, DISK)]);
    return root;
  }

  static async #startHost(guest: Guest, name: HostName): Promise<NfsHost> {
    const unshare = ['unshare', '--mount', '--uts', '--net', '--propagation', 'private', '--'];
    const holder = await guest.start([...unshare, ...script(HOST, name)]);
    let said = '';
    await new Promise<void>((resolve, reject) => {
      for (const stream of [holder.stdout, holder.stderr]) {
        stream.on('data', (bytes: Buffer) => {
          said += bytes.toString('latin1');
          if (said.endsWith('ready\n')) resolve();
        });
      }
      void holder.ended.then(() => reject(new Error(`host ${name} did not come up: ${said}`)));
    });
    await guest.must(script(WIRE, String(holder.pid), name, serverFor(name), addressOf(name)));
    return new NfsHost(guest, name, holder.pid);
  }

  host(name: HostName): NfsHost {
    const host = this.#hosts.get(name);
    if (host === undefined) throw new Error(`there is no host ${name}`);
    return host;
  }

  /** A path of the export in the guest, where the server has it. */
  onServer(path: string): string {
    return join(EXPORT, path);
  }

  /** A directory of this machine that is gone after `down`. */
  get directory(): string {
    return this.#scope.directory;
  }

  /** Ends the threads of nfsd: clients wait, and the server has forgotten its locks when it is back. */
  async stopServer(): Promise<void> {
    await this.guest.must(['rpc.nfsd', '0']);
  }

  async startServer(): Promise<void> {
    await this.guest.must(['rpc.nfsd', '-G', String(LEASE_SECONDS), '-L', String(LEASE_SECONDS), '4']);
    // as at every start of a server: clients of version 3 learn that their locks are gone
    await this.guest.must(['sm-notify', '-f']);
  }

  /** Power failure of everything in the guest, then its disk as this machine's own kernel reads it. */
  async killAndMount(): Promise<string> {
    await this.guest.killHard();
    const point = join(this.#scope.directory, 'disk');
    mkdirSync(point);
    await mustRun(['mount', '-o', 'loop', join(this.#scope.directory, 'root', DISK), point]);
    return point;
  }

  /** Ends and removes everything; a second call does nothing more. */
  async down(): Promise<void> {
    await this.#scope.close();
  }
}
