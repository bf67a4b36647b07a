/** Starts live-worker.ts with a cluster of its own, and ends it. */
import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { NodeName } from '../../src/base/ids.ts';
import { createAuthority, issue, validForDays } from '../../src/pki/authority.ts';
import { type Identity, loadIdentity } from '../../src/pki/identity.ts';
import type { CertificateRole } from '../../src/pki/names.ts';
import type { RpcTimes } from '../../src/rpc/times.ts';
import { bundleProgram } from './bundle.ts';

const CLUSTER = 'live';
export const LIVE_NODE = 'n1' as NodeName;
const BUGS_MAX = 20;

export type MemoryUse = { readonly rss: number; readonly heapUsed: number; readonly external: number };

export class LiveWorker {
  readonly pid: number;
  readonly port: number;
  readonly socketPath: string;
  /** Of the authority: it has the keys for tickets. */
  readonly authority: string;
  readonly #child: ChildProcessWithoutNullStreams;
  readonly #lines: AsyncIterator<string>;
  readonly #directory: string;
  #issued = 0;
  #last = '';
  /** What it has logged of faults of its own. */
  readonly bugs: string[] = [];
  /** Lines it has logged. */
  lines = 0;

  private constructor(
    directory: string,
    child: ChildProcessWithoutNullStreams,
    lines: AsyncIterator<string>,
    port: number,
  ) {
    this.#directory = directory;
    this.#child = child;
    this.#lines = lines;
    this.pid = child.pid ?? 0;
    this.port = port;
    this.socketPath = join(directory, 'run/main/worker.sock');
    this.authority = join(directory, 'pki');
    createInterface({ input: child.stderr }).on('line', (line) => {
      this.lines += 1;
      if (/stray:|: bug: /.test(line) && this.bugs.length < BUGS_MAX) this.bugs.push(line);
      this.#last = line;
    });
  }

  /** `directory` is empty, and belongs to root with everything above it; `times` are deviations. */
  static async start(directory: string, times: Partial<RpcTimes> = {}): Promise<LiveWorker> {
    const pki = join(directory, 'pki');
    await createAuthority(pki, { cluster: CLUSTER });
    const host = join(directory, 'host');
    await issue(pki, { role: 'worker', node: LIVE_NODE, validity: validForDays(1), out: host });
    writeFileSync(
      join(directory, 'worker.ini'),
      [
        `[cluster]\nname = ${CLUSTER}\npki = ${host}`,
        '[pool]\nrange = 70000-70099',
        '[directory]\ncontrol_uid = 1',
        `[lease]\ndirectory = ${directory}/leases`,
        `[nodes]\nhosts = ${LIVE_NODE}`,
        `[worker]\nnode = ${LIVE_NODE}\nstate_directory = ${directory}/state\nrun_directory = ${directory}/run`,
        '',
      ].join('\n\n'),
      { mode: 0o644 },
    );
    // The program looks for its version above itself.
    copyFileSync(new URL('../../package.json', import.meta.url), join(directory, 'package.json'));
    const program = join(directory, 'program');
    mkdirSync(program);
    const file = await bundleProgram(new URL('./live-worker.ts', import.meta.url), program);
    const child = spawn(process.execPath, [file, directory, JSON.stringify(times)], {
      stdio: ['pipe', 'pipe', 'pipe'],
    });
    const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
    const first = await lines.next();
    if (first.done === true) throw new Error(`the worker did not start: ${String(child.stderr.read())}`);
    const { port } = JSON.parse(first.value) as { port: number };
    return new LiveWorker(directory, child, lines, port);
  }

  async identity(role: CertificateRole, node: string): Promise<Identity> {
    this.#issued += 1;
    const out = join(this.#directory, `identity-${this.#issued}`);
    await issue(this.authority, { role, node: node as NodeName, validity: validForDays(1), out });
    return loadIdentity(out);
  }

  get isAlive(): boolean {
    return this.#child.exitCode === null && this.#child.signalCode === null;
  }

  async memory(): Promise<MemoryUse> {
    this.#child.stdin.write('\n');
    const line = await this.#lines.next();
    if (line.done === true) throw new Error(`the worker has ended: ${this.#last}`);
    return JSON.parse(line.value) as MemoryUse;
  }

  async end(): Promise<void> {
    if (!this.isAlive) return;
    const closed = once(this.#child, 'close');
    this.#child.kill('SIGKILL');
    await closed;
  }
}
