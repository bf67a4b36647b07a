import type { XceError } from '../base/errors.ts';

/**
 * The outcome of `work`, or the error of `late` once `ms` milliseconds have passed. The work itself goes on;
 * whoever calls says what becomes of it.
 */
export const withinMs = async <T>(ms: number, work: Promise<T>, late: () => XceError): Promise<T> => {
  let timer: NodeJS.Timeout | undefined;
  const expired = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(late()), ms);
  });
  try {
    return await Promise.race([work, expired]);
  } finally {
    clearTimeout(timer);
  }
};
