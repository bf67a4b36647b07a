/**
 * What a worker remembers of one uid for as long as its disk lives: the newest epoch and lease that it acted for,
 * and the newest lease that it drained. With it a worker refuses whatever is older, even when it comes with a
 * good signature. One small text per uid; the worker makes it durable before it acts.
 */
import * as v from 'valibot';
import { XceError } from '../base/errors.ts';
import type { Uid } from '../base/ids.ts';

const count = v.pipe(v.number(), v.safeInteger(), v.minValue(0));

const SeenText = v.strictObject({
  version: v.literal(1),
  uid: v.pipe(v.number(), v.safeInteger(), v.minValue(1), v.maxValue(2_147_483_647)),
  epoch: count,
  lease: count,
  drained: count,
});

export type SeenUid = {
  readonly uid: Uid;
  /** Highest epoch of any ticket or drain request of this uid. */
  readonly epoch: number;
  /** Highest lease number of this uid. */
  readonly lease: number;
  /** Highest lease that was drained: nothing starts for it again. 0: none. */
  readonly drained: number;
};

type Sighting = { readonly uid: Uid; readonly epoch: number; readonly lease: number };

const raise = (seen: SeenUid | undefined, { uid, epoch, lease }: Sighting): SeenUid => ({
  uid,
  epoch: Math.max(seen?.epoch ?? 0, epoch),
  lease: Math.max(seen?.lease ?? 0, lease),
  drained: seen?.drained ?? 0,
});

/** The memory after a ticket that checkTicket accepted. */
export const rememberTicket = (seen: SeenUid | undefined, ticket: Sighting): SeenUid => raise(seen, ticket);

/** The memory after a drain request: the tombstone. */
export const rememberDrain = (seen: SeenUid | undefined, drain: Sighting): SeenUid => ({
  ...raise(seen, drain),
  drained: Math.max(seen?.drained ?? 0, drain.lease),
});

/** Whether two memories say the same, so that nothing need be written. */
export const isSameSeen = (one: SeenUid | undefined, other: SeenUid): boolean =>
  one !== undefined &&
  one.uid === other.uid &&
  one.epoch === other.epoch &&
  one.lease === other.lease &&
  one.drained === other.drained;

/** One line of JSON. */
export const encodeSeen = (seen: SeenUid): string =>
  `${JSON.stringify({ version: 1, uid: seen.uid, epoch: seen.epoch, lease: seen.lease, drained: seen.drained })}\n`;

/**
 * Throws XceError 'io' on a text that is not exactly the memory of that uid: a worker that cannot read what it
 * has seen must not act as if it had seen nothing.
 */
export const decodeSeen = (text: string, uid: Uid): SeenUid => {
  const unreadable = (problem: string, cause?: unknown) =>
    new XceError('io', `the memory of uid ${uid} cannot be read: ${problem}`, {
      ...(cause === undefined ? {} : { cause }),
    });
  let document: unknown;
  try {
    document = JSON.parse(text);
  } catch (cause) {
    throw unreadable('it is not JSON', cause);
  }
  const parsed = v.safeParse(SeenText, document);
  if (!parsed.success) throw unreadable('its fields are not those of this version');
  const { epoch, lease, drained } = parsed.output;
  if (parsed.output.uid !== uid) throw unreadable(`it is of uid ${parsed.output.uid}`);
  if (drained > lease) throw unreadable('it has drained a lease that it has not seen');
  return { uid, epoch, lease, drained };
};
