/**
 * Workers on real nodes without a controller's command line: the test signs tickets with the cluster's key and
 * speaks the worker protocol itself, through a small driver on the node `ctl` (or on any other node, with that
 * node's certificate). So a test can send what no controller would.
 */
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import type { Attempt, Epoch, InstanceName, JobId, LeaseNumber, NodeName, Uid } from '../../src/base/ids.ts';
import { createTicketSigner, type TicketClaims } from '../../src/lease/ticket.ts';
import { createAuthority, issue, validForDays } from '../../src/pki/authority.ts';
import { loadTicketPrivateKey, PKI_FILES } from '../../src/pki/identity.ts';
import type { CertificateRole } from '../../src/pki/names.ts';
import { revoke } from '../../src/pki/revocation.ts';
import type { RequestOf, ResponseOf, StreamVerb, UnaryVerb } from '../../src/rpc/message.ts';
import { Cluster, type ClusterOptions } from './cluster/cluster.ts';
import type { Node, Spawned } from './cluster/node.ts';

const CONFIG_PATH = '/etc/xce-sandbox/xce-sandbox.ini';
const PKI_PATH = '/etc/xce-sandbox/pki';
const CLUSTER_NAME = 'lab';
export const POOL = { first: 70_000, last: 70_099 } as const;

const root = fileURLToPath(new URL('../..', import.meta.url));

const configuration = (hosts: readonly string[], extra: string): string => `[cluster]
name = ${CLUSTER_NAME}

[pool]
range = ${POOL.first}-${POOL.last}

[directory]
control_uid = 1001
timeout = 30s

[lease]
directory = /ctl-shared/leases

[nodes]
hosts = ${hosts.join(',')}

[sandbox]
stop_timeout = 3s

[storage shared]
path = /shared
workspace = /shared/xce

[mpi]
interfaces = 10.77.0.0/24
${extra}`;

export type Refused = { readonly code: string; readonly message: string; readonly detail?: unknown };
export type StreamFrame =
  | { readonly stdout: string }
  | { readonly stderr: string }
  | { readonly event: { readonly event: string; readonly [key: string]: unknown } };

/** What a stream has brought so far; `end` settles when it is over, with undefined or the refusal. */
export type LabStream = {
  readonly frames: readonly StreamFrame[];
  readonly end: Promise<Refused | undefined>;
  /** Resolves with the first event of that name. */
  event(name: string): Promise<Record<string, unknown>>;
  stdout(): string;
  write(text: string): void;
  endStdin(): void;
  signal(signal: number): void;
  cancel(): void;
};

type Line =
  | { readonly id: number; readonly value: unknown }
  | { readonly id: number; readonly refused: Refused }
  | { readonly id: number; readonly frame: StreamFrame }
  | { readonly id: number; readonly end: true };

/** One process on a node that holds connections and does what it is told, a line of JSON each. */
export class Driver {
  readonly #child: Spawned;
  readonly #listeners = new Map<number, (line: Line) => void>();
  #next = 1;

  constructor(child: Spawned) {
    this.#child = child;
    child.stderr.resume();
    createInterface({ input: child.stdout }).on('line', (text) => {
      const line = JSON.parse(text) as Line;
      this.#listeners.get(line.id)?.(line);
    });
  }

  #send(message: object): void {
    this.#child.stdin.write(`${JSON.stringify(message)}\n`);
  }

  /** Calls a verb at a worker; resolves with the answer, or with the refusal. */
  call<V extends UnaryVerb>(node: string, verb: V, request: RequestOf<V>): Promise<ResponseOf<V> | Refused> {
    const id = this.#next++;
    return new Promise((resolve) => {
      this.#listeners.set(id, (line) => {
        this.#listeners.delete(id);
        if ('value' in line) resolve(line.value as ResponseOf<V>);
        else if ('refused' in line) resolve(line.refused);
      });
      this.#send({ id, do: 'call', node, verb, request });
    });
  }

  /** The same, but a refusal is an error. */
  async must<V extends UnaryVerb>(node: string, verb: V, request: RequestOf<V>): Promise<ResponseOf<V>> {
    const answer = await this.call(node, verb, request);
    if ('code' in answer) throw new Error(`${node}: ${verb}: ${answer.code}: ${answer.message}`);
    return answer;
  }

  stream<V extends StreamVerb>(node: string, verb: V, head: RequestOf<V>): LabStream {
    const id = this.#next++;
    const frames: StreamFrame[] = [];
    const waiting: { name: string; resolve: (event: Record<string, unknown>) => void }[] = [];
    const find = (name: string): Record<string, unknown> | undefined =>
      frames.flatMap((frame) => ('event' in frame && frame.event.event === name ? [frame.event] : []))[0];
    const end = new Promise<Refused | undefined>((resolve) => {
      this.#listeners.set(id, (line) => {
        if ('frame' in line) {
          frames.push(line.frame);
          for (const { name, resolve: tell } of waiting) {
            const event = find(name);
            if (event !== undefined) tell(event);
          }
          return;
        }
        this.#listeners.delete(id);
        resolve('refused' in line ? line.refused : undefined);
      });
    });
    this.#send({ id, do: 'stream', node, verb, head });
    return {
      frames,
      end,
      event: (name) =>
        new Promise((resolve, reject) => {
          const event = find(name);
          if (event !== undefined) resolve(event);
          waiting.push({ name, resolve });
          end.then((refused) =>
            reject(new Error(`the stream ended without ${name}: ${JSON.stringify(refused)}`)),
          );
        }),
      stdout: () => frames.map((frame) => ('stdout' in frame ? frame.stdout : '')).join(''),
      write: (text) => this.#send({ id, do: 'write', text }),
      endStdin: () => this.#send({ id, do: 'endStdin' }),
      signal: (signal) => this.#send({ id, do: 'signal', signal }),
      cancel: () => this.#send({ id, do: 'cancel' }),
    };
  }

  async end(): Promise<void> {
    this.#child.kill('SIGKILL');
    await this.#child.ended;
  }
}

const base64 = (text: string): string => Buffer.from(text).toString('base64');

export class WorkerLab {
  readonly cluster: Cluster;
  readonly workers: readonly Node[];
  readonly #pki: string;
  readonly #drivers: Driver[] = [];
  #issued = 0;

  private constructor(cluster: Cluster, pki: string) {
    this.cluster = cluster;
    this.workers = cluster.nodes.filter((node) => node.name !== 'ctl');
    this.#pki = pki;
  }

  /** Boots ctl and the given nodes and starts their workers. `down()` must follow, whatever happens. */
  static async start(
    options: ClusterOptions & { readonly workers: readonly string[]; readonly config?: string },
  ): Promise<WorkerLab> {
    const { workers, config = '', ...rest } = options;
    const cluster = await Cluster.start({ ...rest, nodes: ['ctl', ...workers] });
    try {
      const pki = join(cluster.directory, 'pki');
      await createAuthority(pki, { cluster: CLUSTER_NAME });
      const lab = new WorkerLab(cluster, pki);
      await lab.#bundleDriver();
      for (const node of lab.workers) {
        await lab.#certify(node, 'worker', node.name, PKI_PATH);
        await node.writeFile(CONFIG_PATH, configuration(workers, config), { mode: 0o644 });
        await lab.installUnits(node);
      }
      return lab;
    } catch (error) {
      await cluster.down();
      throw error;
    }
  }

  async down(): Promise<void> {
    for (const driver of this.#drivers) await driver.end();
    await this.cluster.down();
  }

  node(name: string): Node {
    return this.cluster.node(name);
  }

  /** Issues a certificate and puts it on a node, with the authority and the public key of tickets. */
  async #certify(node: Node, role: CertificateRole, name: string, directory: string): Promise<void> {
    const out = join(this.cluster.directory, `pki-${this.#issued++}`);
    await issue(this.#pki, { role, node: name as NodeName, validity: validForDays(1), out });
    await node.must(['install', '-d', '-m', '0755', '/etc/xce-sandbox']);
    await node.must(['install', '-d', '-m', '0700', directory]);
    const { authority, revocations, certificate, key, ticketPublicKey } = PKI_FILES;
    for (const file of [authority, revocations, certificate, key, ticketPublicKey]) {
      await node.writeFile(join(directory, file), readFileSync(join(out, file)), { mode: 0o600 });
    }
  }

  /** Gives a worker a new certificate and the list on which all of a name are revoked; reload it to use them. */
  async renewCertificates(node: Node, revokedName: string): Promise<void> {
    await revoke(this.#pki, { node: revokedName as NodeName });
    await this.#certify(node, 'worker', node.name, PKI_PATH);
  }

  /** Puts the shipped units on a node and starts the service, or the sockets that start it when asked. */
  async installUnits(node: Node, how: 'service' | 'sockets' = 'service'): Promise<void> {
    const unit = 'xce-sandbox-worker';
    for (const file of [`${unit}.service`, `${unit}-tls.socket`, `${unit}-local.socket`]) {
      await node.writeFile(`/etc/systemd/system/${file}`, readFileSync(join(root, 'share', file)), {
        mode: 0o644,
      });
    }
    await node.must(['systemctl', 'daemon-reload']);
    const units = how === 'service' ? [`${unit}.service`] : [`${unit}-tls.socket`, `${unit}-local.socket`];
    await node.must(['systemctl', 'start', ...units]);
  }

  async #bundleDriver(): Promise<void> {
    const outfile = join(this.cluster.directory, 'driver.mjs');
    await build({
      entryPoints: [join(root, 'test/support/worker-driver.ts')],
      outfile,
      bundle: true,
      format: 'esm',
      platform: 'node',
      target: 'node20.19',
      external: ['koffi'],
    });
    for (const node of this.cluster.nodes) {
      await node.writeFile('/usr/local/lib/driver.mjs', readFileSync(outfile), { mode: 0o644 });
    }
  }

  /** A driver with a certificate of that role and name, on that node. */
  async driver(node = 'ctl', role: CertificateRole = 'controller', name = 'ctl'): Promise<Driver> {
    const directory = `/root/pki-${this.#issued}`;
    await this.#certify(this.node(node), role, name, directory);
    const child = await this.node(node).spawn(['node', '/usr/local/lib/driver.mjs', directory]);
    const driver = new Driver(child);
    this.#drivers.push(driver);
    return driver;
  }

  claims(node: string, nonce: string, changes: Partial<TicketClaims> = {}): TicketClaims {
    return {
      cluster: CLUSTER_NAME,
      instance: 'main' as InstanceName,
      job: '42' as JobId,
      attempt: 0 as Attempt,
      lease: 1 as LeaseNumber,
      epoch: 1 as Epoch,
      uid: POOL.first as Uid,
      submitterUid: 1001,
      submitterGid: 1001,
      node: node as NodeName,
      nodes: this.workers.map((worker) => worker.name as NodeName),
      nonce,
      ttlMs: 600_000,
      issuedWallMs: Date.now(),
      roots: [],
      workspace: { storage: 'shared', path: '/shared/xce' },
      ...changes,
    };
  }

  sign(claims: TicketClaims): string {
    return createTicketSigner(claims, loadTicketPrivateKey(this.#pki))(claims);
  }

  /** A ticket that answers a fresh nonce of the node's worker. */
  async ticket(driver: Driver, node: string, changes: Partial<TicketClaims> = {}): Promise<string> {
    const { nonce } = await driver.must(node, 'challenge', { purpose: 'ticket' });
    return this.sign(this.claims(node, nonce, changes));
  }

  /** Prepares a sandbox and returns the ticket that did. */
  async prepare(driver: Driver, node: string, changes: Partial<TicketClaims> = {}): Promise<string> {
    const ticket = await this.ticket(driver, node, changes);
    await driver.must(node, 'prepare', { ticket });
    return ticket;
  }

  drainRequest(changes: Partial<RequestOf<'drain'>> = {}): RequestOf<'drain'> {
    const { epoch, lease, uid, job, attempt } = this.claims('', '');
    return { epoch, lease, uid, job, attempt, nonce: randomBytes(16).toString('hex'), ...changes };
  }

  /** The head of a step that runs argv. */
  step(ticket: string, argv: readonly string[], changes: Partial<RequestOf<'step'>> = {}): RequestOf<'step'> {
    return {
      ticket,
      step: `t${randomBytes(4).toString('hex')}`,
      kind: 'task',
      argv: argv.map(base64),
      environment: [],
      directory: null,
      stdin: false,
      ...changes,
    };
  }
}
