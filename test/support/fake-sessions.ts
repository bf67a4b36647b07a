/**
 * Workers at the other end of an RpcSession, played by a test. Connections and streams behave as
 * src/rpc/session.ts says; answers and refusals go through the bytes of the protocol.
 */
import { XceError } from '../../src/base/errors.ts';
import type { NodeName } from '../../src/base/ids.ts';
import { LIMITS } from '../../src/base/limits.ts';
import { decodeResponse, decodeWireError, encodeDocument, encodeError } from '../../src/rpc/decode.ts';
import {
  type RequestOf,
  type ResponseOf,
  STREAM,
  type StepResult,
  type StreamCommand,
  type StreamEvent,
  type StreamVerb,
  type UnaryVerb,
} from '../../src/rpc/message.ts';
import type { CallOptions, ClientStream, RpcSession, ServerFrame } from '../../src/rpc/session.ts';

export const GOOD: StepResult = { result: 'success', code: 'exited', status: 0, stopped: false };
export const exited = (status: number): StepResult => ({ ...GOOD, result: 'exit-code', status });
export const killed = (status: number): StepResult => ({
  result: 'signal',
  code: 'killed',
  status,
  stopped: false,
});
export const STOPPED: StepResult = { ...killed(15), stopped: true };

/** One stream, as its client uses it and as the test plays its server. */
export class FakeStream implements ClientStream {
  readonly commands: StreamCommand[] = [];
  stdin = '';
  stdinEnded = false;
  cancelled = false;
  /** Frames that the client has asked for. */
  taken = 0;
  readonly #frames: ServerFrame[] = [];
  #credit: number = STREAM.stdinCreditBytes;
  #hasEnded = false;
  #isIterated = false;
  /** Why no more comes; undefined as long as more may. */
  #over: XceError | 'ended' | undefined;
  #wakeReader = (): void => undefined;
  #wakeWriter = (): void => undefined;

  /** Is the stream still open, from the client's side? */
  get isOpen(): boolean {
    return this.#over === undefined;
  }

  say(event: StreamEvent): void {
    this.#hasEnded ||= event.event === 'ended';
    this.#push({ channel: 'event', event });
  }

  start(unit = 'step.service'): void {
    this.say({ event: 'started', unit });
  }

  print(text: string, channel: 'stdout' | 'stderr' = 'stdout'): void {
    this.#push({ channel, bytes: Buffer.from(text) });
  }

  /** The step has ended, and the server with it. */
  end(outcome: StepResult): void {
    this.say({ event: 'ended', outcome });
    this.close();
  }

  /** The server ends the stream. */
  close(): void {
    this.fail(this.#hasEnded ? 'ended' : new XceError('protocol', 'the worker cut the request'));
  }

  fail(why: XceError | 'ended'): void {
    if (this.#over !== undefined) return;
    this.#over = why;
    this.#wakeReader();
    this.#wakeWriter();
  }

  /** The step reads that many bytes of its input. */
  grant(bytes: number): void {
    this.#credit += bytes;
    this.#wakeWriter();
  }

  #push(frame: ServerFrame): void {
    if (this.#over !== undefined) throw new Error('the stream has ended');
    this.#frames.push(frame);
    this.#wakeReader();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<ServerFrame, void, undefined> {
    if (this.#isIterated) throw new Error('a stream is iterated once');
    this.#isIterated = true;
    try {
      for (;;) {
        // What was given up is thrown away; what the server sent before it ended is not.
        if (this.cancelled) throw new XceError('cancelled', 'the stream was given up');
        const frame = this.#frames.shift();
        if (frame !== undefined) {
          this.taken += 1;
          yield frame;
        } else if (this.#over === 'ended') return;
        else if (this.#over !== undefined) throw this.#over;
        else
          await new Promise<void>((wake) => {
            this.#wakeReader = wake;
          });
      }
    } finally {
      if (this.#over === undefined) this.cancel();
    }
  }

  async writeStdin(bytes: Uint8Array): Promise<void> {
    for (let at = 0; at < bytes.length; ) {
      if (this.#over !== undefined) throw new XceError('cancelled', 'the stream takes no more stdin');
      if (this.#credit === 0) {
        await new Promise<void>((wake) => {
          this.#wakeWriter = wake;
        });
        continue;
      }
      const piece = bytes.subarray(at, at + this.#credit);
      this.#credit -= piece.length;
      at += piece.length;
      this.stdin += Buffer.from(piece).toString('latin1');
    }
  }

  endStdin(): void {
    this.stdinEnded = true;
  }

  sendCommand(command: StreamCommand): void {
    if (this.isOpen) this.commands.push(command);
  }

  cancel(): void {
    if (this.#over !== undefined) return;
    this.cancelled = true;
    this.fail(new XceError('cancelled', 'the stream was given up'));
  }
}

class FakeSession implements RpcSession {
  readonly node: NodeName;
  readonly streams = new Set<FakeStream>();
  readonly #worker: FakeWorker;
  readonly #closed = new AbortController();
  /** The worker has begun to end the connection. */
  isEnding = false;

  constructor(worker: FakeWorker) {
    this.node = worker.node;
    this.#worker = worker;
  }

  get takesRequests(): boolean {
    return !this.closed.aborted && !this.isEnding;
  }

  get closed(): AbortSignal {
    return this.#closed.signal;
  }

  async call<V extends UnaryVerb>(
    verb: V,
    request: RequestOf<V>,
    options: CallOptions,
  ): Promise<ResponseOf<V>> {
    return await this.#exchange(verb, options, async () => {
      const answer = await this.#worker.answer(verb, request);
      return decodeResponse(verb, encodeDocument(answer, verb, LIMITS.messageBytesMax));
    });
  }

  async stream<V extends StreamVerb>(
    verb: V,
    head: RequestOf<V>,
    options: CallOptions,
  ): Promise<ClientStream> {
    return await this.#exchange(verb, options, async () => {
      const stream = await this.#worker.accept(verb, head);
      this.streams.add(stream);
      // The client has reset what it no longer waited for.
      if (this.closed.aborted || options.signal?.aborted === true) stream.cancel();
      return stream;
    });
  }

  #exchange<T>(verb: string, { timeoutMs, signal }: CallOptions, work: () => Promise<T>): Promise<T> {
    const { closed } = this;
    return new Promise<T>((resolve, reject) => {
      if (closed.aborted) {
        reject(closed.reason);
        return;
      }
      const settle = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', onAbort);
        closed.removeEventListener('abort', onClosed);
      };
      const fail = (error: unknown): void => {
        settle();
        reject(error);
      };
      const onAbort = (): void => fail(new XceError('cancelled', `${verb} was given up`));
      const onClosed = (): void => fail(closed.reason);
      const timer = setTimeout(
        () => fail(new XceError('timeout', `no answer to ${verb} within ${timeoutMs} ms`)),
        timeoutMs,
      );
      signal?.addEventListener('abort', onAbort);
      closed.addEventListener('abort', onClosed);
      if (signal?.aborted === true) onAbort();
      else
        work().then(
          (value) => {
            settle();
            resolve(value);
          },
          // A refusal crosses the wire as its code and one line.
          (error: unknown) => fail(decodeWireError(encodeError(error))),
        );
    });
  }

  lose(error: XceError): void {
    if (this.closed.aborted) return;
    this.#closed.abort(error);
    for (const stream of this.streams) stream.fail(error);
    this.#worker.sessions.delete(this);
  }

  close(): void {
    this.lose(new XceError('cancelled', 'the connection was closed here'));
  }
}

export type Answerer<V extends UnaryVerb> = (request: RequestOf<V>) => unknown;

/** The worker of one node. Every answer can be replaced; a promise holds it back. */
export class FakeWorker {
  readonly node: NodeName;
  /** What it was asked, in order, as `NODE VERB`; workers of one test may share it. */
  readonly journal: string[];
  readonly sessions = new Set<FakeSession>();
  /** Streams that were accepted, in order. */
  readonly streams: FakeStream[] = [];
  readonly heads: unknown[] = [];
  connections = 0;
  /** Thrown by, or awaited in, each connect. */
  onConnect: () => Promise<void> | void = () => undefined;
  /** Thrown by, or awaited in, each opening of a stream. */
  onStream: () => Promise<void> | void = () => undefined;
  /** Whether the verb stop ends the steps, as it should. */
  obeysStop = true;
  #nonces = 0;
  readonly #answers: { [V in UnaryVerb]?: Answerer<V> } = {};

  constructor(node: string, journal: string[] = []) {
    this.node = node as NodeName;
    this.journal = journal;
    this.on('challenge', () => this.challenge());
    this.on('prepare', () => this.prepared());
    this.on('renew', () => ({ remainingMs: 1 }));
    this.on('stop', () => {
      const open = this.streams.filter((stream) => stream.isOpen);
      if (this.obeysStop) for (const stream of open) stream.end(STOPPED);
      return { stopped: true };
    });
  }

  on<V extends UnaryVerb>(verb: V, answer: Answerer<V>): void {
    const answers: { [W in V]?: Answerer<W> } = this.#answers;
    answers[verb] = answer;
  }

  challenge(): ResponseOf<'challenge'> {
    this.#nonces += 1;
    return {
      protocol: { major: 1, minor: 0 },
      version: '0.1.0',
      node: this.node,
      instance: 'main' as ResponseOf<'challenge'>['instance'],
      bootId: 'boot-1',
      workerKey: Buffer.from(this.node).toString('hex').padEnd(64, '0'),
      nonce: `${this.#nonces}`.padStart(32, '0'),
      wallMs: 0,
    };
  }

  prepared(): ResponseOf<'prepare'> {
    return { unit: 'anchor.service', invocationId: 'a1', created: true, workspace: null, mounts: [] };
  }

  async connect(): Promise<RpcSession> {
    this.connections += 1;
    await this.onConnect();
    const session = new FakeSession(this);
    this.sessions.add(session);
    return session;
  }

  async answer<V extends UnaryVerb>(verb: V, request: RequestOf<V>): Promise<unknown> {
    this.journal.push(`${this.node} ${verb}`);
    const answers: { [W in V]?: Answerer<W> } = this.#answers;
    const answer = answers[verb];
    if (answer === undefined) throw new XceError('protocol', `no verb ${verb}`);
    return await answer(request);
  }

  async accept(verb: StreamVerb, head: unknown): Promise<FakeStream> {
    this.journal.push(`${this.node} ${verb}`);
    await this.onStream();
    const stream = new FakeStream();
    this.heads.push(head);
    this.streams.push(stream);
    return stream;
  }

  /** The latest stream. */
  get stream(): FakeStream {
    const stream = this.streams.at(-1);
    if (stream === undefined) throw new Error(`${this.node} has no stream`);
    return stream;
  }

  /** The connections break, and no new one can be made. */
  die(): void {
    this.onConnect = () => {
      throw new XceError('worker-unreachable', `no connection to ${this.node}: ECONNREFUSED`);
    };
    this.lose();
  }

  /** New connections can be made again. */
  revive(): void {
    this.onConnect = () => undefined;
  }

  /** The connections break. */
  lose(): void {
    for (const session of this.sessions) {
      session.lose(new XceError('worker-unreachable', `the connection to ${this.node} was lost`));
    }
  }
}

/** Workers by name, with one journal, and the means to connect to them. */
export const fakeWorkers = (names: readonly string[]) => {
  const journal: string[] = [];
  const workers = new Map(names.map((name) => [name, new FakeWorker(name, journal)]));
  const at = (name: string): FakeWorker => {
    const worker = workers.get(name);
    if (worker === undefined) throw new Error(`there is no worker ${name}`);
    return worker;
  };
  return {
    journal,
    at,
    all: [...workers.values()],
    nodes: names as readonly NodeName[],
    connect: (node: NodeName) => at(node).connect(),
    /** Nodes that were asked for a verb, by name. */
    asked: (verb: string) =>
      journal.flatMap((entry) => names.filter((name) => entry === `${name} ${verb}`)).sort(),
  };
};
