import { describe, expect, test } from 'vitest';
import { checkLog, type LogReport } from '../../../src/wal/check.ts';
import { GO } from '../../crash/simulated-disk.ts';
import { type Grants, grantMachine, World } from '../../crash/world.ts';

const check = (world: World, host = 'checker', cluster = 'c'): Promise<LogReport<Grants>> =>
  checkLog(world.portsOf(host), { ...world.optionsOf(host), cluster }, grantMachine);

/** Epoch 1 with two grants, a void epoch 2, and epoch 3 with one grant more. */
const threeEpochs = async (): Promise<World> => {
  const world = new World();
  const { log, grant } = world.controller('a');
  await log.init();
  await grant('one');
  await grant('two');
  const dying = world.controller('b', ({ call, path }) =>
    call === 'append' && path === world.epochPath(2) ? { kind: 'killHalf' } : GO,
  );
  await dying.log.takeover().catch(() => undefined);
  const last = world.controller('c');
  await last.log.takeover();
  const kept = [1, 2].map((epoch) => world.disk.bytesOf(world.epochPath(epoch)) ?? Buffer.alloc(0));
  await last.grant('three');
  await last.log.close();
  // as if the owner had been killed before it emptied them
  for (const [index, bytes] of kept.entries()) world.disk.put(world.epochPath(index + 1), bytes);
  return world;
};

const lastFrameOf = (bytes: Buffer): number => bytes.lastIndexOf('XCEL');

describe('checking a log', () => {
  test('tells of every epoch, newest first, and changes nothing', async () => {
    const world = await threeEpochs();
    const before = world.disk.copyOf('/log');
    const { epochs, problems } = await check(world);
    expect(problems).toEqual([]);
    expect(epochs.map(({ epoch, status, owner }) => [epoch, status, owner?.host])).toEqual([
      [3, 'complete', 'c'],
      [2, 'void', 'b'],
      [1, 'complete', 'a'],
    ]);
    expect(epochs[0]?.base).toMatchObject({
      epoch: 1,
      sequence: epochs[2]?.records === undefined ? -1 : epochs[2].records - 1,
    });
    expect(epochs[1]?.tornBytes).toBeGreaterThan(0);
    expect(epochs[2]?.bytes).toBe(before.get(world.epochPath(1))?.length);
    expect(world.disk.copyOf('/log')).toEqual(before);
  });

  test('names file and offset of every record that does not check, in every epoch', async () => {
    const world = await threeEpochs();
    for (const epoch of [1, 3]) {
      const bytes = world.disk.bytesOf(world.epochPath(epoch)) ?? Buffer.alloc(0);
      bytes[40] = (bytes[40] ?? 0) ^ 4;
      world.disk.put(world.epochPath(epoch), bytes);
    }
    const { problems } = await check(world);
    expect(problems.map(({ code, path, offset }) => [code, path, offset])).toEqual([
      ['log-corrupt', world.epochPath(3), 0],
      ['log-corrupt', world.epochPath(1), 0],
    ]);
  });

  test('finds that an epoch rests on records which are gone', async () => {
    const world = await threeEpochs();
    const bytes = world.disk.bytesOf(world.epochPath(1)) ?? Buffer.alloc(0);
    world.disk.put(world.epochPath(1), bytes.subarray(0, bytes.length - 1));
    const { problems } = await check(world);
    expect(problems).toMatchObject([{ code: 'log-corrupt', path: world.epochPath(1), offset: null }]);
    expect(problems[0]?.message).toContain('epoch 3 rests on record');
  });

  test.each([
    ['', (): Buffer => Buffer.alloc(0)],
    [', also when a late write landed in it', (bytes: Buffer): Buffer => bytes.subarray(lastFrameOf(bytes))],
    [', also when one landed behind a hole', (bytes: Buffer): Buffer => bytes.fill(0, 0, lastFrameOf(bytes))],
  ])('takes a file of which the bytes were given up for what it is%s', async (_, change) => {
    const world = await threeEpochs();
    world.disk.alter(world.epochPath(1), change);
    const { epochs, problems } = await check(world);
    expect(problems).toEqual([]);
    expect(epochs[2]).toMatchObject({ status: 'empty', owner: null });
    expect(await world.findBroken()).toEqual([]);
    // a host that saw the epoch before it was emptied is not disturbed
    expect((await world.controller('a').log.read()).state.size).toBe(3);
  });

  test('forgets what it read of a file that was emptied meanwhile', async () => {
    const world = await threeEpochs();
    const path = world.epochPath(1);
    let reads = 0;
    const process = world.disk.process((step) => {
      if (step.call === 'read' && step.path === path && ++reads === 3) {
        world.disk.alter(path, () => Buffer.alloc(0));
      }
      return GO;
    });
    const report = await checkLog(
      world.portsOf('checker', process),
      world.optionsOf('checker'),
      grantMachine,
    );
    expect(reads).toBeGreaterThan(2);
    expect(report.problems).toEqual([]);
    expect(report.epochs.map(({ status }) => status)).toEqual(['complete', 'void', 'empty']);
  });

  test('finds a log in which nothing is complete', async () => {
    const world = new World();
    world.disk.put(world.epochPath(1), Buffer.alloc(0));
    expect((await check(world)).problems).toMatchObject([
      { code: 'log-corrupt', message: expect.stringMatching(/leases\.wal\.1 is empty, and no epoch above/) },
    ]);
  });

  test('finds that the bytes of the newest epoch are lost, although one below it is complete', async () => {
    const world = await threeEpochs();
    world.disk.put(world.epochPath(3), Buffer.alloc(0));
    const { problems, newest } = await check(world);
    const [problem] = problems;
    expect(problem).toMatchObject({ code: 'log-corrupt', path: world.epochPath(3) });
    expect(newest).toBeNull();
    await expect(world.controller('a').log.read()).rejects.toMatchObject({
      code: 'log-corrupt',
      message: problem?.message,
      facts: { next: problem?.next },
    });
  });

  test('finds that it is older than what this host has seen, and leaves what it has seen as it is', async () => {
    const world = await threeEpochs();
    const before = world.disk.copyOf('/log');
    await world.controller('c').grant('four');
    const seen = world.disk.bytesOf('/var/c/seen.json');
    expect((await check(world, 'c')).problems).toEqual([]);
    for (const [path, bytes] of before) world.disk.put(path, bytes);
    expect((await check(world, 'c')).problems).toMatchObject([{ code: 'log-rollback' }]);
    expect(world.disk.bytesOf('/var/c/seen.json')).toEqual(seen);
  });

  test('opens nothing for writing', async () => {
    const world = await threeEpochs();
    const process = world.disk.process();
    const ports = world.portsOf('c', process);
    expect((await checkLog(ports, world.optionsOf('c'), grantMachine)).newest).toMatchObject({ epoch: 3 });
    const calls = new Set(process.steps.map(({ call }) => call));
    expect([...calls].sort()).toEqual(['close', 'facts', 'list', 'open', 'read']);
  });

  test('of another cluster says so', async () => {
    const world = await threeEpochs();
    const report = await check(world, 'checker', 'other');
    expect(new Set(report.problems.map(({ code }) => code))).toEqual(new Set(['log-foreign']));
  });
});
