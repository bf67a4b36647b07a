/**
 * What the worker counts from its start on, and what it holds now, as families of samples. Values of labels are words
 * of this program, never text of a job or a peer: their number is bounded.
 */
import type { ErrorCode } from '../base/errors.ts';
import type { ResponseOf, Verb } from '../rpc/message.ts';
import type { ListenerKind, ServerMeter } from '../rpc/verbs.ts';
import { SANDBOX_STATES, type SandboxState } from './record.ts';

type Family = ResponseOf<'metrics'>['families'][number];
type Labels = Readonly<Record<string, string>>;

/** Results of a unit that systemd.exec(5) names, and ours for one that left none. */
const RESULTS: ReadonlySet<string> = new Set([
  'success',
  'protocol',
  'timeout',
  'exit-code',
  'signal',
  'core-dump',
  'watchdog',
  'start-limit-hit',
  'resources',
  'oom-kill',
  'lost',
]);

/** One number for each set of labels that has come up. */
class Series {
  readonly #values = new Map<string, { readonly labels: Labels; value: number }>();

  add(labels: Labels, change: number): void {
    const key = Object.values(labels).join(' ');
    const known = this.#values.get(key);
    if (known === undefined) this.#values.set(key, { labels, value: change });
    else known.value += change;
  }

  get samples(): Family['samples'] {
    return [...this.#values.values()].map(({ labels, value }) => ({ labels, value }));
  }
}

/** What is there now, as the worker's other parts tell it. */
export type Holdings = {
  readonly version: string;
  readonly startedMs: number;
  readonly wallMs: number;
  readonly certificateEndMs: number;
  readonly residentBytes: number;
  readonly sandboxes: readonly { readonly state: SandboxState; readonly steps: number }[];
  /** Leases of which something is left here, or could not be looked for. */
  readonly dirtyLeases: number;
};

export type Activity = { readonly open: number; readonly changes: number };

export class Counts implements ServerMeter {
  readonly #requests = new Series();
  readonly #connections = new Series();
  readonly #refusedConnections = new Series();
  readonly #bytes = new Series();
  readonly #stepsStarted = new Series();
  readonly #stepsEnded = new Series();
  #open = 0;
  #changes = 0;

  /** Requests that are open, streams among them, and how often one has begun or ended. */
  get activity(): Activity {
    return { open: this.#open, changes: this.#changes };
  }

  request(verb: Verb | '-', code: ErrorCode | 'ok'): void {
    this.#requests.add({ verb, code }, 1);
  }

  open(change: 1 | -1): void {
    this.#open += change;
    this.#changes += 1;
  }

  connection(listener: ListenerKind, change: 1 | -1): void {
    this.#connections.add({ listener }, change);
  }

  connectionRefused(listener: ListenerKind, code: ErrorCode): void {
    this.#refusedConnections.add({ listener, code }, 1);
  }

  bytes(channel: 'stdin' | 'stdout' | 'stderr', count: number): void {
    this.#bytes.add({ channel }, count);
  }

  stepStarted(kind: 'task' | 'head' | 'daemon'): void {
    this.#stepsStarted.add({ kind }, 1);
  }

  stepEnded(result: string): void {
    this.#stepsEnded.add({ result: RESULTS.has(result) ? result : 'other' }, 1);
  }

  families(holdings: Holdings): Family[] {
    const { version, startedMs, wallMs, certificateEndMs, residentBytes, sandboxes, dirtyLeases } = holdings;
    const one = (value: number, labels: Labels = {}): Family['samples'] => [{ labels, value }];
    const inState = (state: SandboxState): number => sandboxes.filter((box) => box.state === state).length;
    const family = (
      type: Family['type'],
      name: string,
      help: string,
      samples: Family['samples'],
    ): Family => ({
      name: `xce_worker_${name}`,
      type,
      help,
      samples,
    });
    return [
      family('gauge', 'build_info', 'Version of the worker, always 1.', one(1, { version })),
      family('gauge', 'start_time_seconds', 'When the worker started, since 1970.', one(startedMs / 1000)),
      family('gauge', 'resident_memory_bytes', 'Memory of the worker.', one(residentBytes)),
      family(
        'gauge',
        'certificate_remaining_seconds',
        'Until the certificate of this node runs out; negative once it has.',
        one((certificateEndMs - wallMs) / 1000),
      ),
      family(
        'gauge',
        'sandboxes',
        'Sandboxes on this node.',
        SANDBOX_STATES.map((state) => ({ labels: { state }, value: inState(state) })),
      ),
      family(
        'gauge',
        'dirty_leases',
        'Leases of which something is left on this node, or could not be looked for.',
        one(dirtyLeases),
      ),
      family('gauge', 'steps', 'Steps that run.', one(sandboxes.reduce((sum, { steps }) => sum + steps, 0))),
      family('counter', 'steps_started_total', 'Steps that were started.', this.#stepsStarted.samples),
      family(
        'counter',
        'steps_ended_total',
        'Steps that have ended, by the result of their unit.',
        this.#stepsEnded.samples,
      ),
      family(
        'counter',
        'requests_total',
        'Requests that were answered, and streams that have ended.',
        this.#requests.samples,
      ),
      family('gauge', 'requests_open', 'Requests that are open, streams among them.', one(this.#open)),
      family('gauge', 'connections', 'Connections whose peer is known.', this.#connections.samples),
      family(
        'counter',
        'connections_refused_total',
        'Connections that were refused before any request.',
        this.#refusedConnections.samples,
      ),
      family('counter', 'stream_bytes_total', 'Bytes of steps that were streamed.', this.#bytes.samples),
    ];
  }
}
