/** What a reader without a lock does about a record that does not check: it may be on its way. */
import { XceError } from '../base/errors.ts';

/** Then it looks again after these waits. */
export const READ_WAITS_MS: readonly number[] = [20, 200];

/** Whether an error may go by itself. */
export const mayGo = (error: unknown): boolean => error instanceof XceError && error.code === 'log-corrupt';

/** Reads from the start again where a record does not check; what the last time throws passes through. */
export const readAgain = async <T>(
  wait: (milliseconds: number) => Promise<void>,
  read: () => Promise<T>,
): Promise<T> => {
  for (const waitMs of READ_WAITS_MS) {
    try {
      return await read();
    } catch (error) {
      if (!mayGo(error)) throw error;
      await wait(waitMs);
    }
  }
  return await read();
};
