/**
 * Which piece of work an error belongs to that nobody caught: one that a timer, an event or a forgotten promise threw.
 * A piece of work is everything that was begun, directly or not, by the function that it runs.
 */
import { AsyncLocalStorage } from 'node:async_hooks';

export type Scope = {
  /** Something that this work began threw, and nobody caught it. Must not throw. */
  readonly crashed: (error: unknown) => void;
};

const scopes = new AsyncLocalStorage<Scope>();

export const runInScope = <T>(scope: Scope, work: () => T): T => scopes.run(scope, work);

/**
 * From now on an error that nobody caught does not end the process by itself: its scope is told of it, or `stray` where it
 * belongs to none.
 */
export const catchStrays = (stray: (error: unknown) => void): void => {
  const tell = (error: unknown): void => {
    const scope = scopes.getStore();
    if (scope === undefined) stray(error);
    else scope.crashed(error);
  };
  process.on('uncaughtException', tell);
  process.on('unhandledRejection', tell);
};
