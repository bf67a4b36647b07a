import { describe, expect, test } from 'vitest';
import type { Clock } from '../../../src/os/clock.ts';
import type { LogFiles } from '../../../src/os/log-files.ts';
import { findRollback, HostMemory, type LogSight, type Seen } from '../../../src/wal/memory.ts';
import { GO, type Plan, SimulatedDisk } from '../../crash/simulated-disk.ts';

const seen: Seen = { epoch: 4, token: 'a'.repeat(32), sequence: 10, chain: 77 };
const sight: LogSight = {
  newest: 4,
  epoch: 4,
  base: { epoch: 3, sequence: 2, chain: 1 },
  markMet: true,
  tokenOfSeen: seen.token,
};
const rollback = (change: Partial<LogSight>, of: Seen = seen): string | undefined =>
  findRollback(of, { ...sight, ...change });

describe('a log is no later state of what was seen', () => {
  test('when its newest epoch is lower', () => {
    expect(rollback({ newest: 3, epoch: 3 })).toContain('newest epoch is 3');
  });
  test('when the epoch has another owner', () => {
    expect(rollback({ tokenOfSeen: 'b'.repeat(32) })).toContain('another');
  });
  test('when the record is gone, or another', () => {
    expect(rollback({ markMet: false })).toContain('record 10');
  });
  test('when the epoch is no longer complete', () => {
    expect(rollback({ newest: 5, epoch: 3 })).toContain('was complete');
  });
  test.each([
    { epoch: 3, sequence: 99, chain: 1 },
    { epoch: 4, sequence: 9, chain: 1 },
    { epoch: 4, sequence: 10, chain: 78 },
  ])('when a later epoch rests on %j', (base) => {
    expect(rollback({ newest: 6, epoch: 6, base })).toContain('does not rest on');
  });
});

describe('a log may be a later state of what was seen', () => {
  test('when the record is there', () => {
    expect(rollback({})).toBeUndefined();
    expect(rollback({ newest: 5 })).toBeUndefined();
  });
  test.each([
    { epoch: 4, sequence: 10, chain: 77 },
    { epoch: 4, sequence: 11, chain: 5 },
    { epoch: 5, sequence: 0, chain: 5 },
  ])('when a later epoch rests on %j', (base) => {
    expect(rollback({ newest: 6, epoch: 6, base })).toBeUndefined();
  });
  test('when the file was emptied after a later epoch had replaced it', () => {
    const base = { epoch: 4, sequence: 12, chain: 5 };
    expect(rollback({ newest: 6, epoch: 6, base, tokenOfSeen: undefined })).toBeUndefined();
  });
  test('when of the epoch no more than the header was seen, and it never counted', () => {
    expect(rollback({ newest: 5, epoch: 3 }, { ...seen, sequence: 0 })).toBeUndefined();
  });
});

describe('the memory of a host', () => {
  const identity = { cluster: 'c', instance: 'main' };
  let nowMs = 0;
  const clock: Clock = { wallMs: () => nowMs, monotonicMs: () => nowMs };
  const memoryOn = (disk: SimulatedDisk, plan?: Plan): HostMemory =>
    new HostMemory({ files: disk.process(plan).files, clock, processId: 1 }, '/var/seen.json', identity);
  const at = (sequence: number): Seen => ({ ...seen, sequence });

  test('comes back in another process, and goes only forwards', async () => {
    const disk = new SimulatedDisk();
    const memory = memoryOn(disk);
    expect(await memory.load()).toBeUndefined();
    for (const sequence of [5, 6, 7, 3]) await memory.remember(at(sequence));
    expect(await memoryOn(disk).load()).toEqual(at(7));
    await memoryOn(disk).remember({ ...at(1), epoch: 5 });
    expect(await memory.load()).toEqual({ ...at(1), epoch: 5 });
  });

  test('loses no more than what it was just told when its process is killed', async () => {
    for (let told = 2; told < 7; told++) {
      const disk = new SimulatedDisk();
      let writes = 0;
      const memory = memoryOn(disk, ({ call }) => {
        if (call === 'overwrite') writes += 1;
        // the first one makes the file
        return call === 'overwrite' && writes === told - 1 ? { kind: 'killHalf' } : GO;
      });
      for (let sequence = 1; sequence < told; sequence++) await memory.remember(at(sequence));
      await expect(memory.remember(at(told))).rejects.toThrow();
      expect(await memoryOn(disk).load()).toEqual(at(told - 1));
    }
  });

  test('loses to a power failure what one process was told within a second, and nothing when that was closed', async () => {
    const disk = new SimulatedDisk();
    const afterPowerCut = async (): Promise<number | undefined> => {
      disk.powerCut('/var', 'data lost');
      return (await memoryOn(disk).load())?.sequence;
    };
    const memory = memoryOn(disk);
    await memory.remember(at(1));
    nowMs += 999;
    await memory.remember(at(2));
    expect(await afterPowerCut()).toBe(1);
    nowMs += 1;
    await memory.remember(at(3));
    await memory.remember(at(4));
    expect(await afterPowerCut()).toBe(3);
    await memory.remember({ ...at(5), epoch: seen.epoch + 1 });
    expect(await afterPowerCut()).toBe(5);
    await memory.remember({ ...at(6), epoch: seen.epoch + 1 });
    await memory.close();
    expect(await afterPowerCut()).toBe(6);
  });

  test('whose fsync has failed is fsynced with the next record', async () => {
    const disk = new SimulatedDisk();
    await memoryOn(disk).remember(at(1));
    let isFailing = true;
    const failing: Plan = ({ call }) => {
      return isFailing && call === 'sync' ? { kind: 'fail', errno: 'EIO' } : GO;
    };
    const memory = memoryOn(disk, failing);
    await memory.load();
    await expect(memory.remember(at(2))).rejects.toMatchObject({ code: 'EIO' });
    isFailing = false;
    await memory.remember(at(3));
    disk.powerCut('/var', 'data lost');
    expect(await memoryOn(disk).load()).toEqual(at(3));
  });

  test('is not asked for for ever by a system that writes nothing', async () => {
    const { files } = new SimulatedDisk().process();
    const mute: LogFiles = {
      ...files,
      open: async (path, purpose) => ({
        ...(await files.open(path, purpose)),
        append: async () => 0,
        overwrite: async () => 0,
      }),
    };
    const fresh = new HostMemory({ files: mute, clock, processId: 1 }, '/var/fresh.json', identity);
    await expect(fresh.remember(at(1))).rejects.toThrow('wrote nothing');
    await new HostMemory({ files, clock, processId: 1 }, '/var/seen.json', identity).remember(at(1));
    const old = new HostMemory({ files: mute, clock, processId: 1 }, '/var/seen.json', identity);
    await old.load();
    await expect(old.remember(at(2))).rejects.toThrow('wrote nothing');
  });

  test('of another log, or of no log, is refused', async () => {
    const disk = new SimulatedDisk();
    await memoryOn(disk).remember(at(1));
    const { files } = disk.process();
    const ofOther = { ...identity, cluster: 'x' };
    const other = new HostMemory({ files, clock, processId: 1 }, '/var/seen.json', ofOther);
    await expect(other.load()).rejects.toMatchObject({ code: 'log-rollback' });
    disk.put('/var/seen.json', Buffer.from('{}'));
    await expect(memoryOn(disk).load()).rejects.toMatchObject({ code: 'log-rollback' });
    disk.put('/var/seen.json', Buffer.alloc(0), false);
    await expect(memoryOn(disk).load()).rejects.toMatchObject({ code: 'log-rollback' });
  });
});
