/**
 * What the requests of peers may take in all: their number, and the memory of their messages. Each request
 * holds its share until its handler is done, which may be long after its stream is gone.
 */
import { XceError } from '../base/errors.ts';

export type Hold = {
  /** Sets what this request holds, in bytes. Throws 'worker-busy' when there is no room for more. */
  set(bytes: number): void;
  /** Gives everything back; nothing can be held afterwards. Idempotent. */
  release(): void;
};

export type Budget = {
  /** One more request. Throws 'worker-busy' when there are as many as are taken. */
  hold(): Hold;
};

export const createBudget = (requestsMax: number, bytesMax: number): Budget => {
  let requests = 0;
  let used = 0;
  return {
    hold() {
      if (requests >= requestsMax) {
        throw new XceError('worker-busy', `there are ${requestsMax} requests already; no more are taken`);
      }
      requests += 1;
      let held = 0;
      let released = false;
      return {
        set(bytes) {
          if (released) return;
          if (bytes > held && used + bytes - held > bytesMax) {
            throw new XceError('worker-busy', `the requests hold ${used} bytes already; no more are taken`);
          }
          used += bytes - held;
          held = bytes;
        },
        release() {
          if (released) return;
          released = true;
          requests -= 1;
          used -= held;
        },
      };
    },
  };
};
