/**
 * The result of `work`, or an error if `signal` comes first: its reason, or what `reasonOf` makes. Not Promise.race,
 * which would hold one reaction per call for as long as the signal lives.
 */
export const unlessAborted = <T>(
  signal: AbortSignal,
  work: Promise<T>,
  reasonOf: () => unknown = () => signal.reason,
): Promise<T> =>
  new Promise((resolve, reject) => {
    const leave = (): void => reject(reasonOf());
    if (signal.aborted) leave();
    else signal.addEventListener('abort', leave, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', leave));
  });
