import { describe, expect, test } from 'vitest';
import { follow, type Shown } from './follower.ts';
import { type Fate, GO, type Plan } from './simulated-disk.ts';
import { World } from './world.ts';

const at =
  (number: number, fate: () => Fate): Plan =>
  (step) =>
    step.number === number ? fate() : GO;

const begin = async (): Promise<World> => {
  const world = new World();
  const { log, grant } = world.controller('a');
  await log.init();
  await grant('old');
  await log.close();
  return world;
};

/** Whatever can become of an epoch: commits, a new file, another owner. Nothing of it is caught by anybody. */
const HISTORIES: Readonly<Record<string, (world: World, plan?: Plan) => Promise<unknown>>> = {
  'a commit': (world, plan) => world.controller('a', plan).grant('new'),
  'a compaction, and the first commit behind it': async (world, plan) => {
    const { log, grant } = world.controller('a', plan);
    await grant('new');
    await log.compact();
    await grant('newer');
  },
  'a takeover, and the first commit behind it': async (world, plan) => {
    await world.controller('a').grant('new');
    const { log, grant } = world.controller('b', plan);
    await log.takeover();
    await grant('newer');
  },
};

/** What was shown counts, in the order of the log, each grant once; nothing is left out without a word. */
const expectTrue = async (world: World, { lines, error }: Shown): Promise<void> => {
  expect(error).toBeUndefined();
  const shown = lines.filter((line) => line.startsWith('+')).map((line) => line.slice(1));
  const counting = [...(await world.replay()).values()].map(({ by }) => by).filter((by) => by !== 'old');
  const hasGap = lines.some((line) => line.startsWith('gap '));
  expect(shown).toEqual(hasGap ? counting.filter((by) => shown.includes(by)) : counting);
  expect(lines.filter((line) => line.startsWith('withdrawn '))).toEqual([]);
};

/** Brings the log to an end that every follower must have reached: a takeover and a commit. */
const conclude = async (world: World): Promise<void> => {
  const { log, grant } = world.controller('c');
  await log.takeover();
  await grant('last');
};

describe.each(Object.entries(HISTORIES))('%s', (_name, run) => {
  const countSteps = async (): Promise<number> => {
    const world = await begin();
    let count = 0;
    await run(world, () => {
      count += 1;
      return GO;
    });
    return count;
  };

  test('is shown as it counts, wherever the follower looks while it goes on', async () => {
    for (let number = (await countSteps()) - 1; number >= 0; number--) {
      const world = await begin();
      let resume = (): void => undefined;
      const until = new Promise<void>((resolve) => {
        resume = resolve;
      });
      let done: Promise<unknown> = Promise.resolve();
      const reached = (): Promise<void> =>
        new Promise((resolve) => {
          done = run(
            world,
            at(number, () => {
              resolve();
              return { kind: 'stop', until };
            }),
          );
          done.finally(resolve);
        });
      const shown = await follow(world, [
        reached,
        async () => {
          resume();
          await done;
        },
        () => conclude(world),
      ]);
      await expectTrue(world, shown);
    }
  });

  test.each(['kill', 'killHalf', 'killLate'] as const)(
    'is shown as it counts, wherever its process ends (%s)',
    async (kind) => {
      for (let number = (await countSteps()) - 1; number >= 0; number--) {
        const world = await begin();
        const dies = at(number, () => ({ kind }));
        const shown = await follow(world, [
          () => run(world, dies).catch(() => undefined),
          () => conclude(world),
          () => world.disk.landLateWrites(),
        ]);
        await expectTrue(world, shown);
      }
    },
  );

  test('is shown as it counts, at whichever step of the follower it comes between', async () => {
    let number = -1;
    for (let isReached = true; isReached; ) {
      number += 1;
      isReached = false;
      const world = await begin();
      let isNew = false;
      let hasBegun = false;
      let isOver = false;
      const shown = await follow(
        world,
        [
          () => {
            hasBegun = true;
          },
          () => {
            isOver = true;
            return conclude(world);
          },
        ],
        (step) => {
          if (step.number !== number || isOver) return GO;
          isReached = true;
          isNew = hasBegun;
          return { kind: 'stop', until: run(world).then(() => undefined) };
        },
      );
      expect(shown).toMatchObject({ error: undefined });
      expect(shown.lines.at(-1)).toBe('+last');
      if (isNew) await expectTrue(world, shown);
    }
    expect(number).toBeGreaterThan(20);
  });
});
