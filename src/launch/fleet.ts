/**
 * The workers that one command talks to: one connection per node, opened when first asked for, and the same
 * question to many of them with a bound on how many are in flight.
 */
import { asXceError, type ErrorCode, type ErrorFacts, XceError } from '../base/errors.ts';
import type { NodeName } from '../base/ids.ts';
import { createLanes } from '../base/lanes.ts';
import { unlessAborted } from '../base/unless-aborted.ts';
import { foldNodes } from '../nodes/hostlist.ts';
import { type Failure, foldReasons } from '../nodes/reasons.ts';
import type { RpcSession } from '../rpc/session.ts';

/** Connections opened, and questions asked, at the same time. */
export const IN_FLIGHT_MAX = 64;
/** Different reasons that a message tells before it only names the nodes of the rest. */
const REASONS_SHOWN = 16;

export type Fleet = {
  /**
   * The open connection to the worker of a node. Throws as connectTls does, with the node in the message, and
   * 'cancelled' once the fleet is closed, or `signal` is aborted; others may still wait for the same connection then.
   */
  session(node: NodeName, signal?: AbortSignal): Promise<RpcSession>;
  /** Closes every connection, also those that are being opened. Nothing is opened afterwards. */
  close(): void;
};

const givenUp = (node: NodeName): XceError =>
  new XceError('cancelled', `${node}: the question was given up`, { at: node });

export const createFleet = (connect: (node: NodeName) => Promise<RpcSession>): Fleet => {
  /** What is open, or being opened; nothing that has failed or was closed. */
  const sessions = new Map<NodeName, Promise<RpcSession>>();
  /** What takes no more requests, since its worker ends it: idle, or with itself. What is open there goes on. */
  const ending = new Set<Promise<RpcSession>>();
  let isClosed = false;

  const requireOpen = (node: NodeName): void => {
    if (isClosed) {
      throw new XceError('cancelled', `${node}: this command takes no more connections`, { at: node });
    }
  };

  const open = async (node: NodeName): Promise<RpcSession> => {
    let session: RpcSession;
    try {
      session = await connect(node);
    } catch (error) {
      throw atNode(node, error);
    }
    if (isClosed) session.close();
    requireOpen(node);
    return session;
  };

  const connectTo = (node: NodeName): Promise<RpcSession> => {
    const opened = open(node);
    sessions.set(node, opened);
    const forget = (): void => {
      ending.delete(opened);
      if (sessions.get(node) === opened) sessions.delete(node);
    };
    opened.then(({ closed }) => {
      if (closed.aborted) forget();
      else closed.addEventListener('abort', forget, { once: true });
    }, forget);
    return opened;
  };

  return {
    session: async (node, signal) => {
      requireOpen(node);
      if (signal?.aborted === true) throw givenUp(node);
      const wait = (opened: Promise<RpcSession>): Promise<RpcSession> =>
        signal === undefined ? opened : unlessAborted(signal, opened, () => givenUp(node));
      const opened = sessions.get(node) ?? connectTo(node);
      const session = await wait(opened);
      if (session.takesRequests) return session;
      if (sessions.get(node) === opened) {
        sessions.delete(node);
        if (!session.closed.aborted) ending.add(opened);
      }
      requireOpen(node);
      return await wait(sessions.get(node) ?? connectTo(node));
    },
    close: () => {
      isClosed = true;
      for (const session of [...sessions.values(), ...ending]) {
        session.then(
          (opened) => opened.close(),
          () => undefined, // what never opened has nothing to close; its error went to whoever asked
        );
      }
      sessions.clear();
      ending.clear();
    },
  };
};

/** The same error, naming the node that it is about. */
export const atNode = (node: NodeName, error: unknown): XceError => {
  const { code, message, facts } = asXceError(error);
  if (error instanceof XceError && facts.at === node && message.includes(node)) return error;
  return new XceError(code, `${node}: ${message}`, { ...facts, at: node, cause: error });
};

export type Answer<T> =
  | { readonly node: NodeName; readonly ok: true; readonly value: T }
  | { readonly node: NodeName; readonly ok: false; readonly error: XceError };

/** Does the same on every node, at most `inFlightMax` at a time. Never throws; answers are in the order of `nodes`. */
export const askAll = async <T>(
  nodes: readonly NodeName[],
  ask: (node: NodeName) => Promise<T>,
  inFlightMax = IN_FLIGHT_MAX,
): Promise<readonly Answer<T>[]> => {
  const inLane = createLanes(inFlightMax);
  const askOne = async (node: NodeName): Promise<Answer<T>> => {
    try {
      return { node, ok: true, value: await ask(node) };
    } catch (error) {
      return { node, ok: false, error: atNode(node, error) };
    }
  };
  return await Promise.all(nodes.map((node) => inLane(() => askOne(node))));
};

export const failures = <T>(answers: readonly Answer<T>[]): readonly XceError[] =>
  answers.flatMap((answer) => (answer.ok ? [] : [answer.error]));

export const values = <T>(
  answers: readonly Answer<T>[],
): readonly { readonly node: NodeName; readonly value: T }[] =>
  answers.flatMap((answer) => (answer.ok ? [{ node: answer.node, value: answer.value }] : []));

/** What failed, each reason once, with the nodes that it holds for as a list; beyond a bound only the nodes. */
export const tellFailures = (failed: readonly Failure[]): string => {
  const reasons = foldReasons(failed);
  const shown = reasons.slice(0, REASONS_SHOWN).map(({ nodes, tell }) => tell(foldNodes(nodes)));
  const rest = reasons.slice(REASONS_SHOWN);
  const others = foldNodes([...new Set(rest.flatMap(({ nodes }) => nodes))]);
  const more = others === '' ? `${rest.length} other reasons` : `other reasons on ${others}`;
  return [...shown, ...(rest.length > 0 ? [`and ${more}`] : [])].join('; ');
};

/** Each failure for the detail of an error: JSON-safe. */
export const listFailures = (
  failed: readonly XceError[],
): readonly { readonly node: string | undefined; readonly code: ErrorCode; readonly message: string }[] =>
  failed.map(({ code, message, facts }) => ({ node: facts.at, code, message }));

/**
 * Failures of several nodes as one error: each reason with its nodes in its message, all of them, with node and
 * code, in its detail. `code` is that of the first unless given. undefined: nothing failed.
 */
export const joinFailures = (
  failed: readonly XceError[],
  what: string,
  { code, ...facts }: Pick<ErrorFacts, 'unchanged' | 'next'> & { readonly code?: ErrorCode } = {},
): XceError | undefined => {
  const [first] = failed;
  if (first === undefined) return undefined;
  return new XceError(code ?? first.code, `${what}: ${tellFailures(failed)}`, {
    ...facts,
    detail: { reasons: listFailures(failed) },
    cause: first,
  });
};
