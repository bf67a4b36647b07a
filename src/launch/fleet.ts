/**
 * The workers that one command talks to: one connection per node, opened when first asked for, and the same
 * question to many of them with a bound on how many are in flight.
 */
import { XceError } from '../base/errors.ts';
import type { NodeName } from '../base/ids.ts';
import type { RpcSession } from '../rpc/session.ts';

/** Connections opened, and questions asked, at the same time. */
const IN_FLIGHT_MAX = 64;

export type Fleet = {
  /** The open connection to the worker of a node. Throws as connectTls does, with the node in the message. */
  session(node: NodeName): Promise<RpcSession>;
  /** Closes every connection. */
  close(): void;
};

export const createFleet = (connect: (node: NodeName) => Promise<RpcSession>): Fleet => {
  const sessions = new Map<NodeName, Promise<RpcSession>>();
  return {
    session: async (node) => {
      const known = sessions.get(node);
      if (known !== undefined && !(await known).closed.aborted) return known;
      const opened = connect(node);
      sessions.set(node, opened);
      try {
        return await opened;
      } catch (error) {
        sessions.delete(node);
        throw atNode(node, error);
      }
    },
    close: () => {
      for (const session of sessions.values()) {
        session.then(
          (open) => open.close(),
          () => undefined, // what never opened has nothing to close; its error went to whoever asked
        );
      }
      sessions.clear();
    },
  };
};

/** The same error, naming the node that it is about. */
export const atNode = (node: NodeName, error: unknown): XceError => {
  if (!(error instanceof XceError)) {
    return new XceError('bug', `${node}: ${error instanceof Error ? error.message : String(error)}`, {
      cause: error,
    });
  }
  if (error.facts.at === node) return error;
  return new XceError(error.code, `${node}: ${error.message}`, { ...error.facts, at: node, cause: error });
};

export type Answer<T> =
  | { readonly node: NodeName; readonly ok: true; readonly value: T }
  | { readonly node: NodeName; readonly ok: false; readonly error: XceError };

/** Does the same on every node, at most IN_FLIGHT_MAX at a time. Never throws; answers are in the order of `nodes`. */
export const askAll = async <T>(
  nodes: readonly NodeName[],
  ask: (node: NodeName) => Promise<T>,
): Promise<readonly Answer<T>[]> => {
  const answers = new Array<Answer<T>>(nodes.length);
  let next = 0;
  const take = async (): Promise<void> => {
    for (let index = next++; index < nodes.length; index = next++) {
      const node = nodes[index] as NodeName;
      try {
        answers[index] = { node, ok: true, value: await ask(node) };
      } catch (error) {
        answers[index] = { node, ok: false, error: atNode(node, error) };
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(IN_FLIGHT_MAX, nodes.length) }, take));
  return answers;
};

export const failures = <T>(answers: readonly Answer<T>[]): readonly XceError[] =>
  answers.flatMap((answer) => (answer.ok ? [] : [answer.error]));

export const values = <T>(
  answers: readonly Answer<T>[],
): readonly { readonly node: NodeName; readonly value: T }[] =>
  answers.flatMap((answer) => (answer.ok ? [{ node: answer.node, value: answer.value }] : []));
