/**
 * The host that listens for a probe: it does what the other one tells it, on the files of that probe alone, and
 * writes down what has passed.
 *
 *   waiting --probe-begin--> begun --probe-act, probe-kill--> begun --probe-end--> told --answered--> over
 *                              |
 *                              +-- nothing asked for too long: over
 */
import { XceError } from '../base/errors.ts';
import type { NodeName } from '../base/ids.ts';
import type { ProbeVerb, RequestOf } from '../rpc/message.ts';
import { describePeer, type Peer, type VerbTable } from '../rpc/verbs.ts';
import type { ProbeParty } from '../wal/probe-action.ts';

/** Who asked, and for what. */
export type ProbeAsked = { readonly peer: NodeName; readonly id: string };
export type ProbeTold =
  | { readonly kept: readonly string[] }
  /** Why it did not pass, in the words of the host that asked. */
  | { readonly problem: string };

type Settled<T> = { readonly promise: Promise<T>; resolve(value: T): void; reject(error: unknown): void };

const settled = <T>(): Settled<T> => {
  let resolve: (value: T) => void = () => undefined;
  let reject: (error: unknown) => void = () => undefined;
  const promise = new Promise<T>((onValue, onError) => {
    resolve = onValue;
    reject = onError;
  });
  // Whoever waits hears of it; that nobody waits is no failure.
  promise.catch(() => undefined);
  return { promise, resolve, reject };
};

export type ProbeServerOptions = {
  readonly node: NodeName;
  readonly instance: string;
  /** Type of the file system here, and the client of it that this host is. */
  readonly type: string;
  readonly client: string;
};

const OK = {};

/** Throws unless the two hosts may probe together: one instance, one kind of storage, two clients of it. */
const requireTwoClients = (
  own: ProbeServerOptions,
  peer: NodeName,
  asked: Omit<RequestOf<'probe-begin'>, 'probe'>,
): void => {
  const refuse = (problem: string): XceError => new XceError('storage-unfit', problem);
  if (asked.instance !== own.instance) {
    throw new XceError('log-foreign', `${own.node} is of instance ${own.instance}, not ${asked.instance}`);
  }
  if (peer === own.node) throw refuse(`${peer} is this host itself; it takes another one`);
  if (asked.type !== own.type) {
    throw refuse(`the directory lies on ${own.type} at ${own.node}, and on ${asked.type} at ${peer}`);
  }
  if (asked.client === own.client) {
    throw refuse(`${own.node} and ${peer} are one client of the storage, with one cache; it takes two`);
  }
};

export class ProbeServer {
  readonly #options: ProbeServerOptions;
  readonly #asked = settled<ProbeAsked>();
  readonly #party = settled<ProbeParty>();
  readonly #told = settled<ProbeTold>();
  readonly #finished = settled<void>();
  #begun: ProbeAsked | undefined;
  /** Called whenever the other host asks for something. */
  onActivity: () => void = () => undefined;

  constructor(options: ProbeServerOptions) {
    this.#options = options;
  }

  /** The first probe that was begun; there is no second. */
  get asked(): Promise<ProbeAsked> {
    return this.#asked.promise;
  }

  /** What the other host says came of it. */
  get told(): Promise<ProbeTold> {
    return this.#told.promise;
  }

  /** From here on actions are performed. */
  serve(party: ProbeParty): void {
    this.#party.resolve(party);
  }

  /** Answers what is waiting: everything has been written down, or why it has not. */
  finish(error?: unknown): void {
    if (error === undefined) this.#finished.resolve();
    else {
      this.#party.reject(error);
      this.#finished.reject(error);
    }
  }

  #require(peer: Peer, probe: string): void {
    const begun = this.#begun;
    if (
      begun === undefined ||
      begun.id !== probe ||
      peer.kind !== 'certificate' ||
      peer.node !== begun.peer
    ) {
      throw new XceError('peer-role', `${describePeer(peer)} has begun no such probe here`);
    }
    this.onActivity();
  }

  #begin(peer: Peer, { probe, ...request }: RequestOf<'probe-begin'>): void {
    if (peer.kind !== 'certificate') throw new XceError('peer-role', 'only a controller probes');
    if (this.#begun !== undefined) throw new XceError('worker-busy', 'a probe is under way here');
    requireTwoClients(this.#options, peer.node, request);
    this.#begun = { peer: peer.node, id: probe };
    this.#asked.resolve(this.#begun);
  }

  table(): { readonly [V in ProbeVerb]: NonNullable<VerbTable[V]> } {
    const callers = ['controller'] as const;
    return {
      'probe-begin': {
        callers,
        answer: async (peer, request) => {
          this.#begin(peer, request);
          await this.#party.promise;
          return OK;
        },
      },
      'probe-act': {
        callers,
        answer: async (peer, { probe, by, actions }) => {
          this.#require(peer, probe);
          const party = await this.#party.promise;
          return { results: [...(await party[by].perform(actions))] };
        },
      },
      'probe-kill': {
        callers,
        answer: async (peer, { probe }) => {
          this.#require(peer, probe);
          await (await this.#party.promise).second.kill();
          return OK;
        },
      },
      'probe-end': {
        callers,
        answer: async (peer, { probe, kept, problem }) => {
          this.#require(peer, probe);
          this.#told.resolve(kept === null ? { problem: problem ?? 'it did not say why' } : { kept });
          await this.#finished.promise;
          return OK;
        },
      },
    };
  }
}
