import { describe, expect, test } from 'vitest';
import { XceError } from '../../src/base/errors.ts';
import { GO, type Plan, type Step } from './simulated-disk.ts';
import { type Controller, World } from './world.ts';

/** A gate that a process stops at, once, and the news that it has come there. */
const gateAt = (isIt: (step: Step) => boolean) => {
  let open: () => void = () => undefined;
  let arrive: () => void = () => undefined;
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  const arrived = new Promise<'arrived'>((resolve) => {
    arrive = () => resolve('arrived');
  });
  let isUsed = false;
  const plan: Plan = (step) => {
    if (isUsed || !isIt(step)) return GO;
    isUsed = true;
    arrive();
    return { kind: 'stop', until: opened };
  };
  return { plan, arrived, open };
};

/** The calls that other hosts can see or be seen by, and that take time. Stopping at others changes nothing. */
const isShared = ({ path, call }: Step): boolean =>
  path.startsWith('/log') && call !== 'tryLock' && call !== 'unlock';

const countShared = async (run: (world: World) => Promise<Controller>): Promise<number> => {
  const actor = await run(new World());
  return actor.process.steps.filter(isShared).length;
};

const nthShared = (n: number): ((step: Step) => boolean) => {
  let seen = 0;
  return (step) => {
    if (!isShared(step)) return false;
    seen += 1;
    return seen - 1 === n;
  };
};

/** Expected refusals of whoever came too late, or found the other in its way. */
const refused = async (run: Promise<unknown>): Promise<string> => {
  try {
    await run;
    return 'done';
  } catch (error) {
    if (error instanceof XceError && /^log-(fenced|outcome-unknown|busy|io)$/.test(error.code))
      return error.code;
    throw error;
  }
};

const prepare = async (world: World): Promise<void> => {
  const { log, grant } = world.controller('a');
  await log.init();
  await grant('first');
};

/** Stops `slow` at one of its calls, lets `fast` run in between, and looks at what both were told. */
const interleave = async (
  stopAt: number,
  slow: (world: World, plan: Plan) => Promise<unknown>,
  fast: (world: World) => Promise<unknown>,
  world = new World(),
): Promise<{ answer: string; broken: readonly string[] }> => {
  await prepare(world);
  const gate = gateAt(nthShared(stopAt));
  const running = refused(slow(world, gate.plan));
  if ((await Promise.race([gate.arrived, running])) === 'arrived') {
    await fast(world);
    gate.open();
  }
  const answer = await running;
  return { answer, broken: await world.findBroken() };
};

const commitOn = async (world: World, host: string, by: string, plan?: Plan): Promise<Controller> => {
  const actor = world.controller(host, plan);
  await actor.grant(by);
  return actor;
};

const takeAndCommit = async (world: World, host: string, by: string, plan?: Plan): Promise<Controller> => {
  const actor = world.controller(host, plan);
  await actor.log.takeover();
  await actor.grant(by);
  return actor;
};

describe('an owner that is stopped in its commit while another takes the log over', () => {
  test('is never acknowledged what its successor does not have, wherever it is stopped', async () => {
    const steps = await countShared(async (world) => {
      await prepare(world);
      return await commitOn(world, 'a', 'slow');
    });
    expect(steps).toBeGreaterThan(8);
    const answers: string[] = [];
    for (let stopAt = 0; stopAt < steps; stopAt++) {
      const { answer, broken } = await interleave(
        stopAt,
        (world, plan) => commitOn(world, 'a', 'slow', plan),
        (world) => takeAndCommit(world, 'b', 'fast'),
      );
      expect({ stopAt, broken }).toEqual({ stopAt, broken: [] });
      answers.push(answer);
    }
    // before the write it is fenced, and after the write it cannot know
    expect(answers.join(' ')).toMatch(/^(log-fenced )+(log-outcome-unknown ?)+$/);
  });

  test('has written no byte when the other was there before its write', async () => {
    const world = new World();
    await prepare(world);
    const before = world.disk.bytesOf(world.epochPath(1));
    const gate = gateAt(({ call, path }) => call === 'sync' && path.startsWith('/log'));
    const slow = refused(world.controller('a', gate.plan).grant('slow'));
    await gate.arrived;
    await world.controller('b').log.takeover();
    gate.open();
    expect(await slow).toBe('log-fenced');
    expect(world.disk.bytesOf(world.epochPath(1))).toEqual(before);
  });
});

describe('a taker that is stopped while the owner goes on', () => {
  test('loses nothing that the owner was acknowledged, wherever it is stopped', async () => {
    const steps = await countShared(async (world) => {
      await prepare(world);
      return await takeAndCommit(world, 'b', 'slow');
    });
    expect(steps).toBeGreaterThan(20);
    for (let stopAt = 0; stopAt < steps; stopAt++) {
      const { broken } = await interleave(
        stopAt,
        (world, plan) => takeAndCommit(world, 'b', 'slow', plan),
        (world) => refused(commitOn(world, 'a', 'fast')),
      );
      expect({ stopAt, broken }).toEqual({ stopAt, broken: [] });
    }
  });

  test('and another taker: one of them owns the log, and nothing is lost', async () => {
    const steps = await countShared(async (world) => {
      await prepare(world);
      return await takeAndCommit(world, 'b', 'slow');
    });
    for (let stopAt = 0; stopAt < steps; stopAt++) {
      const { broken } = await interleave(
        stopAt,
        (world, plan) => takeAndCommit(world, 'b', 'slow', plan),
        (world) => takeAndCommit(world, 'c', 'fast'),
      );
      expect({ stopAt, broken }).toEqual({ stopAt, broken: [] });
    }
  });
});

describe('a takeover that is stopped until another has taken the next epoch', () => {
  test('says that the log is not its own', async () => {
    const steps = await countShared(async (world) => {
      await prepare(world);
      const actor = world.controller('b');
      await actor.log.takeover();
      return actor;
    });
    const answers: string[] = [];
    for (let stopAt = 0; stopAt < steps; stopAt++) {
      const { answer, broken } = await interleave(
        stopAt,
        async (world, plan) => {
          const { epoch } = await world.controller('b', plan).log.takeover();
          expect(world.disk.pathsBelow('/log').at(-1)).toBe(world.epochPath(epoch));
        },
        async (world) => {
          await world.controller('c').log.takeover();
          await world.controller('c').log.takeover();
        },
      );
      expect({ stopAt, broken }).toEqual({ stopAt, broken: [] });
      answers.push(answer);
    }
    expect(answers.join(' ')).toMatch(/^(done )+(log-fenced ?)+$/);
  });
});

describe.each([
  ['shared storage', false],
  ['its own disk', true],
])('two processes of one host, on %s,', (_, isLocal) => {
  const newWorld = (): World => Object.assign(new World(), { isLocal });

  test('of which one is stopped: the other waits and gives up, or takes over; nothing is lost', async () => {
    const actor = newWorld();
    await prepare(actor);
    const whole = await commitOn(actor, 'a', 'slow');
    const steps = whole.process.steps.filter(isShared).length;
    expect(steps).toBeGreaterThan(8);
    const answers: string[] = [];
    const slowAnswers: string[] = [];
    for (let stopAt = 0; stopAt < steps; stopAt++) {
      const { answer, broken } = await interleave(
        stopAt,
        (world, plan) => commitOn(world, 'a', 'slow', plan),
        async (world) => {
          answers.push(await refused(commitOn(world, 'a', 'waiting')));
          await takeAndCommit(world, 'a', 'fast');
        },
        newWorld(),
      );
      expect({ stopAt, broken }).toEqual({ stopAt, broken: [] });
      slowAnswers.push(answer);
    }
    expect(answers).toContain('log-busy');
    expect(slowAnswers).toContain('log-outcome-unknown');
  });
});

describe('two takeovers by one host', () => {
  test('of which one is stopped at any call, even one on its own disk, leave a log that the host can write', async () => {
    const world = new World();
    await prepare(world);
    const whole = world.controller('a');
    await whole.log.takeover();
    const steps = whole.process.steps.filter(({ call }) => call !== 'tryLock' && call !== 'unlock');
    for (const { number } of steps) {
      const other = new World();
      await prepare(other);
      const gate = gateAt((step) => step.number === number);
      const slow = refused(other.controller('a', gate.plan, { lockTimeoutMs: 20 }).log.takeover());
      await Promise.race([gate.arrived, slow]);
      const fast = await refused(other.controller('a', undefined, { lockTimeoutMs: 20 }).log.takeover());
      gate.open();
      expect([await slow, fast]).toContain('done');
      await other.controller('a').grant('after');
      expect({ number, broken: await other.findBroken() }).toEqual({ number, broken: [] });
    }
  });
});

describe('three hosts, two of them stopped at any two calls', () => {
  /** Every third pair: all of them take minutes, and neighbours differ little. */
  test('lose and double nothing', async () => {
    const steps = await countShared(async (world) => {
      await prepare(world);
      return await takeAndCommit(world, 'b', 'second');
    });
    let pairs = 0;
    for (let ownerAt = 0; ownerAt < 14; ownerAt++) {
      for (let takerAt = ownerAt % 3; takerAt < steps; takerAt += 3) {
        const world = new World();
        await prepare(world);
        const owner = gateAt(nthShared(ownerAt));
        const taker = gateAt(nthShared(takerAt));
        const first = refused(commitOn(world, 'a', 'first', owner.plan));
        await Promise.race([owner.arrived, first]);
        const second = refused(takeAndCommit(world, 'b', 'second', taker.plan));
        await Promise.race([taker.arrived, second]);
        await refused(takeAndCommit(world, 'c', 'third'));
        owner.open();
        await first;
        taker.open();
        await second;
        expect({ ownerAt, takerAt, broken: await world.findBroken() }).toEqual({
          ownerAt,
          takerAt,
          broken: [],
        });
        pairs += 1;
      }
    }
    expect(pairs).toBeGreaterThan(100);
  });
});
