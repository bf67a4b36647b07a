import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { decodeRecord, findChange, HostRecordFile, marksOf } from '../../../src/wal/host-record.ts';
import { GO, type Plan, SimulatedDisk } from '../../crash/simulated-disk.ts';

const PATH = '/state/controller/storage.json';
const RECORD = {
  wallMs: 1_700_000_000_000,
  mount: { type: 'nfs4', source: 'server:/export', options: ['rw', 'vers=4.2'] },
  probe: { kept: ['look'], peer: { node: 'ctl2', rounds: 1000, stale: 0 } },
};
const IDENTITY = { cluster: 'west', instance: 'main' };

const fileOn = (disk: SimulatedDisk, plan: Plan = () => GO, identity = IDENTITY) =>
  new HostRecordFile(disk.process(plan).files, PATH, identity, 7);

const codeOf = async (call: Promise<unknown>): Promise<string> => {
  const error = await call.catch((reason: unknown) => reason);
  return error instanceof XceError ? error.code : `not refused: ${JSON.stringify(error)}`;
};

describe('the record of a host', () => {
  test('comes back as it was written, and is replaced by a newer one', async () => {
    const disk = new SimulatedDisk();
    const file = fileOn(disk);
    expect(await file.read()).toBeUndefined();
    await file.write(RECORD);
    expect(await file.read()).toEqual({ ...IDENTITY, ...RECORD });
    await file.write({ ...RECORD, wallMs: 1 });
    expect(await file.read()).toMatchObject({ wallMs: 1 });
    expect(disk.pathsBelow('/state')).toEqual([PATH]);
  });

  test('is gone when it was removed, which it may be twice', async () => {
    const disk = new SimulatedDisk();
    const file = fileOn(disk);
    await file.remove();
    await file.write(RECORD);
    await file.remove();
    await file.remove();
    expect(await file.read()).toBeUndefined();
    expect(disk.pathsBelow('/state')).toEqual([]);
  });

  test('is the old or the new one whatever fails while it is written', async () => {
    for (let failing = 0; ; failing++) {
      const disk = new SimulatedDisk();
      await fileOn(disk).write(RECORD);
      let steps = 0;
      const plan: Plan = () => (steps++ === failing ? { kind: 'fail', errno: 'EIO' } : GO);
      const written = await codeOf(fileOn(disk, plan).write({ ...RECORD, wallMs: 1 }));
      expect([1, RECORD.wallMs]).toContain((await fileOn(disk).read())?.wallMs);
      if (steps <= failing) break;
      if (!written.startsWith('not refused')) expect(written).toBe('log-io');
    }
  });

  test.each([
    ['no JSON', '{'],
    ['nothing', ''],
    ['a list', '[]'],
    ['another format', JSON.stringify({ format: 2, ...IDENTITY, ...RECORD })],
    ['no mount', JSON.stringify({ format: 1, ...IDENTITY, ...RECORD, mount: null })],
    [
      'options that are numbers',
      JSON.stringify({ format: 1, ...IDENTITY, ...RECORD, mount: { ...RECORD.mount, options: [1] } }),
    ],
    [
      'a probe by one host',
      JSON.stringify({ format: 1, ...IDENTITY, ...RECORD, probe: { kept: [], peer: null } }),
    ],
    [
      'a stale look',
      JSON.stringify({
        format: 1,
        ...IDENTITY,
        ...RECORD,
        probe: { kept: ['look'], peer: { node: 'ctl2', rounds: 1000, stale: 1 } },
      }),
    ],
    ['far too much', 'x'.repeat(70_000)],
  ])('with %s is refused', async (_, text) => {
    const disk = new SimulatedDisk();
    disk.put(PATH, Buffer.from(text));
    expect(await codeOf(fileOn(disk).read())).toBe('storage-unfit');
  });

  test('of another cluster or instance is refused', async () => {
    const disk = new SimulatedDisk();
    await fileOn(disk).write(RECORD);
    for (const change of [{ cluster: 'east' }, { instance: 'night' }]) {
      expect(await codeOf(fileOn(disk, undefined, { ...IDENTITY, ...change }).read())).toBe('storage-unfit');
    }
  });

  test('that cannot be read is no record and no permission', async () => {
    const disk = new SimulatedDisk();
    await fileOn(disk).write(RECORD);
    const plan: Plan = ({ call }) => (call === 'read' ? { kind: 'fail', errno: 'EIO' } : GO);
    expect(await codeOf(fileOn(disk, plan).read())).toBe('log-io');
  });
});

test('what a record says and does not know is left to a later version', () => {
  const text = JSON.stringify({ format: 1, ...IDENTITY, ...RECORD, later: true });
  expect(decodeRecord(text)).toEqual({ ...IDENTITY, ...RECORD });
});

test('options of a mount count once, in order, and only where they matter', () => {
  const marks = marksOf({
    type: 'nfs4',
    source: 's:/e',
    options: ['rw', 'nosuid', 'relatime', 'noexec'],
    superOptions: ['rw', 'lookupcache=positive', 'addr=10.0.0.1', 'clientaddr=10.0.0.2', 'acregmin=3'],
  });
  expect(marks.options).toEqual(['acregmin=3', 'lookupcache=positive', 'rw']);
  expect(findChange(marks, marks)).toBeUndefined();
  expect(findChange(marks, { ...marks, options: ['acregmin=3', 'lookupcache=all', 'rw'] })).toBe(
    'its options had lookupcache=positive and have lookupcache=all instead',
  );
});
