/** File systems that refuse, lie or lose files, injected at the kernel's door, and one real liar. */
import { mkdirSync, renameSync, rmSync, unlinkSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { normaliseRoot } from '../../../src/normalise/normalise.ts';
import type { NormaliseReport } from '../../../src/normalise/report.ts';
import { ERRNO } from '../../../src/os/libc.ts';
import { mountOf } from '../../../src/os/mounts.ts';
import { type PinnedInodes, pinnedInodes } from '../../../src/os/pinned.ts';
import {
  ALICE,
  ALICE_GROUP,
  briefly,
  countDescriptors,
  findOwned,
  JOB,
  makeDirectory,
  makeFile,
  makeScene,
  normalise,
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
  descriptors = countDescriptors();
});
afterEach(() => {
  const left = countDescriptors();
  scene.dispose();
  expect(left).toBe(descriptors);
});

const withPins = (changed: Partial<PinnedInodes>): ReturnType<typeof ports> =>
  ports({ pins: { ...pinnedInodes, ...changed } });
const errno = (name: string): number => -(ERRNO[name] ?? 0);

const makeFiles = (count: number): void => {
  for (let index = 0; index < count; index += 1) makeFile(scene.at(`f${index}`));
};

test.each(['EPERM', 'EACCES', 'EINVAL', 'EROFS', 'ENOTSUP', 'EDQUOT', 'ESTALE'])(
  'a file system that answers every chown with %s is one finding, not one per file (N08)',
  async (name) => {
    makeFiles(150);
    const report = await normalise(scene, 'apply', withPins({ chown: () => errno(name) }));
    expect(report).toMatchObject({ status: 'partial', left: 151, changed: { file: 0, directory: 0 } });
    expect(briefly(report)).toEqual([`owner ${name} 151`]);
    expect(report.findings[0]?.samples).toHaveLength(100);
    expect(findOwned(scene)).toHaveLength(151);
  },
);

test('the hint for EPERM and EACCES is root_squash', async () => {
  makeFiles(1);
  for (const name of ['EPERM', 'EACCES']) {
    const report = await normalise(scene, 'apply', withPins({ chown: () => errno(name) }));
    expect(report.findings[0]?.hint).toContain('root_squash');
  }
});

test('a quota that is used up half way leaves the rest for a second run (N12)', async () => {
  makeFiles(100);
  let count = 0;
  const full = withPins({
    chown: (pin, uid, gid) => {
      count += 1;
      return count > 40 ? errno('EDQUOT') : pinnedInodes.chown(pin, uid, gid);
    },
  });
  const first = await normalise(scene, 'apply', full);
  expect(first).toMatchObject({ status: 'partial', changed: { file: 40 }, left: 61 });
  expect(briefly(first)).toEqual(['owner EDQUOT 61']);
  expect(first.findings[0]?.hint).toContain('quota');
  expect(await normalise(scene, 'apply')).toMatchObject({
    status: 'complete',
    changed: { file: 60, directory: 1 },
  });
});

test('a root whose directories cannot be read is partial', async () => {
  makeDirectory(scene.at('d'));
  makeFile(scene.at('d', 'hidden'));
  let opened = 0;
  const squashed = withPins({
    openDirectory: (pin) => (opened++ % 2 === 0 ? pinnedInodes.openDirectory(pin) : errno('EACCES')),
  });
  const report = await normalise(scene, 'apply', squashed);
  expect(report.status).toBe('partial');
  expect(briefly(report)).toEqual(['list EACCES 1']);
  expect(show(scene.at('d', 'hidden'))).toBe(`${JOB}:${JOB} 600`);
  expect((await normalise(scene, 'verify', withPins({ openDirectory: () => errno('EACCES') }))).status).toBe(
    'partial',
  );
});

test('a chown that says yes and does nothing is found out', async () => {
  makeFiles(3);
  const report = await normalise(scene, 'apply', withPins({ chown: () => 0 }));
  expect(report).toMatchObject({ status: 'partial', changed: { file: 0 }, left: 4 });
  expect(briefly(report)).toEqual(['not-kept 4']);
});

test('bits or capabilities that cannot be cleared keep the owner', async () => {
  makeFile(scene.at('s'), JOB, 0o4755);
  makeFile(scene.at('c'), JOB, 0o755);
  run('/usr/sbin/setcap', 'cap_setuid+ep', scene.at('c'));
  for (const [result, findings] of [
    [0, ['not-kept 2']],
    [errno('EPERM'), ['attributes EPERM 1', 'mode EPERM 1']],
  ] as const) {
    const report = await normalise(
      scene,
      'apply',
      withPins({ chmod: () => result, removeAttribute: () => result }),
    );
    expect(report.status).toBe('partial');
    expect(briefly(report)).toEqual(findings);
    expect(show(scene.at('s'))).toBe(`${JOB}:${JOB} 4755`);
    expect(show(scene.at('c'))).toBe(`${JOB}:${JOB} 755`);
  }
});

test('there is no instant with setuid or a capability and the new owner (N10)', async () => {
  makeFile(scene.at('s'), JOB, 0o6755);
  makeFile(scene.at('m'), JOB, 0o2644);
  makeFile(scene.at('c'), JOB, 0o755);
  run('/usr/sbin/setcap', 'cap_setuid+ep', scene.at('c'));
  let looked = 0;
  const look = (pin: number): void => {
    const facts = pinnedInodes.readFacts(pin, true);
    if (typeof facts === 'number' || facts.kind !== 'file') return;
    looked += 1;
    const hasCapability = typeof pinnedInodes.getAttribute(pin, 'security.capability') !== 'number';
    expect(facts.uid === ALICE && ((facts.mode & 0o6000) !== 0 || hasCapability)).toBe(false);
  };
  // A kernel that clears nothing by itself: bits are put back in the same call.
  const watched = withPins({
    chown: (pin, uid, gid) => {
      const before = pinnedInodes.readFacts(pin, true);
      expect(typeof before !== 'number' && before.kind === 'file' && (before.mode & 0o6000) !== 0).toBe(
        false,
      );
      const result = pinnedInodes.chown(pin, uid, gid);
      look(pin);
      return result;
    },
    chmod: (pin, mode) => {
      const result = pinnedInodes.chmod(pin, mode);
      look(pin);
      return result;
    },
  });
  expect((await normalise(scene, 'apply', watched)).status).toBe('complete');
  expect(looked).toBe(5);
});

test('bits that a process puts back before the owner changes are cleared after', async () => {
  makeFile(scene.at('m'), JOB, 0o2644);
  const raced = withPins({
    chown: (pin, uid, gid) => {
      const facts = pinnedInodes.readFacts(pin, true);
      if (typeof facts !== 'number' && facts.kind === 'file') pinnedInodes.chmod(pin, 0o2644);
      return pinnedInodes.chown(pin, uid, gid);
    },
  });
  const report = await normalise(scene, 'apply', raced);
  expect(show(scene.at('m'))).toBe(`${ALICE}:${ALICE_GROUP} 644`);
  expect(report).toMatchObject({ status: 'complete', also: { modesCleared: 1 } });
});

describe('names that vanish', () => {
  test('are no failure, and apply looks again', async () => {
    makeFiles(3);
    let isFirst = true;
    const machine = withPins({
      readBlock: (directory, block) => {
        const length = pinnedInodes.readBlock(directory, block);
        if (isFirst) unlinkSync(scene.at('f1'));
        isFirst = false;
        return length;
      },
    });
    const report = await normalise(scene, 'apply', machine);
    expect(report).toMatchObject({ status: 'complete', changed: { file: 2, directory: 1 }, passes: 2 });
  });

  test('a directory that moves away under the walk is found in the next pass', async () => {
    makeDirectory(scene.at('a'));
    makeDirectory(scene.at('a', 'b'));
    for (const name of ['1', '2', '3']) makeFile(scene.at('a', 'b', name));
    makeDirectory(scene.at('z'));
    let isFirst = true;
    const machine = withPins({
      pin: (directory, name) => {
        if (isFirst && name.toString() === 'b\0') {
          isFirst = false;
          renameSync(scene.at('a', 'b'), scene.at('z', 'c'));
        }
        return pinnedInodes.pin(directory, name);
      },
    });
    expect(await normalise(scene, 'apply', machine)).toMatchObject({ status: 'complete', left: 0 });
    expect(findOwned(scene)).toEqual([]);
  });

  test.each(['ESTALE', 'ENOENT'])(
    'one that is listed for ever and answers %s at every look is not proved to be nothing (N04)',
    async (name) => {
      makeFiles(2);
      const machine = withPins({
        pin: (directory, file) =>
          file.toString() === 'f1\0' ? errno(name) : pinnedInodes.pin(directory, file),
      });
      for (const mode of ['apply', 'verify'] as const) {
        const report = await normalise(scene, mode, machine);
        expect(report.status).toBe('partial');
        expect(briefly(report)).toContain(`look ${name} 1`);
      }
      expect(findOwned(scene)).toEqual([scene.at('f1')]);
    },
  );

  test('one that is not found at first and is there at the second look gets another pass', async () => {
    makeFiles(2);
    let misses = 1;
    const machine = withPins({
      pin: (directory, file) =>
        file.toString() === 'f1\0' && misses-- > 0 ? errno('ENOENT') : pinnedInodes.pin(directory, file),
    });
    expect(await normalise(scene, 'plan', machine)).toMatchObject({ status: 'complete', left: 3, passes: 2 });
  });
});

test('a tree that never settles is reported and not waited for', async () => {
  makeFiles(1);
  // Somebody who puts a new file of the uid in at the end of each pass.
  let count = 0;
  const machine = withPins({
    readBlock: (directory, block) => {
      const length = pinnedInodes.readBlock(directory, block);
      count += 1;
      if (length === 0) makeFile(scene.at(`n${count}`));
      return length;
    },
  });
  const report = await normalise(scene, 'apply', machine);
  expect(report.status).toBe('partial');
  expect(report.passes).toBe(8);
  // The last pass is one that only looks, and says what the one before it has missed.
  expect(briefly(report)).toEqual(['left-owner 1', 'unsettled 1']);
});

test('a last pass that finds nothing to hand over proves nothing: it is no look', async () => {
  makeFiles(2);
  // A name that its server has lost makes the second pass one that changes as well; then somebody else's file goes
  // away under each look, so that the last of all passes has its turn after one.
  let blocks = 0;
  let isFirst = true;
  const looks = [4, 10, 16];
  const machine = withPins({
    readBlock: (directory, block) => {
      const isLook = looks.includes(blocks);
      if (isLook) makeFile(scene.at('theirs'), ALICE);
      const length = pinnedInodes.readBlock(directory, block);
      if (isLook) unlinkSync(scene.at('theirs'));
      blocks += 1;
      return length;
    },
    pin: (directory, name) => {
      if (isFirst && name.toString() === 'f1\0') {
        isFirst = false;
        return errno('ESTALE');
      }
      return pinnedInodes.pin(directory, name);
    },
  });
  const report = await normalise(scene, 'apply', machine);
  expect(report).toMatchObject({ status: 'partial', passes: 8, left: 0 });
  expect(briefly(report)).toEqual(['unsettled 1']);
});

test('what the last look still finds is handed over, and looked for again', async () => {
  makeFiles(2);
  // A file that comes up behind the first pass.
  let blocks = 0;
  const machine = withPins({
    readBlock: (directory, block) => {
      const length = pinnedInodes.readBlock(directory, block);
      blocks += 1;
      if (length === 0 && blocks === 2) makeFile(scene.at('late'));
      return length;
    },
  });
  expect(await normalise(scene, 'apply', machine)).toMatchObject({
    status: 'complete',
    changed: { file: 3, directory: 1 },
    owned: { file: 3, directory: 1 },
    passes: 4,
  });
});

test('a change that is undone behind the pass that made it is found by the look, and not proved', async () => {
  makeFiles(1);
  let looks = 0;
  const machine = withPins({
    readFacts: (pin, fresh) => {
      const facts = pinnedInodes.readFacts(pin, fresh);
      // Only a look asks the server again; it has kept the old owner of this file all the time.
      if (!fresh || typeof facts === 'number' || facts.kind !== 'file') return facts;
      looks += 1;
      return { ...facts, uid: JOB, gid: JOB };
    },
  });
  const report = await normalise(scene, 'apply', machine);
  expect(report).toMatchObject({ status: 'partial', left: 1, passes: 4 });
  expect(briefly(report)).toContain('left-owner 1');
  expect(looks).toBeGreaterThan(0);
});

test('a root that cannot be handed over says why, after everything else was', async () => {
  makeFiles(2);
  const machine = withPins({
    chown: (pin, uid, gid) => {
      const facts = pinnedInodes.readFacts(pin, false);
      const isRoot = typeof facts !== 'number' && facts.kind === 'directory';
      return isRoot ? errno('EPERM') : pinnedInodes.chown(pin, uid, gid);
    },
  });
  const report = await normalise(scene, 'apply', machine);
  expect(report).toMatchObject({ status: 'partial', left: 1, changed: { file: 2, directory: 0 } });
  expect(briefly(report)).toEqual(['left-owner 1', 'owner EPERM 1']);
  expect(findOwned(scene)).toEqual([scene.job]);
});

test('a walk that is told to stop says so and keeps the root', async () => {
  makeFiles(50);
  const controller = new AbortController();
  controller.abort();
  const machine = ports({ clock: { monotonicMs: () => performance.now() * 1000 } });
  const report = await normalise(scene, 'apply', machine, { signal: controller.signal });
  expect(report.status).toBe('partial');
  expect(briefly(report)).toContain('cancelled 1');
  expect(show(scene.job)).toBe(`${JOB}:${JOB} 700`);
});

describe('bindfs', () => {
  const mountBindfs = async (option: string, check: (job: string) => Promise<void>): Promise<void> => {
    const at = join(scene.storage, 'fuse');
    mkdirSync(at);
    run('/usr/bin/bindfs', option, join(scene.storage, 'work'), at);
    try {
      await check(join(at, 'main', '1.0'));
    } finally {
      run('/usr/bin/umount', at);
      rmSync(at, { recursive: true });
    }
  };
  const applyAt = (job: string): Promise<NormaliseReport> =>
    normaliseRoot(
      { ...request(scene, 'apply'), root: { path: job, storagePath: scene.storage, mount: mountOf(job) } },
      ports(),
    );

  test('--chown-deny is a refusal with a reason', async () => {
    makeFiles(5);
    await mountBindfs('--chown-deny', async (job) => {
      const report = await applyAt(job);
      expect(report).toMatchObject({ status: 'partial', left: 6 });
      expect(briefly(report)).toEqual(['owner EPERM 6']);
    });
  });

  test('--chown-ignore, which says yes and does nothing, is found out', async () => {
    makeFiles(5);
    await mountBindfs('--chown-ignore', async (job) => {
      const report = await applyAt(job);
      expect(report).toMatchObject({ status: 'partial', left: 6 });
      expect(briefly(report)).toEqual(['not-kept 6']);
    });
    expect(findOwned(scene)).toHaveLength(6);
  });

  test('without either it is a storage like any other', async () => {
    makeFile(scene.at('s'), JOB, 0o4755);
    await mountBindfs('--no-allow-other', async (job) => {
      expect((await applyAt(job)).status).toBe('complete');
    });
    expect(show(scene.at('s'))).toBe(`${ALICE}:${ALICE_GROUP} 755`);
  });
});
