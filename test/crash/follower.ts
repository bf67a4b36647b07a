/** A follower of a log on a simulated disk, and what it shows. */
import { type Followed, type FollowPorts, followLog } from '../../src/wal/follow.ts';
import { GO, type Plan } from './simulated-disk.ts';
import { type GrantEvent, grantMachine, type World } from './world.ts';

type Thing = Followed<GrantEvent>;
export type Shown = { readonly lines: readonly string[]; readonly error: unknown };

/** Short forms: `+one` for the grant to one, and what else is said with its numbers. */
const lineOf = (thing: Thing): string => {
  switch (thing.type) {
    case 'events':
      return `+${thing.events.find(({ part }) => part === 1)?.by}`;
    case 'epoch':
      return `epoch ${thing.epoch} of ${thing.host}`;
    case 'gap':
    case 'withdrawn': {
      const { from, to } = thing;
      return `${thing.type} ${from.epoch}:${from.sequence}-${to.epoch}:${to.sequence}`;
    }
  }
};

/**
 * What a follower shows that looks, then looks again after each of the steps. What it has shown by then goes to the
 * step.
 */
export const follow = async (
  world: World,
  steps: readonly ((shown: readonly string[]) => unknown)[],
  plan: Plan = () => GO,
): Promise<Shown> => {
  const lines: string[] = [];
  const rest = [...steps];
  const ports: FollowPorts = {
    ...world.portsOf('reader', world.disk.process(plan)),
    nextPoll: async () => {
      const step = rest.shift();
      await step?.([...lines]);
      return step !== undefined;
    },
  };
  try {
    for await (const things of followLog(ports, world.optionsOf('reader'), grantMachine.decode)) {
      lines.push(...things.map(lineOf));
    }
    return { lines, error: undefined };
  } catch (error) {
    return { lines, error };
  }
};
