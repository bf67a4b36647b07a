/** Runs pieces of work in the order they are given, no more than `max` of them at the same time. */
export const createLanes = (max: number): (<T>(work: () => Promise<T>) => Promise<T>) => {
  let free = max;
  let waiting: (() => void)[] = [];
  let next = 0;
  const leave = (): void => {
    const enter = waiting[next];
    if (enter === undefined) {
      free += 1;
      waiting = [];
      next = 0;
    } else {
      next += 1;
      enter();
    }
  };
  return async (work) => {
    if (free > 0) free -= 1;
    else
      await new Promise<void>((resolve) => {
        waiting.push(resolve);
      });
    try {
      return await work();
    } finally {
      leave();
    }
  };
};
