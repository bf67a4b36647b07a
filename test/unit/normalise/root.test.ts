import { chownSync, mkdirSync, readdirSync, renameSync, statSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { normaliseRoot } from '../../../src/normalise/normalise.ts';
import type { NormaliseReport } from '../../../src/normalise/report.ts';
import { mountOf } from '../../../src/os/mounts.ts';
import { pinnedInodes } from '../../../src/os/pinned.ts';
import {
  ALICE,
  countDescriptors,
  JOB,
  makeDirectory,
  makeFile,
  makeScene,
  normalise,
  OTHER_JOB,
  POOL,
  ports,
  request,
  run,
  type Scene,
  show,
} from './scene.ts';

let scene: Scene;
let descriptors: number;
beforeEach(() => {
  scene = makeScene('tmpfs');
  makeFile(scene.at('f'));
  descriptors = countDescriptors();
});
afterEach(() => {
  const left = countDescriptors();
  const owner = statSync(join(scene.storage, 'work'), { throwIfNoEntry: false })?.uid;
  scene.dispose();
  expect(left).toBe(descriptors);
  expect(owner).not.toBe(ALICE);
});

const apply = (path: string, storagePath = scene.storage, machine = ports()): Promise<NormaliseReport> =>
  normaliseRoot(
    { ...request(scene, 'apply'), root: { path, storagePath, mount: mountOf(scene.job) } },
    machine,
  );

describe('a root is refused and nothing changes (N16)', () => {
  const expectRefused = (report: NormaliseReport, reason: string): void => {
    expect(report.status).toBe('refused');
    expect(report.refusal?.reason).toBe(reason);
    expect(report.passes).toBe(0);
  };

  test.each([
    ['empty', '', 'path'],
    ['slash', '/', 'path'],
    ['relative', 'work', 'path'],
    ['with a NUL', '/work\0', 'path'],
    ['a process directory', '/proc/self/cwd', 'link'],
    ['not there', '/no/such/place', 'missing'],
    ['another storage', '/etc', 'outside-storage'],
  ])('%s', async (_, path, reason) => {
    expectRefused(await apply(path), reason);
  });

  test('not in normal form', async () => {
    for (const suffix of ['/', '/.', '/..', '/../1.0', '//x']) {
      expectRefused(await apply(`${scene.job}${suffix}`), 'path');
    }
  });

  test('a link at the end or on the way', async () => {
    symlinkSync(scene.job, join(scene.storage, 'to-job'));
    symlinkSync('work', join(scene.storage, 'alias'));
    expectRefused(await apply(join(scene.storage, 'to-job')), 'link');
    expectRefused(await apply(join(scene.storage, 'alias', 'main', '1.0')), 'link');
    expect(show(scene.at('f'))).toBe(`${JOB}:${JOB} 600`);
  });

  test('a file', async () => {
    const file = join(scene.storage, 'work', 'file');
    makeFile(file);
    expectRefused(await apply(file), 'not-a-directory');
    expectRefused(await apply(join(file, 'x')), 'not-a-directory');
  });

  test('a neighbour whose name starts like the storage', async () => {
    const storage2 = join(scene.storage, 'work2');
    mkdirSync(storage2);
    expectRefused(await apply(storage2, join(scene.storage, 'work')), 'outside-storage');
  });

  test('a directory that the job or another lease could replace', async () => {
    makeDirectory(scene.at('inner'));
    expectRefused(await apply(scene.at('inner')), 'parent-owned');
    makeDirectory(join(scene.storage, 'two'), OTHER_JOB);
    makeDirectory(join(scene.storage, 'two', 'inner'));
    expectRefused(await apply(join(scene.storage, 'two', 'inner')), 'parent-owned');
  });

  test('an unmounted or exchanged storage', async () => {
    const bound = mountOf(scene.job);
    run('/usr/bin/mount', '-t', 'tmpfs', 'other', join(scene.storage, 'work'));
    try {
      mkdirSync(join(scene.storage, 'work', 'main', '1.0'), { recursive: true });
      const report = await normaliseRoot(
        { ...request(scene, 'apply'), root: { path: scene.job, storagePath: scene.storage, mount: bound } },
        ports(),
      );
      expectRefused(report, 'mount-changed');
      expect(report.refusal?.code).toBe('mount-changed');
    } finally {
      run('/usr/bin/umount', join(scene.storage, 'work'));
    }
  });

  test('a read-only mount, before anything is tried', async () => {
    run('/usr/bin/mount', '-o', 'remount,bind,ro', scene.storage);
    expectRefused(await apply(scene.job), 'read-only');
  });

  test('while a process of the uid lives, or when that cannot be known', async () => {
    const alive = ports({ processesOf: () => [{ pid: 4242, command: 'sleep\x1b[2J' }] });
    const report = await apply(scene.job, scene.storage, alive);
    expectRefused(report, 'process');
    expect(report.refusal?.message).toContain('pid 4242 (sleep\\x1b[2J)');
    const blind = ports({
      processesOf: () => {
        throw new Error('/proc is not there');
      },
    });
    expectRefused(await apply(scene.job, scene.storage, blind), 'process');
    expect((await normalise(scene, 'plan', alive)).status).toBe('complete');
  });

  test('a submitter that is root, the job itself or of the pool', async () => {
    for (const to of [
      { uid: 0, gid: 1 },
      { uid: 1, gid: 0 },
      { uid: JOB, gid: 1 },
      { uid: 1, gid: JOB },
      { uid: POOL.last, gid: 1 },
      { uid: -1, gid: 1 },
      { uid: 0xffff_ffff, gid: 1 },
      { uid: 1.5, gid: 1 },
    ]) {
      expectRefused(await normalise(scene, 'apply', ports(), { to }), 'owners');
    }
    expectRefused(await normalise(scene, 'apply', ports(), { uid: 0 }), 'owners');
    expect(show(scene.at('f'))).toBe(`${JOB}:${JOB} 600`);
  });
});

test('the storage itself can be a root', async () => {
  expect(await apply(scene.storage)).toMatchObject({
    status: 'complete',
    changed: { file: 1, directory: 1 },
  });
});

test('a process that shows up while the walk goes on takes the proof away', async () => {
  let looks = 0;
  const machine = ports({ processesOf: () => (looks++ === 0 ? [] : [{ pid: 1, command: 'x' }]) });
  const report = await apply(scene.job, scene.storage, machine);
  expect(report.status).toBe('partial');
  expect(report.findings.map(({ reason }) => reason)).toEqual(['process']);
});

test('a root that is exchanged while it is opened is not walked under another name', async () => {
  const decoy = join(scene.storage, 'work', 'decoy');
  mkdirSync(decoy);
  makeFile(join(decoy, 'theirs'));
  let isSwapped = false;
  const pins = {
    ...pinnedInodes,
    pin: (directory: number, name: Parameters<typeof pinnedInodes.pin>[1]): number => {
      if (!isSwapped && name.toString() === '1.0\0') {
        isSwapped = true;
        renameSync(scene.job, `${scene.job}.away`);
        symlinkSync(decoy, scene.job);
      }
      return pinnedInodes.pin(directory, name);
    },
  };
  const report = await apply(scene.job, scene.storage, ports({ pins }));
  expect(report.refusal?.reason).toBe('link');
  expect(show(join(decoy, 'theirs'))).toBe(`${JOB}:${JOB} 600`);
  expect(readdirSync(decoy)).toEqual(['theirs']);
  chownSync(decoy, 0, 0);
});
