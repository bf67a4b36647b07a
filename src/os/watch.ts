import { watch } from 'node:fs';
import { errnoOf, XceError } from '../base/errors.ts';

/**
 * Waits until `check` holds, and looks again after anything changed in a directory or file (inotify(7)), also
 * when it vanished. Nothing runs in between. False when the signal aborts or the time is over first. Rejects
 * with what `check` throws, or with XceError 'os' where there is nothing to watch.
 */
export const waitUntil = async (
  path: string,
  check: () => boolean,
  limit: { readonly signal?: AbortSignal; readonly timeoutMs?: number },
): Promise<boolean> => {
  const { signal, timeoutMs } = limit;
  if (signal?.aborted === true) return check();
  return await new Promise<boolean>((resolve, reject) => {
    let watcher: ReturnType<typeof watch>;
    try {
      watcher = watch(path);
    } catch (error) {
      const refusal = new XceError('os', `cannot watch ${path}: ${errnoOf(error) ?? String(error)}`, {
        cause: error,
      });
      try {
        // The path may have vanished as part of what is waited for.
        if (check()) resolve(true);
        else reject(refusal);
      } catch (second) {
        reject(second);
      }
      return;
    }
    const timer =
      timeoutMs === undefined
        ? undefined
        : setTimeout(() => {
            finish(() => resolve(check()));
          }, timeoutMs);
    const finish = (settle: () => void): void => {
      watcher.close();
      clearTimeout(timer);
      signal?.removeEventListener('abort', onAbort);
      try {
        settle();
      } catch (error) {
        reject(error);
      }
    };
    const onAbort = (): void => {
      finish(() => resolve(check()));
    };
    const look = (): void => {
      try {
        if (check()) finish(() => resolve(true));
      } catch (error) {
        finish(() => reject(error));
      }
    };
    signal?.addEventListener('abort', onAbort);
    watcher.on('change', look);
    // A watcher may report an error instead of a change after its directory is gone.
    watcher.on('error', look);
    // What changed before the watch stood is not reported.
    look();
  });
};

/** Resolves after so many milliseconds, or when the signal aborts. For what no event announces. */
export const pause = (ms: number, signal?: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    const end = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal?.addEventListener('abort', end);
    if (signal?.aborted === true) end();
  });
