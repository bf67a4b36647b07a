/**
 * Pings while a request is open: a link that is cut says nothing by itself. An idle connection stays silent, so
 * that an idle worker has nothing to wake up for.
 */
import type { Http2Session } from '../os/http2.ts';

export type Keepalive = {
  /** One more, or one less, request is open. */
  add(): void;
  remove(): void;
};

/** `onLost` is called once when a ping has had no answer for `pingTimeoutMs`. */
export const createKeepalive = (
  session: Http2Session,
  times: { readonly pingMs: number; readonly pingTimeoutMs: number },
  onLost: () => void,
): Keepalive => {
  let open = 0;
  let timer: NodeJS.Timeout | undefined;
  let sentMs: number | undefined;

  const stop = (): void => {
    clearInterval(timer);
    timer = undefined;
  };
  const tick = (): void => {
    if (session.destroyed) {
      stop();
    } else if (sentMs === undefined) {
      sentMs = performance.now();
      session.ping(() => {
        sentMs = undefined;
      });
    } else if (performance.now() - sentMs >= times.pingTimeoutMs) {
      stop();
      onLost();
    }
  };
  session.once('close', stop);

  return {
    add() {
      open += 1;
      if (timer === undefined && !session.destroyed) timer = setInterval(tick, times.pingMs);
    },
    remove() {
      open -= 1;
      if (open === 0) stop();
    },
  };
};
