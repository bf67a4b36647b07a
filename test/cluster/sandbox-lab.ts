/** Starts the driver of the sandbox backend on a node and gives its calls to tests. */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import type { ErrorCode } from '../../src/base/errors.ts';
import type { Attempt, Epoch, InstanceName, JobId, LeaseNumber, NodeName, Uid } from '../../src/base/ids.ts';
import type { Resources, StepResult } from '../../src/rpc/message.ts';
import type { SandboxSpec } from '../../src/sandbox/backend.ts';
import { Cluster } from '../support/cluster/cluster.ts';
import type { Node, Spawned } from '../support/cluster/node.ts';
import type { Calls } from './sandbox-driver.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const DRIVER_INSIDE = '/opt/sandbox-driver';

/** The bundled driver in a directory of the host, to be bound on nodes; `remove` takes it away. */
export type DriverFiles = {
  readonly binds: readonly (readonly [string, string])[];
  remove(): void;
};

export const buildDriver = async (): Promise<DriverFiles> => {
  const directory = mkdtempSync(join(tmpdir(), 'sandbox-driver-'));
  await build({
    absWorkingDir: root,
    entryPoints: [join(root, 'test/cluster/sandbox-driver.ts')],
    outfile: join(directory, 'driver.mjs'),
    bundle: true,
    format: 'esm',
    platform: 'node',
    target: 'node20.19',
    external: ['koffi'],
    banner: {
      js: "import { createRequire as driverRequire } from 'node:module'; const require = driverRequire(import.meta.url);",
    },
    logLevel: 'warning',
  });
  mkdirSync(join(directory, 'node_modules'));
  return {
    binds: [
      [directory, DRIVER_INSIDE],
      [join(root, 'node_modules'), `${DRIVER_INSIDE}/node_modules`],
    ],
    remove: () => rmSync(directory, { recursive: true, force: true }),
  };
};

/** An error of the backend as it came over the line. */
export class DriverError extends Error {
  readonly code: ErrorCode | 'none';
  constructor(code: ErrorCode | 'none', message: string) {
    super(message);
    this.name = 'DriverError';
    this.code = code;
  }
}

export type StepEnd = {
  readonly result: StepResult;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
  readonly ms: number;
};

type Bytes = string | Buffer;
const toBase64 = (bytes: Bytes): string => Buffer.from(bytes as string).toString('base64');

export const SETTINGS = {
  cluster: { name: 'lab', instance: 'main', pki: '/etc/xce-sandbox/pki' },
  worker: { runDirectory: '/run/xce-sandbox/main' },
  nodes: { requestTimeoutMs: 60_000 },
  environments: [] as { name: string; variables: { name: string; value: string }[] }[],
  sandbox: {
    tasksMax: 256,
    cpuPercent: null as number | null,
    cpus: null as number[] | null,
    memoryBytes: null as number | null,
    tmpBytes: 32 << 20,
    tmpInodes: 4096,
    shmBytes: 32 << 20,
    memlock: 'infinity',
    stackBytes: 8 << 20,
    stopTimeoutMs: 2000,
    network: 'job-nodes',
    networkNames: ['%n'],
    networkAllow: [] as { address: string; prefix: number }[],
    path: '/usr/local/bin:/usr/bin:/bin',
    devices: [] as string[],
    groups: [] as string[],
    passEnvironment: [] as string[],
  },
};

type Waiting = { resolve(value: unknown): void; reject(error: Error): void };

export class Driver {
  readonly #child: Spawned;
  readonly #waiting = new Map<number, Waiting>();
  #next = 1;

  private constructor(child: Spawned) {
    this.#child = child;
    createInterface({ input: child.stdout }).on('line', (text) => {
      const line = JSON.parse(text) as {
        id: number;
        value?: unknown;
        code?: ErrorCode | 'none';
        message?: string;
      };
      const waiting = this.#waiting.get(line.id);
      this.#waiting.delete(line.id);
      if (line.code === undefined) waiting?.resolve(line.value);
      else waiting?.reject(new DriverError(line.code, line.message ?? ''));
    });
    let complaint = '';
    child.stderr.on('data', (bytes: Buffer) => {
      complaint = (complaint + bytes.toString('utf8')).slice(-4000);
    });
    void child.ended.then(() => {
      for (const { reject } of this.#waiting.values()) reject(new Error(`the driver ended: ${complaint}`));
      this.#waiting.clear();
    });
  }

  static async start(node: Node, settings: object = SETTINGS): Promise<Driver> {
    return new Driver(await node.spawn(['node', `${DRIVER_INSIDE}/driver.mjs`, JSON.stringify(settings)]));
  }

  call<Name extends keyof Calls>(name: Name, ...input: Calls[Name]['in']): Promise<Calls[Name]['out']> {
    const id = this.#next;
    this.#next += 1;
    return new Promise<Calls[Name]['out']>((resolve, reject) => {
      this.#waiting.set(id, { resolve: (value) => resolve(value as Calls[Name]['out']), reject });
      this.#child.stdin.write(`${JSON.stringify({ id, call: name, input })}\n`);
    });
  }

  /** Starts a step with exact bytes. */
  start(
    spec: SandboxSpec,
    invocationId: string,
    step: string,
    argv: readonly Bytes[],
    more: { readonly environment?: readonly Bytes[]; readonly directory?: Bytes } = {},
  ): Promise<{ unit: string; ms: number }> {
    return this.call('start', spec, invocationId, {
      step,
      argv: argv.map(toBase64),
      ...(more.environment === undefined ? {} : { environment: more.environment.map(toBase64) }),
      ...(more.directory === undefined ? {} : { directory: toBase64(more.directory) }),
    });
  }

  async end(step: string): Promise<StepEnd> {
    const { result, stdout, stderr, ms } = await this.call('end', step);
    return {
      result: result as StepResult,
      stdout: Buffer.from(stdout, 'base64'),
      stderr: Buffer.from(stderr, 'base64'),
      ms,
    };
  }

  /** A whole step: start, input, end. */
  async run(
    spec: SandboxSpec,
    invocationId: string,
    step: string,
    argv: readonly Bytes[],
    more: {
      readonly environment?: readonly Bytes[];
      readonly directory?: Bytes;
      readonly input?: Bytes;
    } = {},
  ): Promise<StepEnd> {
    await this.start(spec, invocationId, step, argv, more);
    await this.call('write', step, toBase64(more.input ?? ''), true);
    return await this.end(step);
  }

  /** As a crash of the worker: nothing is said to anybody. */
  async kill(): Promise<void> {
    this.#child.kill('SIGKILL');
    await this.#child.ended;
  }

  async close(): Promise<void> {
    this.#child.stdin.end();
    await this.#child.ended;
  }
}

export const HOUR_MS = 3_600_000;
export const sh = (script: string): string[] => ['/bin/sh', '-c', script];
export const baseOf = (spec: SandboxSpec): string => `xce-main-${spec.lease}.${spec.job}.0`;
export const kindsOf = (findings: readonly { kind: string }[]): string[] =>
  [...new Set(findings.map(({ kind }) => kind))].toSorted();

/** The error code of a call that should be refused. */
export const codeOf = async (call: Promise<unknown>): Promise<string> => {
  try {
    await call;
    return 'no error';
  } catch (error) {
    return error instanceof DriverError ? error.code : String(error);
  }
};

let lease = 100;
/** A sandbox of its own for each test; the uid follows the lease. */
export const nextSpec = (more: Partial<SandboxSpec> = {}): SandboxSpec => {
  lease += 1;
  return {
    instance: 'main' as InstanceName,
    job: String(lease) as JobId,
    attempt: 0 as Attempt,
    lease: lease as LeaseNumber,
    epoch: 1 as Epoch,
    uid: (70_000 + lease) as Uid,
    node: 'n1' as NodeName,
    nodes: ['n1', 'n2'] as NodeName[],
    writablePaths: [],
    workspaceRoot: '/shared/xce',
    ...more,
  };
};

/** Two nodes and a driver on the first. */
export type Lab = {
  readonly cluster: Cluster;
  readonly n1: Node;
  readonly n2: Node;
  readonly driver: Driver;
  /** Makes a sandbox that `clear` takes away. */
  create(spec: SandboxSpec, asked?: Partial<Resources>): Promise<string>;
  /** Destroys what the test has made, and demands that nothing of it is left. */
  clear(): Promise<void>;
  /** Lets `clear` take away a sandbox that the test makes itself. */
  readonly open: SandboxSpec[];
  close(): Promise<void>;
};

export const openLab = async (): Promise<Lab> => {
  const files = await buildDriver();
  const cluster = await Cluster.start({
    nodes: ['n1', 'n2'],
    controllers: [],
    product: false,
    binds: files.binds,
  });
  const n1 = cluster.node('n1');
  const driver = await Driver.start(n1);
  await driver.call('checkHost');
  const open: SandboxSpec[] = [];
  return {
    cluster,
    n1,
    n2: cluster.node('n2'),
    driver,
    open,
    create: async (spec, asked = {}) => {
      open.push(spec);
      return (await driver.call('create', spec, HOUR_MS, asked)).invocationId;
    },
    clear: async () => {
      for (const spec of open.splice(0)) {
        await driver.call('destroy', spec);
        const left = await driver.call('scan', spec);
        if (left.length > 0) throw new Error(`left of lease ${spec.lease}: ${JSON.stringify(left)}`);
      }
    },
    close: async () => {
      await driver.close();
      await cluster.down();
      files.remove();
    },
  };
};
