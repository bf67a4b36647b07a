/**
 * Lease logs on NFS as the controllers c1 and c2 use them: with the product's own commands, and with writers that are
 * killed or cut off while they allocate. What was acknowledged to anyone is held against the log.
 */
import { mkdtempSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { leaseMachine } from '../../../src/lease/machine.ts';
import { logFiles } from '../../../src/os/log-files.ts';
import { checkLog, type LogProblem } from '../../../src/wal/check.ts';
import type { StoragePort } from '../../../src/wal/storage.ts';
import { bundleFile } from '../bundle.ts';
import { mustRun } from '../cluster/process.ts';
import { type Acknowledged, type CommandEnd, Writer } from './gluster-site.ts';
import { programPath } from './guest.ts';
import { HOSTS, type HostName, type NfsLab, type NfsVersion } from './nfs.ts';

const WRITER = programPath('lease-writer');
const LOOK = programPath('look');
const COMMAND_MS_MAX = 120_000;
/** The probe of two hosts makes tens of thousands of calls, and the guest is slow. */
const PROBE_MINUTES_MAX = 20;
const CLUSTER = 'lab';

/** Where hosts mount the export with a version, and what they are told beside it. */
export type Place = {
  readonly name: string;
  readonly version: NfsVersion;
  readonly options: readonly string[];
};

const mountPoint = ({ name }: Place): string => `/mnt/${name}`;
const logDirectory = (place: Place): string => `${mountPoint(place)}/log-${place.name}`;
const configPath = ({ name }: Place): string => `/etc/xce-sandbox/${name}.ini`;

const configuration = (place: Place): string => `[cluster]
name = ${CLUSTER}
instance = ${place.name}

[pool]
range = 70000-79999

[directory]
control_uid = 1001

[lease]
directory = ${logDirectory(place)}
storage = shared

[nodes]
hosts = n1
connect_timeout = 30s
request_timeout = 5m
`;

/** Certificates of a controller for every host. The guest's root is a file system of this machine too, and faster here. */
const issueCertificates = async (root: string): Promise<void> => {
  const config = '/hosts/pki.ini';
  const text = configuration({ name: 'pki', version: '4.2', options: [] });
  writeFileSync(join(root, config), text.replace('[cluster]', '[cluster]\npki = /hosts/pki'));
  const script = 'mount -t proc proc "$1/proc" && exec chroot "$@"';
  const inRoot = ['unshare', '--mount', '--', 'sh', '-c', script, 'sh', root, '/usr/bin/env', 'HOME=/root'];
  const pki = (...args: readonly string[]) =>
    mustRun([...inRoot, 'xce-sandbox', 'pki', ...args, '--config', config]);
  await pki('init');
  for (const host of HOSTS) {
    await pki('issue', '--role', 'controller', '--node', host, '--out', `/hosts/${host}/etc/pki`);
  }
};

/** Writes the programs and configurations that a guest needs for logs in these places. */
export const furnishPlaces =
  (places: readonly Place[]) =>
  async (root: string): Promise<void> => {
    await bundleFile(new URL('./lease-writer.ts', import.meta.url), join(root, WRITER));
    await bundleFile(new URL('./look-program.ts', import.meta.url), join(root, LOOK));
    await issueCertificates(root);
    for (const host of HOSTS) {
      for (const place of places) {
        writeFileSync(join(root, 'hosts', host, 'etc', `${place.name}.ini`), configuration(place));
      }
    }
  };

/** How often a look of c1 missed what c2 had linked: before c2 had settled the name, and after. */
export const lookFromTwoClients = async (
  lab: NfsLab,
  version: NfsVersion,
  rounds: number,
): Promise<{ readonly before: number; readonly after: number }> => {
  const name = `look-${version}`;
  await lab.guest.must(['install', '-d', '-m', '0755', lab.onServer(name)]);
  const points = (['c1', 'c2'] as const).map((host) => ({ host, point: `/run/${name}-${host}` }));
  for (const { host, point } of points) await lab.host(host).mountForGuest(version, point);
  const directories = points.map(({ point }) => join(point, name));
  const text = await lab.guest.must(['node', LOOK, ...directories, String(rounds)], {
    timeoutMs: COMMAND_MS_MAX,
  });
  return JSON.parse(text) as { before: number; after: number };
};

/** Leases by job, as a log has them, and what is wrong with its bytes. */
export type Content = {
  readonly leases: ReadonlyMap<string, Acknowledged>;
  readonly problems: readonly LogProblem[];
};

/** One lease log in a directory of the export. */
export class LogOnNfs {
  readonly place: Place;
  readonly #lab: NfsLab;
  /** By job: what any writer was told. */
  readonly acknowledged = new Map<string, Acknowledged>();
  #writers = 0;

  private constructor(lab: NfsLab, place: Place) {
    this.#lab = lab;
    this.place = place;
  }

  /** The directory, and mounts on these hosts; no log is made. */
  static async prepare(lab: NfsLab, place: Place, hosts: readonly HostName[]): Promise<LogOnNfs> {
    await lab.guest.must(['install', '-d', '-m', '0755', lab.onServer(`log-${place.name}`)]);
    for (const host of hosts) await lab.host(host).mount(place.version, mountPoint(place), place.options);
    return new LogOnNfs(lab, place);
  }

  run(host: HostName, ...args: readonly string[]): Promise<CommandEnd> {
    return this.#run(host, args, COMMAND_MS_MAX);
  }

  async #run(host: HostName, args: readonly string[], timeoutMs: number): Promise<CommandEnd> {
    const argv = ['xce-sandbox', ...args, '--config', configPath(this.place)];
    const end = await this.#lab.host(host).exec(argv, { timeoutMs });
    if (end.timedOut) throw new Error(`${host}: ${argv.join(' ')}: not within ${timeoutMs} ms`);
    return {
      status: end.exitCode,
      stdout: end.stdout.toString('utf8'),
      stderr: end.stderr.toString('utf8'),
    };
  }

  async must(host: HostName, ...args: readonly string[]): Promise<string> {
    const end = await this.run(host, ...args);
    if (end.status === 0) return end.stdout;
    throw new Error(`${host}: ${args.join(' ')}: status ${end.status}\n${end.stdout}\n${end.stderr}`);
  }

  /** `lease init` on one host while another one listens for its probe. How both ended. */
  async initWithPeer(
    host: HostName,
    peer: HostName,
  ): Promise<{ readonly init: CommandEnd; readonly listen: CommandEnd }> {
    const timeout = ['--timeout', `${PROBE_MINUTES_MAX}m`];
    const command = ['xce-sandbox', 'lease', 'probe', '--listen', ...timeout];
    const argv = [...command, '--config', configPath(this.place)];
    const listener = await this.#lab.host(peer).start(argv);
    let [stdout, stderr] = ['', ''];
    await new Promise<void>((resolve) => {
      listener.stdout.on('data', (bytes: Buffer) => {
        stdout += bytes.toString('utf8');
      });
      listener.stderr.on('data', (bytes: Buffer) => {
        stderr += bytes.toString('utf8');
        if (stderr.includes('wait for a controller')) resolve();
      });
      // what it said then is in its result
      void listener.ended.then(() => resolve());
    });
    const args = ['lease', 'init', '--peer', peer, ...timeout];
    const init = await this.#run(host, args, PROBE_MINUTES_MAX * 60_000);
    const { exitCode } = await listener.ended;
    return { init, listen: { status: exitCode, stdout, stderr } };
  }

  async startWriter(host: HostName): Promise<Writer> {
    this.#writers += 1;
    const prefix = `${host}-${this.#writers}`;
    const argv = ['node', WRITER, configPath(this.place), prefix, '10000'];
    return new Writer(await this.#lab.host(host).start(argv), this.acknowledged);
  }

  /** The names in the log's directory, as the server has them. */
  async names(): Promise<readonly string[]> {
    const names = await this.#lab.guest.must(['ls', '-A', this.#lab.onServer(`log-${this.place.name}`)]);
    return names.split('\n').filter((name) => name !== '');
  }

  /** The log as a host gets it, copied to this machine and replayed here. */
  async contentAt(host: HostName): Promise<Content> {
    const end = await this.#lab.host(host).exec(['tar', '-C', logDirectory(this.place), '-c', '.']);
    if (end.exitCode !== 0) throw new Error(`${host}: tar: ${end.stderr.toString('utf8')}`);
    const copy = mkdtempSync(join(this.#lab.directory, 'copy-'));
    await mustRun(['tar', '-C', copy, '-x'], { input: end.stdout });
    return await this.contentOf(copy);
  }

  /** The log in a directory of this machine. */
  async contentOf(directory: string): Promise<Content> {
    const type = this.place.version === '3' ? 'nfs' : 'nfs4';
    const facts = { type, source: 'a copy', path: directory };
    const seen = async () => facts;
    const storage: StoragePort = { look: seen, admit: seen, probe: seen };
    const report = await checkLog(
      { files: logFiles, storage, wait: (milliseconds) => sleep(milliseconds) },
      {
        directory,
        cluster: CLUSTER,
        instance: this.place.name,
        memoryPath: join(this.#lab.directory, 'no-memory'),
      },
      leaseMachine,
    );
    const held = [...(report.newest?.state.leases.values() ?? [])];
    if (new Set(held.map(({ uid }) => uid)).size < held.length) throw new Error('two leases have one uid');
    const leases = new Map(held.map(({ job, number, uid }) => [job as string, { lease: number, uid }]));
    return { leases, problems: report.problems };
  }

  /** The jobs that were acknowledged before a log was read, and that it does not have as they were told. */
  missingFrom({ leases }: Content, acknowledged: ReadonlyMap<string, Acknowledged>): readonly string[] {
    return [...acknowledged].flatMap(([job, told]) => {
      const found = leases.get(job);
      return found?.uid === told.uid && found.lease === told.lease ? [] : [job];
    });
  }
}
