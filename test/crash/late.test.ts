import { describe, expect, test } from 'vitest';
import { type Fate, GO, LOSSES, type Plan } from './simulated-disk.ts';
import { type Controller, World } from './world.ts';

const FAILED: Fate = { kind: 'fail', errno: 'EIO' };

const prepare = async (): Promise<World> => {
  const world = new World();
  const { log, grant } = world.controller('a');
  await log.init();
  await grant('before');
  return world;
};

const RUNS: Record<string, (actor: Controller) => Promise<unknown>> = {
  commit: ({ grant }) => grant('first'),
  compact: ({ log }) => log.compact(),
};

describe.each(Object.keys(RUNS))('%s', (name) => {
  const start = async (world: World, plan?: Plan): Promise<Controller> => {
    const actor = world.controller('a', plan);
    // What it was told is written down by the world.
    await RUNS[name]?.(actor).catch(() => undefined);
    actor.process.kill();
    return actor;
  };

  test('a write that arrives after the death of its process harms nothing that came later', async () => {
    const { steps } = (await start(await prepare())).process;
    const appends = steps.filter(({ call, path }) => call === 'append' && path.startsWith('/log'));
    expect(appends.length).toBeGreaterThan(0);
    for (const { number } of appends) {
      const world = await prepare();
      await start(world, (step) => (step.number === number ? { kind: 'killLate' } : GO));
      await world.controller('a').grant('second');
      world.disk.landLateWrites();
      expect(await world.findBroken()).toEqual([]);
      await world.controller('a').grant('third');
      expect(await world.findBroken()).toEqual([]);
    }
  });

  test.each(LOSSES)(
    'an fsync that failed, and the death of the process soon after, harm nothing that came later (%s)',
    async (loss) => {
      const { steps } = (await start(await prepare())).process;
      const syncs = steps.filter(({ call, path }) => call === 'sync' && path.startsWith('/log'));
      expect(syncs.length).toBeGreaterThan(0);
      for (const { number } of syncs) {
        for (let later = 1; later < 8; later++) {
          const world = await prepare();
          await start(world, (step) => {
            if (step.number === number) return FAILED;
            return step.number === number + later ? { kind: 'kill' } : GO;
          });
          await world.controller('a').grant('second');
          world.disk.powerCut('/log', loss);
          expect(await world.findBroken()).toEqual([]);
        }
      }
    },
  );
});
