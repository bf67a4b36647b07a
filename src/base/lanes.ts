type Waiter = { readonly enter: () => void; next: Waiter | undefined };

/** Runs pieces of work in the order they are given, no more than `max` of them at the same time. */
export const createLanes = (max: number): (<T>(work: () => Promise<T>) => Promise<T>) => {
  let free = max;
  // A list, so that what has entered is held no longer.
  let first: Waiter | undefined;
  let last: Waiter | undefined;
  const wait = (): Promise<void> =>
    new Promise((enter) => {
      const waiter: Waiter = { enter, next: undefined };
      if (last === undefined) first = waiter;
      else last.next = waiter;
      last = waiter;
    });
  const leave = (): void => {
    const entering = first;
    if (entering === undefined) {
      free += 1;
      return;
    }
    first = entering.next;
    if (first === undefined) last = undefined;
    entering.enter();
  };
  return async (work) => {
    if (free > 0) free -= 1;
    else await wait();
    try {
      return await work();
    } finally {
      leave();
    }
  };
};
