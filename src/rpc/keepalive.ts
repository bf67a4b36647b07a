/**
 * Pings while a request is open: a link that is cut says nothing by itself. An idle connection stays silent, so
 * that an idle worker has nothing to wake up for.
 */
export type Keepalive = {
  /** One more, or one less, request is open. */
  add(): void;
  remove(): void;
  /** The connection is gone. */
  stop(): void;
};

/** `ping` sends one, and calls back when it is answered; not at all on a connection that is gone. */
export type PingedLink = { ping(onAnswer: () => void): void };

/** `onLost` is called once when a ping has had no answer for `pingTimeoutMs`. */
export const createKeepalive = (
  link: PingedLink,
  times: { readonly pingMs: number; readonly pingTimeoutMs: number },
  onLost: () => void,
): Keepalive => {
  let open = 0;
  let timer: NodeJS.Timeout | undefined;
  let sentMs: number | undefined;
  let isGone = false;

  const stop = (): void => {
    clearInterval(timer);
    timer = undefined;
  };
  const tick = (): void => {
    if (sentMs === undefined) {
      sentMs = performance.now();
      link.ping(() => {
        sentMs = undefined;
      });
    } else if (performance.now() - sentMs >= times.pingTimeoutMs) {
      stop();
      onLost();
    }
  };

  return {
    add() {
      open += 1;
      if (timer === undefined && !isGone) timer = setInterval(tick, times.pingMs);
    },
    remove() {
      open -= 1;
      if (open === 0) stop();
    },
    stop() {
      isGone = true;
      stop();
    },
  };
};
