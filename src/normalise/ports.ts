import type { Clock } from '../os/clock.ts';
import type { MountFacts } from '../os/mounts.ts';
import type { PinnedInodes } from '../os/pinned.ts';

/** A process that lives. */
export type LiveProcess = { readonly pid: number; readonly command: string };

/** What normalise needs of the machine. */
export type NormalisePorts = {
  readonly pins: PinnedInodes;
  /** The root directory as a pin. */
  pinSlash(): number;
  mountOf(descriptor: number): MountFacts;
  /** Processes on this host that have the uid as any of theirs. Throws when it cannot know. */
  processesOf(uid: number): readonly LiveProcess[];
  readonly clock: Pick<Clock, 'monotonicMs'>;
};
