import { describe, expect, test } from 'vitest';
import type { FollowPorts } from '../../../src/wal/follow.ts';
import { type Followed, followLog } from '../../../src/wal/follow.ts';
import { follow } from '../../crash/follower.ts';
import { type Fate, GO, type Plan } from '../../crash/simulated-disk.ts';
import { type Controller, type GrantEvent, grantMachine, World } from '../../crash/world.ts';

type Thing = Followed<GrantEvent>;
const start = async (): Promise<{ world: World; a: ReturnType<World['controller']> }> => {
  const world = new World();
  const a = world.controller('a');
  await a.log.init();
  await a.grant('one');
  return { world, a };
};

/** A process ends at its first append to an epoch's file. */
const atAppend =
  (kind: 'killHalf' | 'killLate'): Plan =>
  ({ call, path }) =>
    call === 'append' && path.startsWith('/log/leases.wal.') ? { kind } : GO;

/** What happens at the fsync behind an append to the first epoch's file, and to the remedy. */
const atSync = (fate: Fate): Plan => {
  let hasAppended = false;
  return ({ call, path }) => {
    if (call === 'link') return { kind: 'kill' };
    if (path !== '/log/leases.wal.1') return GO;
    if (call === 'append') hasAppended = true;
    return call === 'sync' && hasAppended ? fate : GO;
  };
};
const dying = (world: World, plan: Plan, by: string): Promise<unknown> =>
  world
    .controller('a', plan)
    .grant(by)
    .catch(() => undefined);

/** Files are emptied behind a commit that is acknowledged already; what comes next waits for that. */
const emptied = ({ log }: Controller): Promise<unknown> => log.read();

describe('a follower', () => {
  test('shows what is committed after it came, each record once, and writes nothing', async () => {
    const { world, a } = await start();
    const steps = [
      () => a.grant('two'),
      () => undefined,
      async () => {
        await a.grant('three');
        await a.grant('four');
      },
    ];
    let before: unknown;
    const { lines, error } = await follow(
      world,
      [
        ...steps,
        () => {
          before = world.disk.copyOf('/log');
        },
      ],
      ({ call }) => {
        expect(['open', 'facts', 'read', 'sync', 'list', 'close']).toContain(call);
        return GO;
      },
    );
    expect(error).toBeUndefined();
    expect(lines).toEqual(['epoch 1 of a', '+two', '+three', '+four']);
    expect(world.disk.copyOf('/log')).toEqual(before);
  });

  test('says where an event stands, as a dump does', async () => {
    const { world, a } = await start();
    const things: Thing[] = [];
    const steps = [() => a.grant('two')];
    const ports: FollowPorts = {
      ...world.portsOf('reader'),
      nextPoll: async () => {
        const step = steps.shift();
        await step?.();
        return step !== undefined;
      },
    };
    for await (const more of followLog(ports, world.optionsOf('reader'), grantMachine.decode))
      things.push(...more);
    expect(things).toMatchObject([
      { type: 'epoch', epoch: 1, sequence: 2, host: 'a', base: { epoch: 0, sequence: 0 } },
      { type: 'events', epoch: 1, sequence: 3, events: [{ by: 'two' }, { by: 'two' }] },
    ]);
  });

  test('goes on through compactions and takeovers, several between two looks', async () => {
    const { world, a } = await start();
    const b = world.controller('b');
    const { lines, error } = await follow(world, [
      async () => {
        await a.grant('two');
        await a.log.compact();
      },
      () => a.grant('three'),
      async () => {
        await a.grant('four');
        await b.log.takeover();
        await a.log.close();
        await b.log.compact();
      },
      () => b.grant('five'),
    ]);
    expect(error).toBeUndefined();
    expect(lines).toEqual([
      'epoch 1 of a',
      '+two',
      'epoch 2 of a',
      '+three',
      '+four',
      'epoch 3 of b',
      'epoch 4 of b',
      '+five',
    ]);
  });

  test('says which records it could not read, when files are emptied between two looks', async () => {
    const { world, a } = await start();
    const { lines, error } = await follow(world, [
      async () => {
        await a.grant('two');
        await a.grant('three');
        await a.log.compact();
        await a.grant('four');
        await emptied(a);
      },
      async () => {
        await a.log.compact();
        await a.grant('five');
        await a.log.compact();
        await a.grant('six');
        await emptied(a);
      },
    ]);
    expect(error).toBeUndefined();
    expect(lines).toEqual([
      'epoch 1 of a',
      'gap 1:3-1:4',
      'epoch 2 of a',
      '+four',
      'gap 2:4-3:3',
      'epoch 4 of a',
      '+six',
    ]);
  });

  test('says nothing of a gap when it had read all of a file before that was emptied', async () => {
    const { world, a } = await start();
    const { lines } = await follow(world, [
      () => a.grant('two'),
      async () => {
        await a.log.compact();
        await a.grant('three');
      },
    ]);
    expect(lines).toEqual(['epoch 1 of a', '+two', 'epoch 2 of a', '+three']);
  });

  test('is not led astray by a write that lands in a file after it was emptied', async () => {
    const { world, a } = await start();
    const { lines, error } = await follow(world, [
      async () => {
        await a.grant('two');
        await dying(world, atAppend('killLate'), 'late');
        const b = world.controller('b');
        await b.log.takeover();
        await b.grant('three');
        await emptied(b);
        world.disk.landLateWrites();
        expect(world.disk.bytesOf(world.epochPath(1))?.length).toBeGreaterThan(0);
      },
    ]);
    expect(error).toBeUndefined();
    expect(lines).toEqual(['epoch 1 of a', 'gap 1:3-1:3', 'epoch 2 of b', '+three']);
  });

  test('never shows a record of an old tail that the next epoch does not cover', async () => {
    const { world } = await start();
    const { lines, error } = await follow(world, [
      async () => {
        await dying(world, atAppend('killLate'), 'late');
        await world.controller('b').log.takeover();
        world.disk.landLateWrites();
      },
      async () => {
        await world.controller('b').grant('two');
      },
    ]);
    expect(error).toBeUndefined();
    expect(lines).toEqual(['epoch 1 of a', 'epoch 2 of b', '+two']);
  });

  test('holds the last record while a successor is there that may not cover it', async () => {
    const { world } = await start();
    const b = (plan: Plan): Promise<unknown> =>
      world
        .controller('b', plan)
        .log.takeover()
        .catch(() => undefined);
    let whileHeld: readonly string[] = [];
    const { lines } = await follow(world, [
      async () => {
        await dying(world, atAppend('killLate'), 'late');
        await b(({ call, path }) =>
          call === 'append' && path === world.epochPath(2) ? { kind: 'kill' } : GO,
        );
        world.disk.landLateWrites();
      },
      async (shown) => {
        whileHeld = shown;
        await b(() => GO);
      },
    ]);
    // epoch 2 is void, and epoch 3 goes on from all of epoch 1
    expect(whileHeld).toEqual(['epoch 1 of a']);
    expect(lines).toEqual(['epoch 1 of a', '+late', 'epoch 3 of b']);
  });

  test('shows a record that nobody acknowledged yet only when it is durable, and so counts', async () => {
    const { world } = await start();
    const { lines } = await follow(world, [
      () => dying(world, atSync({ kind: 'kill' }), 'two'),
      async () => {
        world.disk.powerCut('/log', 'all lost');
        world.reboot('a');
        await world.controller('b').log.takeover();
      },
    ]);
    expect(lines).toEqual(['epoch 1 of a', '+two', 'epoch 2 of b']);
    expect([...(await world.replay()).values()].map(({ by }) => by)).toEqual(['one', 'two']);
  });

  test('takes back what storage lost that had failed to write it', async () => {
    const { world } = await start();
    const { lines } = await follow(world, [
      () => dying(world, atSync({ kind: 'fail', errno: 'EIO' }), 'two'),
      async () => {
        world.disk.powerCut('/log', 'all lost');
        world.reboot('a');
        await world.controller('b').log.takeover();
      },
      () => world.controller('b').grant('three'),
    ]);
    expect(lines).toEqual(['epoch 1 of a', '+two', 'withdrawn 1:3-1:3', 'epoch 2 of b', '+three']);
  });

  test('waits at a torn tail, and goes on in the epoch that leaves it behind', async () => {
    const { world } = await start();
    const { lines, error } = await follow(world, [
      () => dying(world, atAppend('killHalf'), 'half'),
      () => undefined,
      () => world.controller('a').grant('two'),
    ]);
    expect(error).toBeUndefined();
    expect(lines.slice(0, 1)).toEqual(['epoch 1 of a']);
    expect(lines.slice(-2)).toEqual(['epoch 2 of a', '+two']);
    expect(lines).not.toContain('+half');
  });

  test('starts below an epoch that was begun and never completed', async () => {
    const { world } = await start();
    const plan: Plan = ({ call, path }) =>
      call === 'append' && path === world.epochPath(2) ? { kind: 'kill' } : GO;
    await world
      .controller('b', plan)
      .log.takeover()
      .catch(() => undefined);
    const { lines } = await follow(world, [
      async () => {
        await world.controller('b').log.takeover();
        await world.controller('b').grant('two');
      },
    ]);
    expect(lines).toEqual(['epoch 1 of a', 'epoch 3 of b', '+two']);
  });

  test('shows what comes before a record that does not check, then its offset', async () => {
    const { world, a } = await start();
    const { lines, error } = await follow(world, [
      async () => {
        await a.grant('two');
        const at = world.disk.bytesOf(world.epochPath(1))?.length ?? 0;
        await a.grant('three');
        await a.grant('four');
        world.disk.alter(world.epochPath(1), (bytes) => {
          bytes.writeUInt8(bytes.readUInt8(at + 40) ^ 1, at + 40);
          return bytes;
        });
      },
    ]);
    expect(error).toMatchObject({ code: 'log-corrupt', message: /at offset [0-9]+/ });
    expect(lines).toEqual(['epoch 1 of a']);
  });

  test('looks again at a record that is on its way', async () => {
    const { world, a } = await start();
    let whole: Buffer | undefined;
    let reads = 0;
    const { lines, error } = await follow(
      world,
      [
        async () => {
          await a.grant('two');
          whole = world.disk.bytesOf(world.epochPath(1));
          world.disk.alter(world.epochPath(1), (bytes) =>
            bytes.fill(0, bytes.length - 40, bytes.length - 20),
          );
          reads = 0;
        },
      ],
      ({ call }) => {
        const bytes = whole;
        if (bytes !== undefined && call === 'read' && ++reads === 6) {
          world.disk.alter(world.epochPath(1), () => Buffer.from(bytes));
        }
        return GO;
      },
    );
    expect(error).toBeUndefined();
    expect(lines).toEqual(['epoch 1 of a', '+two']);
  });

  test('ends when the log is gone, or is cut short with nothing above it', async () => {
    for (const [change, code] of [
      [(world: World) => world.disk.erase('/log'), 'log-missing'],
      [(world: World) => world.disk.alter(world.epochPath(1), () => Buffer.alloc(0)), 'log-corrupt'],
      [
        (world: World) => world.disk.alter(world.epochPath(1), (bytes) => bytes.subarray(0, -3)),
        'log-corrupt',
      ],
    ] as const) {
      const { world } = await start();
      const { lines, error } = await follow(world, [() => change(world)]);
      expect(error).toMatchObject({ code });
      expect(lines).toEqual(['epoch 1 of a']);
    }
    expect((await follow(new World(), [])).error).toMatchObject({ code: 'log-missing' });
  });

  test('reads of a long log only what is new', async () => {
    const { world, a } = await start();
    await a.log.commit(() => ({
      events: Array.from({ length: 5000 }, (_, uid) => ({
        uid: uid + 10,
        by: 'x'.repeat(100),
        part: 1 as const,
      })),
      result: undefined,
    }));
    let isPolling = false;
    let reads = 0;
    const { lines } = await follow(
      world,
      [
        () => {
          isPolling = true;
        },
        () => {
          expect(reads).toBeLessThan(8);
          return a.grant('two');
        },
      ],
      ({ call }) => {
        if (isPolling && call === 'read') reads += 1;
        return GO;
      },
    );
    expect(lines).toEqual(['epoch 1 of a', '+two']);
  });

  test('makes durable what it read before it shows it', async () => {
    const { world } = await start();
    let isPolling = false;
    const { lines } = await follow(
      world,
      [
        () => {
          isPolling = true;
        },
        async () => {
          world.disk.powerCut('/log', 'all lost');
          world.reboot('a');
          await world.controller('b').log.takeover();
        },
      ],
      ({ call }) => {
        if (!isPolling || call !== 'read') return GO;
        isPolling = false;
        // behind the fsync with which a reader begins
        return { kind: 'stop', until: dying(world, atSync({ kind: 'kill' }), 'two').then(() => undefined) };
      },
    );
    expect(lines).toEqual(['epoch 1 of a', '+two', 'epoch 2 of b']);
  });

  /** A host takes an epoch; it stops before it writes what makes it complete. */
  const takeUntilBase = async (
    world: World,
    host: string,
    epoch: number,
  ): Promise<{ finish(): Promise<void> }> => {
    let resume = (): void => undefined;
    const until = new Promise<void>((resolve) => {
      resume = resolve;
    });
    let taken: Promise<unknown> = Promise.resolve();
    await new Promise<void>((resolve) => {
      const plan: Plan = ({ call, path }) => {
        if (call !== 'append' || path !== world.epochPath(epoch)) return GO;
        resolve();
        return { kind: 'stop', until };
      };
      // It finds a successor, and is refused.
      taken = world
        .controller(host, plan)
        .log.takeover()
        .catch(() => undefined);
    });
    return {
      finish: async () => {
        resume();
        await taken;
      },
    };
  };

  test('does not follow an epoch that became complete when its successor was there', async () => {
    const { world } = await start();
    let b: Awaited<ReturnType<typeof takeUntilBase>> | undefined;
    const { lines } = await follow(
      world,
      [
        async () => {
          b = await takeUntilBase(world, 'b', 2);
        },
        () => undefined,
      ],
      ({ call, path }) => {
        // It has looked for the successor, and is about to read it.
        if (call !== 'open' || path !== world.epochPath(2) || b === undefined) return GO;
        const { finish } = b;
        b = undefined;
        return { kind: 'stop', until: world.controller('c').log.takeover().then(finish) };
      },
    );
    expect(lines).toEqual(['epoch 1 of a', 'epoch 3 of c']);
  });

  test.each([
    ['says nothing of a gap', false, []],
    ['says what it cannot show', true, ['gap 1:3-1:3']],
  ] as const)('that began in an epoch that turns out to be void %s', async (_says, isLate, gap) => {
    const { world } = await start();
    if (isLate) await dying(world, atAppend('killLate'), 'late');
    const b = await takeUntilBase(world, 'b', 2);
    if (isLate) world.disk.landLateWrites();
    const c = await takeUntilBase(world, 'c', 3);
    await b.finish();
    const { lines, error } = await follow(world, [
      () => c.finish(),
      () => world.controller('c').grant('two'),
    ]);
    expect(error).toBeUndefined();
    expect(lines).toEqual(['epoch 2 of b', ...gap, 'epoch 3 of c', '+two']);
  });

  test('takes what lands in a file that is emptied while it reads it for no corruption', async () => {
    const { world, a } = await start();
    let reads = 0;
    let isPolling = false;
    const empty = async (): Promise<void> => {
      await a.log.compact();
      await a.grant('three');
      // The file is emptied behind the commit.
      await a.log.close();
      const late = Buffer.alloc(2_000_000);
      late.fill(1, late.length - 100);
      world.disk.alter(world.epochPath(1), () => late);
    };
    const { lines, error } = await follow(
      world,
      [
        async () => {
          await a.log.commit(() => ({
            events: Array.from({ length: 6000 }, (_, uid) => ({
              uid: uid + 10,
              by: 'x'.repeat(100),
              part: 1 as const,
            })),
            result: undefined,
          }));
          isPolling = true;
        },
        () => undefined,
      ],
      ({ call }) => (isPolling && call === 'read' && ++reads === 3 ? { kind: 'stop', until: empty() } : GO),
    );
    expect(error).toBeUndefined();
    expect(lines).toEqual(['epoch 1 of a', 'gap 1:3-1:3', 'epoch 2 of a', '+three']);
  });
});
