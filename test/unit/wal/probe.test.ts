import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { LogFiles } from '../../../src/os/log-files.ts';
import type { HostRecord } from '../../../src/wal/host-record.ts';
import {
  createStorage,
  findMountProblem,
  type MountView,
  type StoragePorts,
} from '../../../src/wal/probe.ts';
import { ProbeHand } from '../../../src/wal/probe-hand.ts';
import { encodeStorage, storageTypeOf } from '../../../src/wal/storage.ts';
import { type Call, GO, type Plan, SimulatedDisk } from '../../crash/simulated-disk.ts';

const mount = (type: string, superOptions: readonly string[] = ['rw'], options = ['rw']): MountView => ({
  path: '/mnt',
  source: 'server:/export',
  type,
  device: '0:51',
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

const noQuorum = async () => ({ fit: false, text: 'nobody asked' });

/** The ports of one host over a simulated disk; its second process sees what `files` does not change. */
const portsOf = (disk: SimulatedDisk, plan: Plan = () => GO, changes: Partial<StoragePorts> = {}) => {
  const { files } = disk.process(plan);
  let kept: HostRecord | undefined;
  const ports: StoragePorts = {
    files,
    mountOf: () => mount('ext4'),
    judgeClient: noQuorum,
    randomBytes: (count) => Buffer.alloc(count, 7),
    wait: async () => undefined,
    wallMs: () => disk.nowMs,
    startSecond: async (directory, probe) => {
      const process = disk.process(plan);
      const hand = new ProbeHand({ files: process.files, wait: ports.wait }, directory, probe);
      return { perform: (actions) => hand.perform(actions), kill: async () => process.kill() };
    },
    record: {
      read: async () => kept,
      write: async (record) => {
        kept = { cluster: 'c', instance: 'main', ...record };
      },
      remove: async () => {
        kept = undefined;
      },
    },
    ...changes,
  };
  return ports;
};

const newDisk = (): SimulatedDisk => {
  const disk = new SimulatedDisk();
  disk.addDirectory('/log');
  return disk;
};

const storageWith = (plan: Plan) => {
  const disk = newDisk();
  return { disk, storage: createStorage(portsOf(disk, plan), 'local') };
};

const refusalOf = async (call: Promise<unknown>): Promise<XceError> => {
  const error = await call.catch((reason: unknown) => reason);
  if (error instanceof XceError) return error;
  throw new Error(`it was not refused: ${String(error)}`);
};

describe('replicated storage', () => {
  const inspect = (judgeClient: StoragePorts['judgeClient']) =>
    createStorage(
      portsOf(newDisk(), undefined, { mountOf: () => mount('fuse.glusterfs'), judgeClient }),
      'shared',
    ).inspect('/log');

  test('is refused unless its clients are shown to have a quorum', async () => {
    await expect(inspect(noQuorum)).rejects.toMatchObject({
      code: 'storage-unfit',
      message: expect.stringContaining('nobody asked'),
    });
    await expect(inspect(async () => ({ fit: true, text: '2 of 3' }))).resolves.toMatchObject({
      type: 'fuse.glusterfs',
    });
  });
});

describe('a probe by one host', () => {
  test('tries each promise, says which are kept, and leaves nothing behind', async () => {
    const { disk, storage } = storageWith(() => GO);
    const facts = await storage.probe('/log');
    expect(facts).toEqual({
      type: 'ext4',
      source: 'server:/export',
      path: '/mnt',
      probe: {
        kept: [
          'exclusive create',
          'fsync',
          'exclusive link',
          'rename',
          'fsync of the directory',
          'locks between processes',
        ],
        peer: null,
      },
    });
    expect(disk.pathsBelow('/log')).toEqual([]);
    expect(storageTypeOf(encodeStorage(facts))).toBe('ext4');
  });

  test.each<[Call, string]>([
    ['tryLock', 'ENOLCK'],
    ['tryLock', 'ENOSYS'],
    ['tryLock', 'EIO'],
    ['sync', 'EIO'],
    ['link', 'EOPNOTSUPP'],
    ['rename', 'EXDEV'],
    ['syncDirectory', 'EINVAL'],
    ['append', 'ENOSPC'],
    ['open', 'EROFS'],
  ])('refuses storage where %s gives %s, and leaves nothing behind', async (call, errno) => {
    const { disk, storage } = storageWith((step) => (step.call === call ? { kind: 'fail', errno } : GO));
    const refusal = await refusalOf(storage.probe('/log'));
    expect(refusal.code).toBe('storage-unfit');
    expect(refusal.message).toContain(errno);
    expect(disk.pathsBelow('/log')).toEqual([]);
  });

  test('refuses locks that let two processes in, or that outlive their holder', async () => {
    const lax = newDisk();
    const { files } = lax.process();
    const open: LogFiles['open'] = async (...args) => ({
      ...(await files.open(...args)),
      tryLock: () => true,
    });
    const ports = portsOf(lax, undefined, { files: { ...files, open } });
    expect(await refusalOf(createStorage(ports, 'local').probe('/log'))).toMatchObject({
      code: 'storage-unfit',
      message: expect.stringMatching(/locks between processes: .* got a lock/),
    });

    const sticky = newDisk();
    const stays = portsOf(sticky);
    const startSecond: StoragePorts['startSecond'] = async (...args) => ({
      ...(await stays.startSecond(...args)),
      kill: async () => undefined,
    });
    const storage = createStorage({ ...stays, startSecond }, 'local');
    expect(await refusalOf(storage.probe('/log'))).toMatchObject({
      code: 'storage-unfit',
      message: expect.stringMatching(/locks between processes: this host did not get a lock/),
    });
  });

  test('refuses storage that lets two create one file, or link one name twice', async () => {
    for (const lax of ['open', 'link'] as const) {
      const disk = newDisk();
      const { files } = disk.process();
      const careless: LogFiles = {
        ...files,
        open: (path, purpose) => files.open(path, lax === 'open' && purpose === 'create' ? 'token' : purpose),
        link: async (from, to) => {
          if (lax === 'link' && disk.bytesOf(to) !== undefined) return;
          await files.link(from, to);
        },
      };
      const storage = createStorage(portsOf(disk, undefined, { files: careless }), 'local');
      await expect(storage.probe('/log')).rejects.toMatchObject({ code: 'storage-unfit' });
    }
  });

  test('removes what a probe of long ago left, and nothing of one that may be running', async () => {
    const disk = newDisk();
    const left = '/log/.xce-probe-00000000000000aa.look.7.a';
    disk.put(left, Buffer.from('x'));
    disk.nowMs += 3600_000;
    const running = '/log/.xce-probe-00000000000000bb.a';
    disk.put(running, Buffer.from('x'));
    const other = '/log/.xce-probe-notes';
    disk.put(other, Buffer.from('x'));
    const storage = createStorage(portsOf(disk), 'local');
    await storage.probe('/log');
    expect(disk.pathsBelow('/log')).toEqual([left, running, other].sort());
    disk.nowMs += 1;
    await storage.probe('/log');
    expect(disk.pathsBelow('/log')).toEqual([running, other].sort());
  });

  test.each([
    ['is not there says that there is no log', 'ENOENT', 'log-missing'],
    ['cannot be reached says nothing of the kind', 'ESTALE', 'log-io'],
  ])('of a directory that %s', async (_, errno, code) => {
    const mountOf = () => {
      const cause = Object.assign(new Error(errno), { code: errno });
      throw new XceError('os', `cannot open "/log": ${errno}`, { cause });
    };
    const storage = createStorage(portsOf(newDisk(), undefined, { mountOf }), 'local');
    await expect(storage.look('/log')).rejects.toMatchObject({ code });
  });
});

describe('a writer on shared storage', () => {
  const NFS = mount('nfs4', ['rw', 'vers=4.2', 'local_lock=none', 'addr=10.0.0.1']);
  const setUp = () => {
    let present = NFS;
    const ports = portsOf(newDisk(), undefined, { mountOf: () => present });
    const storage = createStorage(ports, 'shared');
    return {
      storage,
      remount: (next: MountView) => {
        present = next;
      },
    };
  };
  const KEPT = { peer: 'ctl2', kept: ['look'] };

  test('is refused before this host has probed it with another, and told how to', async () => {
    const { storage } = setUp();
    for (const call of [storage.admit('/log'), storage.probe('/log')]) {
      expect(await refusalOf(call)).toMatchObject({
        code: 'storage-unfit',
        facts: { next: expect.stringContaining('lease probe --peer HOST') },
      });
    }
    await expect(storage.look('/log')).resolves.toMatchObject({ type: 'nfs4' });
  });

  test('is let in afterwards, with what the probe has shown', async () => {
    const { storage } = setUp();
    const report = await storage.keep(NFS, KEPT);
    expect(report).toEqual({ kept: ['look'], peer: { node: 'ctl2', rounds: 1000, stale: 0 } });
    expect(await storage.admit('/log')).toEqual({
      type: 'nfs4',
      source: 'server:/export',
      path: '/mnt',
      probe: report,
    });
  });

  test.each<[string, MountView, string]>([
    ['of another export', { ...NFS, source: 'server:/other' }, 'server:/other'],
    ['of another type', mount('ceph'), 'nfs4 and is ceph'],
    [
      'with an option more',
      { ...NFS, superOptions: [...NFS.superOptions, 'lookupcache=all'] },
      'lookupcache=all',
    ],
    ['with an option less', { ...NFS, superOptions: ['rw', 'local_lock=none'] }, 'vers=4.2'],
  ])('is refused again on a mount %s', async (_, present, says) => {
    const { storage, remount } = setUp();
    await storage.keep(NFS, KEPT);
    remount(present);
    const refusal = await refusalOf(storage.admit('/log'));
    expect(refusal.code).toBe('storage-unfit');
    expect(refusal.message).toContain(says);
  });

  test('is let in on a mount that differs in nothing that matters', async () => {
    const { storage, remount } = setUp();
    await storage.keep(NFS, KEPT);
    remount({
      ...NFS,
      path: '/elsewhere',
      device: '0:99',
      options: ['rw', 'relatime', 'nosuid'],
      superOptions: ['rw', 'local_lock=none', 'vers=4.2', 'addr=10.0.0.2', 'clientaddr=10.0.0.9'],
    });
    await expect(storage.admit('/log')).resolves.toMatchObject({ type: 'nfs4' });
  });

  test.each([
    ['is refused again when a later probe has shown a promise that is not kept', 'storage-unfit', false],
    ['is still let in when a later probe has shown nothing', 'timeout', true],
  ] as const)('%s', async (_, code, isLetIn) => {
    const { storage } = setUp();
    await storage.keep(NFS, KEPT);
    const later = storage.withParty({ directory: '/log', id: '0f'.repeat(8), node: 'ctl1' }, async () => {
      throw new XceError(code, 'look, round 7');
    });
    expect(await refusalOf(later)).toMatchObject({ code, message: expect.stringContaining('look, round 7') });
    const [admitted] = await Promise.allSettled([storage.admit('/log')]);
    expect(admitted?.status === 'fulfilled').toBe(isLetIn);
  });

  test('of storage of this host alone needs no probe with another', async () => {
    const storage = createStorage(portsOf(newDisk()), 'local');
    await expect(storage.admit('/log')).resolves.toEqual({
      type: 'ext4',
      source: 'server:/export',
      path: '/mnt',
    });
  });
});
