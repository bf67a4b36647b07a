import { expect, test } from 'vitest';
import { settleNames } from '../../../src/wal/settle.ts';
import { NameCache, SimulatedDisk } from '../../crash/simulated-disk.ts';

const DIRECTORY = '/log';
const NAME = `${DIRECTORY}/leases.wal.2`;
const PREPARED = `${DIRECTORY}/prepared`;

const makeDisk = (): SimulatedDisk => {
  const disk = new SimulatedDisk();
  disk.addDirectory(DIRECTORY);
  return disk;
};

const prepare = async (disk: SimulatedDisk) => {
  const maker = disk.process(undefined, new NameCache());
  const looker = disk.process(undefined, new NameCache());
  await (await maker.files.open(PREPARED, 'create')).close();
  expect(await looker.files.list(DIRECTORY)).toEqual(['prepared']);
  await maker.files.link(PREPARED, NAME);
  return { maker, looker };
};

test('a name that was linked in the tick of a listing is hidden until it is settled', async () => {
  const disk = makeDisk();
  const { maker, looker } = await prepare(disk);
  expect(await looker.files.list(DIRECTORY)).toEqual(['prepared']);
  await expect(looker.files.open(NAME, 'read')).rejects.toMatchObject({ code: 'ENOENT' });
  const wait = async (milliseconds: number): Promise<void> => {
    disk.nowMs += milliseconds;
  };
  await settleNames({ files: maker.files, wait }, DIRECTORY, PREPARED);
  expect(await looker.files.list(DIRECTORY)).toEqual(['leases.wal.2']);
  await (await looker.files.open(NAME, 'read')).close();
});

test('a directory whose time never moves is refused after a bounded wait', async () => {
  const disk = makeDisk();
  const { maker } = await prepare(disk);
  let waitedMs = 0;
  const wait = async (milliseconds: number): Promise<void> => {
    waitedMs += milliseconds;
  };
  await expect(settleNames({ files: maker.files, wait }, DIRECTORY, PREPARED)).rejects.toMatchObject({
    code: 'storage-unfit',
  });
  expect(waitedMs).toBeLessThan(20_000);
  expect(disk.pathsBelow(DIRECTORY)).toEqual([NAME]);
});
