import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { createStorage, findMountProblem, type MountView } from '../../../src/wal/probe.ts';
import { encodeStorage, storageTypeOf } from '../../../src/wal/storage.ts';
import { type Call, GO, type Plan, SimulatedDisk } from '../../crash/simulated-disk.ts';

const mount = (type: string, superOptions: readonly string[] = ['rw'], options = ['rw']): MountView => ({
  path: '/mnt',
  source: 'server:/export',
  type,
  options,
  superOptions,
});

describe('a mount', () => {
  test.each([
    ['nfs4', ['rw', 'vers=4.2', 'local_lock=none']],
    ['nfs', ['rw', 'vers=3', 'local_lock=none']],
    ['nfs', ['rw', 'local_lock=flock']],
    ['ceph', ['rw']],
    ['lustre', ['rw', 'flock']],
  ])('of %s with %j can hold a shared log, and no local one', (type, options) => {
    expect(findMountProblem(mount(type, options), 'shared')).toBeUndefined();
    expect(findMountProblem(mount(type, options), 'local')).toContain('shared storage');
  });

  test.each(['ext4', 'xfs', 'btrfs', 'tmpfs', 'overlay'])(
    'of %s can hold a local log, and no shared one',
    (type) => {
      expect(findMountProblem(mount(type), 'local')).toBeUndefined();
      expect(findMountProblem(mount(type), 'shared')).toContain('of this host alone');
    },
  );

  test.each([
    ['nfs', ['rw', 'nolock'], 'nolock'],
    ['nfs', ['rw', 'local_lock=all'], 'local_lock=all'],
    ['nfs4', ['rw', 'local_lock=posix'], 'local_lock=posix'],
    ['nfs4', ['rw', 'nocto'], 'nocto'],
    ['lustre', ['rw', 'localflock'], 'localflock'],
    ['nfs4', ['ro'], 'read-only'],
    ['fuse.sshfs', ['rw'], 'nothing is known'],
    ['9p', ['rw'], 'nothing is known'],
    ['constructor', ['rw'], 'nothing is known'],
  ])('of %s with %j is refused, whatever the configuration says', (type, options, reason) => {
    expect(findMountProblem(mount(type, options), 'shared')).toContain(reason);
    expect(findMountProblem(mount(type, options), 'local')).not.toBeUndefined();
  });

  test('that is read-only by its own options is refused', () => {
    expect(findMountProblem(mount('ext4', ['rw'], ['ro', 'relatime']), 'local')).toContain('read-only');
  });
});

const noQuorum = async () => ({ known: false, text: 'nobody asked' });

const storageWith = (plan: Plan, disk = new SimulatedDisk()) => {
  disk.addDirectory('/log');
  const { files } = disk.process(plan);
  const ports = {
    files,
    mountOf: () => mount('ext4'),
    clientQuorum: noQuorum,
    randomBytes: (count: number) => Buffer.alloc(count, 7),
  };
  return { disk, storage: createStorage(ports, 'local') };
};

describe('replicated storage', () => {
  const look = async (clientQuorum: () => Promise<{ known: boolean; text: string }>) => {
    const { files } = new SimulatedDisk().process();
    const ports = { files, mountOf: () => mount('fuse.glusterfs'), clientQuorum, randomBytes: Buffer.alloc };
    return await createStorage(ports, 'shared').look('/log');
  };

  test('is refused unless its clients are shown to have a quorum', async () => {
    await expect(look(noQuorum)).rejects.toMatchObject({
      code: 'storage-unfit',
      message: expect.stringContaining('nobody asked'),
    });
    await expect(look(async () => ({ known: true, text: 'fixed, 2 of 3' }))).resolves.toMatchObject({
      type: 'fuse.glusterfs',
    });
  });
});

describe('a probe', () => {
  test('tries each promise, says which are kept, and leaves nothing behind', async () => {
    const { disk, storage } = storageWith(() => GO);
    const facts = await storage.probe('/log');
    expect(facts).toEqual({
      type: 'ext4',
      source: 'server:/export',
      path: '/mnt',
      probe: {
        kept: ['exclusive create', 'fsync', 'exclusive link', 'fsync of the directory', 'locks that exclude'],
        staleness: null,
      },
    });
    expect(disk.pathsBelow('/log')).toEqual([]);
    expect(storageTypeOf(encodeStorage(facts))).toBe('ext4');
  });

  test.each<[Call, string]>([
    ['tryLock', 'ENOLCK'],
    ['tryLock', 'ENOSYS'],
    ['sync', 'EIO'],
    ['link', 'EOPNOTSUPP'],
    ['syncDirectory', 'EINVAL'],
    ['append', 'ENOSPC'],
    ['open', 'EROFS'],
  ])('refuses storage where %s gives %s, and leaves nothing behind', async (call, errno) => {
    const { disk, storage } = storageWith((step) => (step.call === call ? { kind: 'fail', errno } : GO));
    const refusal = await storage.probe('/log').catch((error: unknown) => error);
    if (!(refusal instanceof XceError)) throw refusal;
    expect(refusal.code).toBe('storage-unfit');
    expect(refusal.message).toContain(errno);
    expect(disk.pathsBelow('/log')).toEqual([]);
  });

  test('refuses storage whose locks let two in', async () => {
    const disk = new SimulatedDisk();
    disk.addDirectory('/log');
    const { files } = disk.process();
    const lax = {
      ...files,
      open: async (...args: Parameters<typeof files.open>) => ({
        ...(await files.open(...args)),
        tryLock: () => true,
      }),
    };
    const ports = {
      files: lax,
      mountOf: () => mount('ext4'),
      clientQuorum: noQuorum,
      randomBytes: (count: number) => Buffer.alloc(count),
    };
    const refusal = createStorage(ports, 'local').probe('/log');
    await expect(refusal).rejects.toMatchObject({ code: 'storage-unfit' });
  });

  test('refuses storage that lets two create one file, or link one name twice', async () => {
    for (const lax of ['open', 'link'] as const) {
      const disk = new SimulatedDisk();
      disk.addDirectory('/log');
      const { files } = disk.process();
      const careless = {
        ...files,
        open: (path: string, purpose: Parameters<typeof files.open>[1]) =>
          files.open(path, lax === 'open' && purpose === 'create' ? 'token' : purpose),
        link: async (from: string, to: string) => {
          if (lax === 'link' && disk.bytesOf(to) !== undefined) return;
          await files.link(from, to);
        },
      };
      const ports = {
        files: careless,
        mountOf: () => mount('ext4'),
        clientQuorum: noQuorum,
        randomBytes: (count: number) => Buffer.alloc(count),
      };
      await expect(createStorage(ports, 'local').probe('/log')).rejects.toMatchObject({
        code: 'storage-unfit',
      });
    }
  });

  test.each([
    ['is not there says that there is no log', 'ENOENT', 'log-missing'],
    ['cannot be reached says nothing of the kind', 'ESTALE', 'log-io'],
  ])('of a directory that %s', async (_, errno, code) => {
    const ports = {
      files: new SimulatedDisk().process().files,
      mountOf: () => {
        const cause = Object.assign(new Error(errno), { code: errno });
        throw new XceError('os', `cannot open "/log": ${errno}`, { cause });
      },
      clientQuorum: noQuorum,
      randomBytes: (count: number) => Buffer.alloc(count),
    };
    await expect(createStorage(ports, 'local').look('/log')).rejects.toMatchObject({ code });
  });
});
