import { describe, expect, test } from 'vitest';
import { LIMITS } from '../../../src/base/limits.ts';
import { EpochLog, type EpochLogPorts } from '../../../src/wal/epoch-log.ts';
import type { LogNotice } from '../../../src/wal/log.ts';
import { GO } from '../../crash/simulated-disk.ts';
import { type Controller, grantMachine, World } from '../../crash/world.ts';

/** A world whose host `a` owns a log that is compacted when its events take more bytes than its checkpoint. */
const withShortLogs = async (): Promise<{ world: World; owner: Controller }> => {
  const world = new World();
  world.tailBytesMin = 1;
  const owner = world.controller('a');
  await owner.log.init();
  return { world, owner };
};

const sizesOf = (world: World): readonly number[] =>
  world.disk
    .pathsBelow('/log')
    .filter((path) => /\.[0-9]+$/.test(path))
    .map((path) => world.disk.bytesOf(path)?.length ?? -1);

const epochsOf = (world: World): number => sizesOf(world).length;

describe('a log that has grown long', () => {
  test('goes on in a new file, and every grant with it', async () => {
    const { world, owner } = await withShortLogs();
    for (let i = 0; i < 20; i++) await owner.grant(`job ${i}`);
    expect(await owner.log.close()).toEqual([]);
    expect(epochsOf(world)).toBeGreaterThan(2);
    // the more there is in the checkpoint, the more events go with it
    expect(epochsOf(world)).toBeLessThan(12);
    expect((await world.replay()).size).toBe(20);
    expect(await world.findBroken()).toEqual([]);
  });

  test('is left as it is while its events are few', async () => {
    const { world, owner } = await withShortLogs();
    world.tailBytesMin = LIMITS.logTailBytesMin;
    const patient = world.controller('a');
    for (let i = 0; i < 20; i++) await patient.grant(`job ${i}`);
    expect(await patient.log.close()).toEqual([]);
    expect(epochsOf(world)).toBe(1);
    await owner.log.close();
  });

  test('is not left by who would not find room for a new one', async () => {
    const { world, owner } = await withShortLogs();
    world.disk.freeBytes = 100;
    for (let i = 0; i < 6; i++) await owner.grant(`job ${i}`);
    const notices = await owner.log.close();
    expect(notices.length).toBeLessThan(2);
    expect(epochsOf(world)).toBe(1);
    const teller = world.controller('a');
    await teller.grant('one more');
    expect(await teller.log.close()).toEqual([
      {
        kind: 'not-compacted',
        path: world.epochPath(1),
        reason: expect.stringMatching(/^100 bytes are free/),
      },
    ]);
  });

  test.each(['link', 'append', 'sync', 'freeBytes'] as const)(
    'and a new one that cannot be made take nothing from a commit (%s)',
    async (call) => {
      const { world, owner } = await withShortLogs();
      let isBehind = false;
      owner.process.plan = (step) => {
        if (!step.path.startsWith('/log')) return GO;
        if (step.call === 'unlock') isBehind = true;
        if (step.call === 'tryLock') isBehind = false;
        return isBehind && step.call === call ? { kind: 'fail', errno: 'EIO' } : GO;
      };
      const notices: LogNotice[] = [];
      for (let i = 0; i < 6; i++) notices.push(...(await owner.grant(`job ${i}`)).notices);
      notices.push(...(await owner.log.close()));
      expect(notices.map(({ kind }) => kind)).toContain('not-compacted');
      expect(world.acknowledged.size).toBe(6);
      expect(await world.controller('a').grant('two')).toMatchObject({ result: 7 });
      expect(await world.findBroken()).toEqual([]);
    },
  );

  test('is compacted while many processes commit, and each gets what it was told', async () => {
    const { world } = await withShortLogs();
    const processes = Array.from({ length: 6 }, () => world.controller('a'));
    await Promise.all(
      processes.map(async ({ grant, log }, who) => {
        for (let i = 0; i < 15; i++) await grant(`${who}-${i}`);
        await log.close();
      }),
    );
    expect(world.acknowledged.size).toBe(90);
    expect(epochsOf(world)).toBeGreaterThan(4);
    expect(await world.findBroken()).toEqual([]);
    const tokens = world.disk.pathsBelow('/run/a');
    expect(tokens.length).toBeLessThan(4);
  });
});

describe('what was replaced', () => {
  const withTwo = async (): Promise<{ world: World; owner: Controller }> => {
    const world = new World();
    const owner = world.controller('a');
    await owner.log.init();
    await owner.grant('one');
    await owner.log.compact();
    return { world, owner };
  };

  test('keeps its bytes until its successor has acknowledged a record, and then its name', async () => {
    const { world, owner } = await withTwo();
    expect(sizesOf(world)[0]).toBeGreaterThan(0);
    await owner.grant('two');
    await owner.log.close();
    expect(sizesOf(world)[0]).toBe(0);
    expect(sizesOf(world)[1]).toBeGreaterThan(0);
    expect(world.disk.pathsBelow('/run/a')).toEqual(['/run/a/epoch-2.token']);
    expect(await world.findBroken()).toEqual([]);
  });

  test('and could not be emptied takes nothing from a commit, and is emptied behind the next epoch', async () => {
    const { world, owner } = await withTwo();
    owner.process.plan = ({ call }) => (call === 'empty' ? { kind: 'fail', errno: 'EIO' } : GO);
    await owner.grant('two');
    expect(await owner.log.close()).toEqual([
      { kind: 'not-emptied', path: world.epochPath(1), reason: 'EIO' },
    ]);
    const next = world.controller('a');
    await next.log.compact();
    await next.grant('three');
    await next.log.close();
    expect(sizesOf(world).slice(0, 2)).toEqual([0, 0]);
  });

  test('and could not be emptied is told, though the next commit fails', async () => {
    const { world, owner } = await withTwo();
    owner.process.plan = ({ call }) => (call === 'empty' ? { kind: 'fail', errno: 'EIO' } : GO);
    await owner.grant('two');
    // Has its turn when what goes on behind the commit is over.
    await owner.log.read();
    owner.process.plan = ({ call }) => (call === 'tryLock' ? { kind: 'fail', errno: 'EIO' } : GO);
    await expect(owner.grant('three')).rejects.toMatchObject({ code: 'log-io' });
    expect(await owner.log.close()).toMatchObject([{ kind: 'not-emptied', path: world.epochPath(1) }]);
  });

  test('is not taken for a rollback by who has seen it, or has it open', async () => {
    const { world, owner } = await withTwo();
    const late = world.controller('a');
    await late.grant('late');
    await late.grant('later');
    const reader = world.controller('reader');
    await reader.log.read();
    await owner.log.compact();
    await owner.grant('two');
    await owner.grant('three');
    expect((await late.grant('last')).result).toBe(6);
    expect((await reader.log.read()).state.size).toBe(6);
    await world.controller('b').log.takeover();
    await world.controller('b').grant('of b');
    expect((await reader.log.read()).state.size).toBe(7);
    await expect(late.grant('fenced')).rejects.toMatchObject({ code: 'log-fenced' });
  });

  test('and is emptied under a reader makes it begin again', async () => {
    for (let cut = 1; cut < 8; cut++) {
      const { world, owner } = await withTwo();
      let reads = 0;
      let emptying: Promise<unknown> = Promise.resolve();
      const reader = world.controller('reader', ({ call, path }) => {
        if (call !== 'read' || path !== world.epochPath(2) || ++reads !== cut) return GO;
        // two epochs go by, and what is being read is over
        emptying = (async () => {
          await owner.log.compact();
          await owner.grant('two');
          await owner.log.close();
        })();
        return { kind: 'stop', until: emptying.then(() => undefined) };
      });
      const { state } = await reader.log.read();
      await emptying;
      expect(state.size).toBe(reads < cut ? 1 : 2);
    }
  });

  test('is left as it is when the directory was put back to what it had been', async () => {
    const { world, owner } = await withTwo();
    const before = world.disk.copyOf('/log');
    let isFirst = true;
    owner.process.plan = ({ call }) => {
      if (call === 'identify' && world.acknowledged.has('two') && isFirst) {
        isFirst = false;
        world.disk.putBack('/log', new Map([...before].slice(0, 1)));
      }
      return GO;
    };
    await owner.grant('two');
    await owner.log.close();
    expect(isFirst).toBe(false);
    expect(sizesOf(world)[0]).toBeGreaterThan(0);
  });
});

test('a directory that holds as many epochs as it may takes no more, and is left as it is', async () => {
  const world = new World();
  const { log, grant } = world.controller('a');
  await log.init();
  await grant('one');
  // as many names as no test has the time to make
  const names = Array.from({ length: LIMITS.logEpochsMax }, (_, n) => `leases.wal.${n + 1}`);
  const newest = world.disk.bytesOf(world.epochPath(1)) ?? Buffer.alloc(0);
  const { files } = world.disk.process();
  const ports = world.portsOf('b');
  const full: EpochLogPorts = {
    ...ports,
    files: {
      ...files,
      // as many names as no test has the time to make
      list: async (path) => (path === '/log' ? names : await files.list(path)),
    },
  };
  const taker = new EpochLog(full, world.optionsOf('b'), grantMachine);
  await expect(taker.takeover()).rejects.toMatchObject({ code: 'log-full' });
  expect(world.disk.bytesOf(world.epochPath(1))).toEqual(newest);
  expect(world.disk.pathsBelow('/log').length).toBe(1);
}, 100_000);
