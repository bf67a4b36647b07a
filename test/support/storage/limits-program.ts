/** Makes sandboxes with limits on the guest it runs in, and writes what came of them as one JSON document. */
import { readFileSync } from 'node:fs';
import { XceError } from '../../../src/base/errors.ts';
import type {
  Attempt,
  Epoch,
  InstanceName,
  JobId,
  LeaseNumber,
  NodeName,
  Uid,
} from '../../../src/base/ids.ts';
import type { Settings } from '../../../src/config/settings.ts';
import type { Resources, StepResult } from '../../../src/rpc/message.ts';
import type { SandboxSpec } from '../../../src/sandbox/backend.ts';
import { DEFAULT_RESOURCES } from '../../../src/sandbox/resources.ts';
import { createSystemdBackend } from '../../../src/sandbox/systemd/backend.ts';

const HOUR_MS = 3_600_000;

const settings = {
  cluster: { name: 'lab', instance: 'main', pki: '/etc/xce-sandbox/pki' },
  worker: { runDirectory: '/run/xce-sandbox/main' },
  nodes: { requestTimeoutMs: 60_000 },
  environments: [],
  sandbox: {
    ...{ tasksMax: 64, cpuPercent: null, cpus: null, memoryBytes: 1 << 30 },
    ...{ tmpBytes: 8 << 20, tmpInodes: 1024, shmBytes: 8 << 20, memlock: '65536', stackBytes: 8 << 20 },
    ...{ stopTimeoutMs: 5000, network: 'job-nodes', networkNames: ['localhost'], networkAllow: [] },
    ...{ path: '/usr/bin:/bin', devices: [], groups: [], passEnvironment: [] },
  },
} as unknown as Settings;

const backend = createSystemdBackend(settings);
let lease = 0;

export type Ran = { readonly result: StepResult; readonly stdout: string };
export type Limits = {
  readonly hog: Ran;
  readonly after: Ran;
  readonly forks: Ran;
  readonly files: Readonly<Record<string, string>>;
  readonly absent: string;
  readonly left: readonly unknown[];
};

const inSandbox = async <T>(
  asked: Partial<Resources>,
  work: (spec: SandboxSpec, run: (step: string, script: string) => Promise<Ran>) => Promise<T>,
): Promise<T> => {
  lease += 1;
  const spec: SandboxSpec = {
    ...{ instance: 'main' as InstanceName, job: String(lease) as JobId, attempt: 0 as Attempt },
    ...{ lease: lease as LeaseNumber, epoch: 1 as Epoch, uid: (70_000 + lease) as Uid },
    ...{ node: 'n1' as NodeName, nodes: ['n1'] as NodeName[], writablePaths: [], workspaceRoot: null },
  };
  try {
    const { invocationId } = await backend.create(spec, { ...DEFAULT_RESOURCES, ...asked }, HOUR_MS);
    return await work(spec, async (step, script) => {
      const argv = ['/bin/bash', '-c', script].map((word) => Buffer.from(word));
      const running = await backend.startStep(spec, invocationId, {
        ...{ step, argv, environment: [], directory: null },
      });
      running.stdin.end();
      running.stderr.resume();
      let stdout = '';
      running.stdout.on('data', (bytes: Buffer) => {
        stdout += String(bytes);
      });
      return { result: await running.ended, stdout };
    });
  } finally {
    await backend.destroy(spec);
    left.push(...(await backend.scan(spec)));
  }
};

const left: unknown[] = [];
await backend.checkHost();
const memory = await inSandbox({ memoryBytes: 64 << 20, cpuPercent: 40, tasks: 16 }, async (spec, run) => {
  const group = `/sys/fs/cgroup/xce.slice/xce-main.slice/xce-main-${spec.lease}.${spec.job}.0.slice`;
  const names = ['memory.max', 'cpu.max', 'pids.max'];
  const files = Object.fromEntries(
    names.map((name) => [name, readFileSync(`${group}/${name}`, 'utf8').trim()]),
  );
  // A child takes the memory, not the main process: the step ends all the same.
  const hog = await run('hog', `perl -e '$x = "a" x 200000000; sleep 60' & wait; echo went on`);
  const after = await run('after', 'echo still here');
  const forks = await run('forks', 'for i in $(seq 40); do sleep 5 & done; wait; echo went on');
  return { files, hog, after, forks };
});
let absent = 'made';
try {
  await inSandbox({ cpus: [0] }, async () => undefined);
} catch (error) {
  absent = error instanceof XceError ? `${error.code}: ${error.message}` : String(error);
}
process.stdout.write(JSON.stringify({ ...memory, absent, left } satisfies Limits));
process.exit(0);
