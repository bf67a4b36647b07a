/** Ends what has no end of its own, when it is asked to; asked again, the process ends at once. */
export const endOnSignal = (): AbortSignal => {
  const ended = new AbortController();
  for (const name of ['SIGINT', 'SIGTERM'] as const) process.once(name, () => ended.abort());
  return ended.signal;
};
