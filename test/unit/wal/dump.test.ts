import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { type DumpEnd, dumpEpoch } from '../../../src/wal/dump.ts';
import type { EntryCodec, LogEntry } from '../../../src/wal/entries.ts';
import { GO, type Plan } from '../../crash/simulated-disk.ts';
import { type GrantEvent, grantMachine, World } from '../../crash/world.ts';

type Entry = LogEntry<unknown, GrantEvent>;
const CODEC: EntryCodec<unknown, GrantEvent> = {
  describe: (record) => [JSON.parse(Buffer.from(record).toString())],
  decode: grantMachine.decode,
};

type Dump = {
  readonly entries: readonly Entry[];
  readonly end: DumpEnd | undefined;
  readonly error: unknown;
};

const dump = async (world: World, epoch?: number, plan: Plan = () => GO): Promise<Dump> => {
  const ports = world.portsOf('reader', world.disk.process(plan));
  const portions = dumpEpoch(ports, world.optionsOf('reader'), CODEC, epoch);
  const entries: Entry[] = [];
  try {
    for (;;) {
      const { done, value } = await portions.next();
      if (done === true) return { entries, end: value, error: undefined };
      entries.push(...value);
    }
  } catch (error) {
    return { entries, end: undefined, error };
  }
};

const grants = ({ entries }: Dump): readonly string[] =>
  entries.flatMap((entry) =>
    entry.type === 'events' ? entry.events.filter(({ part }) => part === 1).map(({ by }) => by) : [],
  );

/** Epoch 1 with two grants, epoch 2 with its checkpoint and one grant more, after which nobody empties epoch 1. */
const twoEpochs = async (): Promise<World> => {
  const world = new World();
  const { log, grant } = world.controller('a');
  await log.init();
  await grant('one');
  await grant('two');
  await log.compact();
  const kept = world.disk.bytesOf(world.epochPath(1)) ?? Buffer.alloc(0);
  await grant('three');
  await log.close();
  world.disk.put(world.epochPath(1), kept);
  return world;
};

describe('a dump', () => {
  test('has everything of the newest complete epoch, in order, and where it stands', async () => {
    const world = await twoEpochs();
    const before = world.disk.copyOf('/log');
    const result = await dump(world);
    const { entries, end } = result;
    expect(entries.map(({ type, epoch, sequence }) => [type, epoch, sequence])).toEqual([
      ['header', 2, 0],
      ['checkpoint', 2, 1],
      ['complete', 2, 2],
      ['events', 2, 3],
    ]);
    expect(entries[0]).toMatchObject({ offset: 0, header: { host: 'a', cluster: 'c', epoch: 2 } });
    expect(entries[1]).toMatchObject({
      items: [
        [1, { by: 'one' }],
        [2, { by: 'two' }],
      ],
    });
    expect(entries[2]).toMatchObject({ complete: { baseEpoch: 1, items: 2 } });
    expect(grants(result)).toEqual(['three']);
    const bytes = world.disk.bytesOf(world.epochPath(2))?.length;
    expect(end).toEqual({
      path: world.epochPath(2),
      epoch: 2,
      isComplete: true,
      offset: bytes,
      tornBytes: 0,
    });
    expect(world.disk.copyOf('/log')).toEqual(before);
  });

  test('of an older epoch, or of a void one, has what stands there', async () => {
    const world = await twoEpochs();
    expect(grants(await dump(world, 1))).toEqual(['one', 'two']);
    const dying = world.controller('b', ({ call, path }) =>
      call === 'append' && path === world.epochPath(3) ? { kind: 'kill' } : GO,
    );
    await dying.log.takeover().catch(() => undefined);
    expect((await dump(world)).end).toMatchObject({ epoch: 2, isComplete: true });
    const { entries, end } = await dump(world, 3);
    expect(entries.map(({ type }) => type)).toEqual(['header']);
    expect(end).toMatchObject({ epoch: 3, isComplete: false });
  });

  test('says how many bytes of a torn tail it left out', async () => {
    const world = await twoEpochs();
    world.disk.alter(world.epochPath(2), (bytes) => bytes.subarray(0, -3));
    const result = await dump(world);
    expect(grants(result)).toEqual([]);
    expect(result.end?.tornBytes).toBeGreaterThan(10);
  });

  test('gives what comes before a record that does not check, then its offset', async () => {
    const world = await twoEpochs();
    await world.controller('a').grant('four');
    const sound = await dump(world);
    const at = sound.entries.at(-2)?.offset ?? 0;
    world.disk.alter(world.epochPath(2), (bytes) => {
      bytes.writeUInt8(bytes.readUInt8(at + 40) ^ 1, at + 40);
      return bytes;
    });
    const { entries, error } = await dump(world);
    expect(entries).toEqual(sound.entries.slice(0, -2));
    expect(error).toMatchObject({ code: 'log-corrupt', facts: { detail: { offset: at } } });
  });

  test('looks again at a record that was being written when it came by', async () => {
    const world = await twoEpochs();
    const path = world.epochPath(2);
    const whole = world.disk.bytesOf(path) ?? Buffer.alloc(0);
    // the last record with a hole in it, as a client of network storage can see it for a moment
    world.disk.alter(path, (bytes) => bytes.fill(0, bytes.length - 40, bytes.length - 20));
    let reads = 0;
    const result = await dump(world, undefined, ({ call }) => {
      if (call === 'read' && ++reads === 6) world.disk.alter(path, () => Buffer.from(whole));
      return GO;
    });
    expect(result.error).toBeUndefined();
    expect(grants(result)).toEqual(['three']);
  });

  test('of a file that is emptied while it is read says that its end is missing', async () => {
    const world = await twoEpochs();
    let reads = 0;
    const { error } = await dump(world, 1, ({ call }) => {
      if (call === 'read' && ++reads === 2) world.disk.alter(world.epochPath(1), () => Buffer.alloc(0));
      return GO;
    });
    expect(error).toMatchObject({ code: 'log-busy' });
    expect((await dump(world, 1)).error).toMatchObject({ code: 'log-missing', message: /emptied/ });
  });

  test('of an epoch that is not there, or of another cluster, is refused', async () => {
    const world = await twoEpochs();
    expect((await dump(world, 7)).error).toMatchObject({ code: 'log-missing' });
    const place = { ...world.optionsOf('reader'), cluster: 'other' };
    const portions = dumpEpoch(world.portsOf('reader'), place, CODEC, undefined);
    await expect(portions.next()).rejects.toBeInstanceOf(XceError);
    await expect(dumpEpoch(world.portsOf('reader'), place, CODEC, 1).next()).rejects.toMatchObject({
      code: 'log-foreign',
    });
  });

  test('hands on a long log in portions', async () => {
    const world = new World();
    const { log } = world.controller('a');
    await log.init();
    for (let i = 0; i < 5; i++) {
      await log.commit(() => ({
        events: Array.from({ length: 1000 }, (_, n) => ({
          uid: i * 1000 + n,
          by: 'x'.repeat(100),
          part: 1 as const,
        })),
        result: undefined,
      }));
    }
    const portions = dumpEpoch(world.portsOf('reader'), world.optionsOf('reader'), CODEC, undefined);
    let count = 0;
    for (;;) {
      const { done, value } = await portions.next();
      if (done === true) break;
      count += 1;
      expect(value.filter(({ type }) => type === 'events').length).toBeLessThan(4);
    }
    expect(count).toBeGreaterThan(1);
  });
});
