/**
 * The other end of Driver in worker-lab.ts: connects to workers with the certificate of a directory and does
 * what lines of JSON on stdin say. `node` is a node's name, or the absolute path of a Unix socket.
 */
import { createInterface } from 'node:readline';
import { XceError } from '../../src/base/errors.ts';
import type { NodeName } from '../../src/base/ids.ts';
import { loadIdentity } from '../../src/pki/identity.ts';
import { connectTls, connectUnix } from '../../src/rpc/client.ts';
import type { RequestOf, StreamVerb, UnaryVerb } from '../../src/rpc/message.ts';
import type { ClientStream, RpcSession } from '../../src/rpc/session.ts';

type Order =
  | {
      readonly id: number;
      readonly do: 'call';
      readonly node: string;
      readonly verb: UnaryVerb;
      readonly request: RequestOf<UnaryVerb>;
    }
  | {
      readonly id: number;
      readonly do: 'stream';
      readonly node: string;
      readonly verb: StreamVerb;
      readonly head: RequestOf<StreamVerb>;
    }
  | { readonly id: number; readonly do: 'write'; readonly text: string }
  | { readonly id: number; readonly do: 'signal'; readonly signal: number }
  | { readonly id: number; readonly do: 'endStdin' | 'cancel' };

const PORT = 7713;
const TIMEOUT = { timeoutMs: 60_000 };
const directory = process.argv[2] ?? '';
const identity = directory === '' ? undefined : loadIdentity(directory);
const streams = new Map<number, ClientStream>();
const sessions = new Map<string, Promise<RpcSession>>();

const say = (line: object): void => {
  process.stdout.write(`${JSON.stringify(line)}\n`);
};

const connect = (node: string): Promise<RpcSession> => {
  if (node.startsWith('/')) return connectUnix(node, TIMEOUT);
  if (identity === undefined) throw new Error('no certificate was given');
  return connectTls({ address: node, port: PORT, identity, expectNode: node as NodeName }, TIMEOUT);
};

const session = async (node: string): Promise<RpcSession> => {
  const known = sessions.get(node);
  if (known !== undefined && !(await known.catch(() => undefined))?.closed.aborted) return known;
  const opened = connect(node);
  sessions.set(node, opened);
  opened.catch(() => sessions.delete(node));
  return opened;
};

const refusal = (error: unknown): object =>
  error instanceof XceError
    ? { code: error.code, message: error.message, detail: error.facts.detail }
    : { code: 'driver', message: String(error) };

const follow = async (id: number, stream: ClientStream): Promise<void> => {
  for await (const frame of stream) {
    if (frame.channel === 'event') say({ id, frame: { event: frame.event } });
    else say({ id, frame: { [frame.channel]: frame.bytes.toString('utf8') } });
  }
};

const obey = async (order: Order): Promise<void> => {
  const { id } = order;
  const stream = streams.get(id);
  switch (order.do) {
    case 'call':
      say({ id, value: await (await session(order.node)).call(order.verb, order.request, TIMEOUT) });
      break;
    case 'stream': {
      const opened = await (await session(order.node)).stream(order.verb, order.head, TIMEOUT);
      streams.set(id, opened);
      await follow(id, opened);
      say({ id, end: true });
      break;
    }
    case 'write':
      await stream?.writeStdin(Buffer.from(order.text));
      break;
    case 'endStdin':
      stream?.endStdin();
      break;
    case 'signal':
      stream?.sendCommand({ command: 'signal', signal: order.signal });
      break;
    case 'cancel':
      stream?.cancel();
      break;
  }
};

let running = 0;
let told = false;
const endIfDone = (): void => {
  if (told && running === 0) process.exit(0);
};

createInterface({ input: process.stdin })
  .on('line', (text) => {
    const order = JSON.parse(text) as Order;
    running += 1;
    obey(order)
      .catch((error: unknown) => {
        if (order.do === 'call' || order.do === 'stream') say({ id: order.id, refused: refusal(error) });
      })
      .finally(() => {
        running -= 1;
        endIfDone();
      });
  })
  .on('close', () => {
    told = true;
    endIfDone();
  });
