/** The other host of a probe, as the one that asks has it: its part of the wire is xce-sandbox-protocol(7). */
import { XceError } from '../base/errors.ts';
import type { NodeName } from '../base/ids.ts';
import type { ProbeVerb, RequestOf, ResponseOf } from '../rpc/message.ts';
import type { RpcSession } from '../rpc/session.ts';
import type {
  ProbeAction,
  ProbeParty,
  ProbeProcess,
  ProbeResult,
  SecondProcess,
} from '../wal/probe-action.ts';

export type ProbeDeadline = {
  readonly monotonicMs: () => number;
  readonly endMs: number;
  /** For one answer. */
  readonly answerMs: number;
};

export class PeerParty implements ProbeParty {
  readonly node: NodeName;
  readonly first: ProbeProcess;
  readonly second: SecondProcess;
  readonly #session: RpcSession;
  readonly #probe: string;
  readonly #deadline: ProbeDeadline;

  constructor(session: RpcSession, node: NodeName, probe: string, deadline: ProbeDeadline) {
    this.#session = session;
    this.node = node;
    this.#probe = probe;
    this.#deadline = deadline;
    const perform =
      (by: 'first' | 'second') =>
      async (actions: readonly ProbeAction[]): Promise<readonly ProbeResult[]> => {
        const { results } = await this.#call('probe-act', { probe, by, actions: [...actions] });
        if (results.length === actions.length) return results;
        throw new XceError('protocol', `${node} answers ${results.length} of ${actions.length} actions`);
      };
    this.first = { perform: perform('first') };
    this.second = {
      perform: perform('second'),
      kill: async () => {
        await this.#call('probe-kill', { probe });
      },
    };
  }

  async begin(request: Omit<RequestOf<'probe-begin'>, 'probe'>): Promise<void> {
    await this.#call('probe-begin', { probe: this.#probe, ...request });
  }

  /** Tells what came of the probe. Resolves when the other host has written down one that passed. */
  async end(outcome: { readonly kept: readonly string[] } | { readonly problem: string }): Promise<void> {
    const told =
      'kept' in outcome
        ? { kept: [...outcome.kept], problem: null }
        : { kept: null, problem: outcome.problem };
    await this.#call('probe-end', { probe: this.#probe, ...told });
  }

  #call<V extends ProbeVerb>(verb: V, request: RequestOf<V>): Promise<ResponseOf<V>> {
    const { monotonicMs, endMs, answerMs } = this.#deadline;
    const leftMs = endMs - monotonicMs();
    if (leftMs <= 0) throw new XceError('timeout', 'the probe did not end in time');
    return this.#session.call(verb, request, { timeoutMs: Math.min(answerMs, leftMs) });
  }
}
