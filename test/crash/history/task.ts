import type { RealPlace } from '../real-log.ts';
import type { Pool, Timeouts } from '../real-store.ts';

/** What one process of a history is to do: process.ts. */
export type Task = {
  readonly place: RealPlace;
  readonly timeouts: Timeouts;
  /** Several processes of one slot follow each other: 'slot.generation'. */
  readonly slot: string;
  readonly process: string;
  readonly seed: number;
  /** Jobs that ask at once, at most. */
  readonly batchMax: number;
  readonly pool: Pool;
  /** The newest epoch that the host is known to own. */
  readonly ownedEpoch: number;
  /** Ed25519, PKCS #8, PEM. */
  readonly workerKey: string;
};
