import { describe, expect, test } from 'vitest';
import { XceError } from '../../src/base/errors.ts';
import { type Fate, GO, LOSSES, type Loss, type Plan, type Step } from './simulated-disk.ts';
import { type Controller, World } from './world.ts';

/** Operations that go on behind an acknowledgement: `close` waits for what does. */
const grantAndClose = async ({ grant, log }: Controller, name: string): Promise<void> => {
  await grant(name);
  await log.close();
};

/** One whose every step is cut; it starts from a world that `prepare` made. */
type Operation = {
  prepare(world: World): Promise<void>;
  run(actor: Controller): Promise<unknown>;
  host: string;
};

const TWO_COMMITS: Operation = {
  prepare: async (world) => {
    const { log, grant } = world.controller('a');
    await log.init();
    await grant('before');
  },
  run: async ({ grant }) => {
    await grant('cut');
    await grant('cut as well');
  },
  host: 'a',
};

const OPERATIONS: Record<string, Operation> = {
  init: { prepare: async () => undefined, run: ({ log }) => log.init(), host: 'a' },
  'two commits of one process': TWO_COMMITS,
  'two commits on a disk of the host alone': {
    ...TWO_COMMITS,
    prepare: async (world) => {
      world.isLocal = true;
      await TWO_COMMITS.prepare(world);
    },
  },
  'commit after an unfinished one': {
    prepare: async (world) => {
      await world.controller('a').log.init();
      await world.controller('a').grant('before');
      const killed = world.controller('a', ({ call, path }) =>
        call === 'append' && path.startsWith('/log') ? { kind: 'killHalf' } : GO,
      );
      await killed.grant('torn').catch(() => undefined);
    },
    run: ({ grant }) => grant('cut'),
    host: 'a',
  },
  takeover: {
    prepare: async (world) => {
      const { log, grant } = world.controller('a');
      await log.init();
      await grant('before');
      await grant('too');
    },
    run: ({ log }) => log.takeover(),
    host: 'b',
  },
  compact: {
    prepare: async (world) => {
      const { log, grant } = world.controller('a');
      await log.init();
      await grant('before');
    },
    run: ({ log }) => log.compact(),
    host: 'a',
  },
  'first commit of an epoch, which empties the ones below': {
    prepare: async (world) => {
      const { log, grant } = world.controller('a');
      await log.init();
      await grant('before');
      await log.compact();
      await log.takeover();
    },
    run: (actor) => grantAndClose(actor, 'cut'),
    host: 'a',
  },
  'a commit that compacts': {
    prepare: async (world) => {
      const { log, grant } = world.controller('a');
      await log.init();
      for (const name of ['one', 'two', 'three', 'four']) await grant(name);
      world.tailBytesMin = 1;
    },
    run: (actor) => grantAndClose(actor, 'cut'),
    host: 'a',
  },
};

const isUsable = async (world: World, host: string): Promise<void> => {
  const { log, grant } = world.controller(host);
  try {
    await grant('after');
    return;
  } catch (error) {
    if (!(error instanceof XceError)) throw error;
    if (error.code === 'log-missing') await log.init();
    else if (error.code === 'log-fenced') await log.takeover();
    else throw error;
  }
  await grant('after');
};

const cutAt =
  (number: number, fate: Fate): Plan =>
  (step) =>
    step.number === number ? fate : GO;

/** Runs an operation with one step cut, then lets the rest of the world go on. */
const runCut = async (
  name: string,
  number: number,
  fate: Fate,
  after: 'process' | Loss,
): Promise<{ steps: readonly Step[]; problems: readonly string[] }> => {
  const operation = OPERATIONS[name];
  if (operation === undefined) throw new Error(name);
  const world = new World();
  await operation.prepare(world);
  const actor = world.controller(operation.host, cutAt(number, fate));
  // Its answer does not matter: what it acknowledged or denied is written down by the world.
  await operation.run(actor).catch(() => undefined);
  actor.process.kill();
  if (after !== 'process') {
    world.disk.powerCut('/log', after);
    world.disk.powerCut(`/var/${operation.host}`, after);
    world.reboot(operation.host);
  }
  const problems: string[] = [];
  if (world.disk.bytesOf(world.epochPath(1)) !== undefined) problems.push(...(await world.findBroken()));
  await isUsable(world, operation.host);
  problems.push(...(await world.findBroken()));
  const cut = actor.process.steps[number];
  const where = `${fate.kind} at step ${number}, ${cut?.call} ${cut?.path}`;
  return { steps: actor.process.steps, problems: problems.map((problem) => `${where}: ${problem}`) };
};

const stepsOf = async (name: string): Promise<readonly Step[]> =>
  (await runCut(name, -1, GO, 'process')).steps;

describe.each(Object.keys(OPERATIONS))('%s', (name) => {
  test.each(['process', ...LOSSES] as const)(
    'killed at any step keeps every promise and leaves a usable log (%s)',
    async (after) => {
      const steps = await stepsOf(name);
      expect(steps.length).toBeGreaterThan(10);
      const problems: string[] = [];
      for (const { number, call } of steps) {
        problems.push(...(await runCut(name, number, { kind: 'kill' }, after)).problems);
        if (call !== 'append' && call !== 'overwrite') continue;
        problems.push(...(await runCut(name, number, { kind: 'killHalf' }, after)).problems);
      }
      expect(problems).toEqual([]);
    },
  );

  test.each([
    ['EIO', ['EIO']],
    ['other errors', ['ENOSPC', 'EDQUOT', 'ESTALE', 'EBADFD']],
  ] as const)('with %s from any one call keeps every promise and leaves a usable log', async (_, errnos) => {
    const problems: string[] = [];
    for (const { number } of await stepsOf(name)) {
      const errno = errnos[number % errnos.length] ?? 'EIO';
      for (const kind of ['fail', 'failAfter'] as const) {
        for (const after of ['process', 'all lost'] as const) {
          problems.push(...(await runCut(name, number, { kind, errno }, after)).problems);
        }
      }
    }
    expect(problems).toEqual([]);
  });

  test('with a short write anywhere keeps every promise', async () => {
    const problems: string[] = [];
    for (const { number, call } of await stepsOf(name)) {
      if (call !== 'append' && call !== 'overwrite') continue;
      problems.push(...(await runCut(name, number, { kind: 'short' }, 'process')).problems);
    }
    expect(problems).toEqual([]);
  });
});
