/** A log of which bytes were changed, cut off or lost, by every commit and every check that follows. */
import { describe, expect, test } from 'vitest';
import { checkLog } from '../../src/wal/check.ts';
import { readFrames } from '../../src/wal/decoder.ts';
import { FILE_START } from '../../src/wal/record.ts';
import { GO } from './simulated-disk.ts';
import { grantMachine, World } from './world.ts';

const NAMES = ['one', 'two', 'three', 'four'];
const PATH = '/log/leases.wal.1';

const makeWorld = async (): Promise<World> => {
  const world = new World();
  const { log, grant } = world.controller('a');
  await log.init();
  for (const name of NAMES) await grant(name);
  return world;
};

const bytesIn = (world: World): Buffer => world.disk.bytesOf(PATH) ?? Buffer.alloc(0);

const offsetsOf = async (bytes: Buffer): Promise<readonly number[]> => {
  const offsets: number[] = [];
  const source = {
    read: async (into: Uint8Array, position: number) => {
      const part = bytes.subarray(position, position + into.length);
      into.set(part);
      return part.length;
    },
  };
  await readFrames(source, PATH, FILE_START, ({ offset }) => offsets.push(offset));
  return offsets;
};

const check = (world: World) => checkLog(world.portsOf('checker'), world.optionsOf('checker'), grantMachine);

test('any byte of any record but the last that is changed is found, with the offset, and nothing is written', async () => {
  const world = await makeWorld();
  const whole = bytesIn(world);
  const offsets = await offsetsOf(whole);
  const last = offsets.at(-1) ?? 0;
  expect(offsets.length).toBe(NAMES.length + 2);
  const all = world.disk.copyOf('/');
  for (let at = 0; at < last; at++) {
    const record = offsets.findLast((offset) => offset <= at);
    const damaged = Buffer.from(whole);
    // Each bit of a replay is turned by the golden tests; whole operations take one of each byte.
    damaged[at] = (damaged[at] ?? 0) ^ (1 << (at % 8));
    world.disk.alter(PATH, () => damaged);
    const { problems, newest } = await check(world);
    expect(problems[0]).toMatchObject({ code: 'log-corrupt', offset: record });
    expect(newest).toBeNull();
    const { grant } = world.controller('a');
    await expect(grant('late')).rejects.toMatchObject({
      code: 'log-corrupt',
      facts: { detail: { offset: record } },
    });
    expect(world.disk.copyOf('/log')).toEqual(new Map([[PATH, damaged]]));
  }
  world.disk.alter(PATH, () => whole);
  expect(world.disk.copyOf('/')).toEqual(all);
  expect(await world.findBroken()).toEqual([]);
});

describe('a log whose last record was never acknowledged', () => {
  /** The process dies with the record written and nothing said. */
  const withUnacknowledged = async (): Promise<{ world: World; whole: Buffer; from: number }> => {
    const world = await makeWorld();
    const from = bytesIn(world).length;
    let isWritten = false;
    const dying = world.controller('a', ({ call, path }) => {
      if (isWritten) return { kind: 'kill' };
      isWritten = call === 'append' && path === PATH;
      return GO;
    });
    await dying.grant('five').catch(() => undefined);
    return { world, whole: bytesIn(world), from };
  };

  test.each([
    ['cut off', 0],
    ['cut off and filled with zeros', 300],
  ])(
    '%s at any byte goes on in the next epoch with what is whole, and keeps the rest aside',
    async (_, zeros) => {
      const { whole, from } = await withUnacknowledged();
      expect(whole.length - from).toBeGreaterThan(60);
      for (let length = from; length < whole.length; length++) {
        const { world } = await withUnacknowledged();
        const damaged = Buffer.concat([whole.subarray(0, length), Buffer.alloc(zeros)]);
        world.disk.alter(PATH, () => damaged);
        expect((await check(world)).problems).toEqual([]);
        const { notices } = await world.controller('a').grant('ninety-nine');
        const torn = notices.find(({ kind }) => kind === 'torn-tail');
        // Zeros may complete what was cut off in front of zeros of its own.
        const isWhole = damaged.subarray(from, whole.length).equals(whole.subarray(from));
        const bytes = damaged.length - (isWhole ? whole.length : from);
        if (bytes === 0) expect(torn).toBeUndefined();
        else expect(torn).toMatchObject({ path: PATH, offset: damaged.length - bytes, bytes });
        const names = isWhole ? [...NAMES, 'five', 'ninety-nine'] : [...NAMES, 'ninety-nine'];
        for (let replay = 0; replay < 2; replay++)
          expect([...(await world.replay()).values()].map(({ by }) => by)).toEqual(names);
        expect(await world.findBroken()).toEqual([]);
        // Where nothing was torn there is nothing to keep.
        expect(bytesIn(world)).toEqual(bytes === 0 ? Buffer.alloc(0) : damaged);
      }
    },
  );
});
