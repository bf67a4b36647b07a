/**
 * The worker in a process of its own, all of it but the sandboxes, which are in memory and echo: `DIRECTORY TIMES`; the
 * directory has its configuration, worker.ini. Says its TLS port on stdout; then each line on stdin is answered by the
 * memory it holds after a collection of garbage. What it logs goes to stderr.
 */
import { mkdirSync } from 'node:fs';
import { dirname } from 'node:path';
import { createInterface } from 'node:readline';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { loadConfig } from '../../src/config/load.ts';
import { systemConfigPorts } from '../../src/os/config-ports.ts';
import { catchStrays } from '../../src/os/scope.ts';
import { loadIdentity } from '../../src/pki/identity.ts';
import type { Resources } from '../../src/rpc/message.ts';
import type { RpcTimes } from '../../src/rpc/times.ts';
import type { CreatedSandbox, RunningStep, SandboxSpec, StepSpec } from '../../src/sandbox/backend.ts';
import { boxPaths } from '../../src/sandbox/box.ts';
import { assemble } from '../../src/worker/assemble.ts';
import { lineOf } from '../../src/worker/journal.ts';
import { FakeBackend, GOOD } from '../unit/worker/fakes.ts';

class EchoBackend extends FakeBackend {
  override create(spec: SandboxSpec, resources: Resources, remainingMs: number): Promise<CreatedSandbox> {
    const { agentSocket } = boxPaths(settings.worker.runDirectory, spec.lease);
    mkdirSync(dirname(agentSocket), { recursive: true, mode: 0o711 });
    return super.create(spec, resources, remainingMs);
  }

  override async startStep(spec: SandboxSpec, invocationId: string, step: StepSpec): Promise<RunningStep> {
    const running = await super.startStep(spec, invocationId, step);
    const { stdin, stdout } = running as ReturnType<FakeBackend['step']>;
    stdin.pipe(stdout);
    stdin.once('end', () => this.step(spec.lease, step.step).finish(GOOD));
    this.trace.length = 0;
    return running;
  }
}

const [directory = '', times = ''] = process.argv.slice(2);
setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;
process.stderr.on('error', () => process.exit(74));
catchStrays((error) => {
  console.error('stray:', error);
  process.exit(70);
});
const { settings } = loadConfig(`${directory}/worker.ini`, systemConfigPorts);
const identity = loadIdentity(settings.cluster.pki);
const { server } = assemble(
  settings,
  { identity },
  new EchoBackend(),
  (entry) => process.stderr.write(lineOf(entry)),
  JSON.parse(times) as Partial<RpcTimes>,
);
await server.listenRoot({ path: `${settings.worker.runDirectory}/worker.sock` });
const { port } = await server.listenTls({ address: '127.0.0.1', port: 0 }, identity);
console.log(JSON.stringify({ port }));
for await (const _line of createInterface({ input: process.stdin })) {
  collect();
  const { rss, heapUsed, external } = process.memoryUsage();
  console.log(JSON.stringify({ rss, heapUsed, external }));
}
process.exit(0);
