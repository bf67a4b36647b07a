/** Depth and width cost neither descriptors nor much memory. */
import { closeSync, openSync, writeFileSync } from 'node:fs';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { ERRNO, openat } from '../../../src/os/libc.ts';
import { type PinnedInodes, pinnedInodes } from '../../../src/os/pinned.ts';
import {
  ALICE,
  briefly,
  countDescriptors,
  JOB,
  makeDirectory,
  makeFile,
  makeScene,
  normalise,
  own,
  ports,
  type Scene,
  show,
} from './scene.ts';

let scene: Scene;
beforeEach(() => {
  scene = makeScene('tmpfs');
});
afterEach(() => scene.dispose());

/** The kernel, and the most descriptors that the walk had open at a time. */
const counting = (): { pins: PinnedInodes; most: () => number } => {
  let open = 0;
  let most = 0;
  const opened = (fd: number): number => {
    if (fd >= 0) open += 1;
    most = Math.max(most, open);
    return fd;
  };
  return {
    most: () => most,
    pins: {
      ...pinnedInodes,
      pin: (directory, name) => opened(pinnedInodes.pin(directory, name)),
      openDirectory: (pin) => opened(pinnedInodes.openDirectory(pin)),
      close: (descriptor) => {
        open -= 1;
        pinnedInodes.close(descriptor);
      },
    },
  };
};

/** A chain of directories with a file in each, far longer than a path may be; by descriptors. */
const makeChain = (from: string, levels: number): void => {
  let fd = openSync(from, 'r');
  for (let level = 0; level < levels; level += 1) {
    const at = `/proc/self/fd/${fd}`;
    makeDirectory(`${at}/d`);
    makeFile(`${at}/f`);
    const next = openSync(`${at}/d`, 'r');
    closeSync(fd);
    fd = next;
  }
  closeSync(fd);
};

const LEVELS = 5000;

test('5,000 levels are walked with a bounded number of descriptors', { timeout: 60_000 }, async () => {
  makeChain(scene.job, LEVELS);
  const { pins, most } = counting();
  const report = await normalise(scene, 'apply', ports({ pins }));
  expect(report).toMatchObject({
    status: 'complete',
    changed: { directory: LEVELS + 1, file: LEVELS },
    findings: [],
    passes: 2,
  });
  expect(most()).toBeLessThan(80);
  expect(await normalise(scene, 'verify')).toMatchObject({ status: 'complete' });
});

test('a finding far down gives the end of its path', { timeout: 60_000 }, async () => {
  makeChain(scene.job, 3000);
  let asked = 0;
  const pins: PinnedInodes = {
    ...pinnedInodes,
    findAttributes: (pin, isDirectory, listed) => {
      asked += 1;
      return asked > 5990 ? -(ERRNO['EIO'] ?? 0) : pinnedInodes.findAttributes(pin, isDirectory, listed);
    },
  };
  const { findings } = await normalise(scene, 'plan', ports({ pins }));
  expect(findings[0]).toMatchObject({ reason: 'attributes', errno: 'EIO' });
  expect(findings[0]?.samples).toHaveLength(findings[0]?.count ?? 0);
  for (const sample of findings[0]?.samples ?? []) {
    if (sample.path === Buffer.from(scene.job).toString('base64')) continue;
    expect(sample.cut).toBe(true);
    expect(Buffer.from(sample.path, 'base64')).toHaveLength(4095);
    expect(sample.shown).toMatch(/(\/d)+\/[df]$/);
  }
});

test('a parent that is not the parent any more ends the pass and not the proof', {
  timeout: 60_000,
}, async () => {
  makeChain(scene.job, 200);
  let resumed = 0;
  const pins: PinnedInodes = {
    ...pinnedInodes,
    pin: (directory, name) => {
      if (name.toString() !== '..\0') return pinnedInodes.pin(directory, name);
      resumed += 1;
      // Somebody moved the directory: its parent is another one now.
      return resumed === 3 ? openat(-1, scene.job, 0o10000000) : pinnedInodes.pin(directory, name);
    },
  };
  const report = await normalise(scene, 'apply', ports({ pins }));
  expect(resumed).toBeGreaterThan(100);
  expect(report).toMatchObject({ status: 'complete', changed: { directory: 201, file: 200 } });

  const never = { ...pinnedInodes };
  const lost = await normalise(
    scene,
    'verify',
    ports({
      pins: {
        ...never,
        pin: (directory, name) =>
          name.toString() === '..\0' ? openat(-1, scene.job, 0o10000000) : pinnedInodes.pin(directory, name),
      },
    }),
  );
  expect(lost).toMatchObject({ status: 'partial', passes: 8 });
  expect(briefly(lost)).toEqual(['unsettled 1']);
});

test('a wide directory is read in blocks, with as few descriptors as a narrow one', {
  timeout: 60_000,
}, async () => {
  const count = 20_000;
  for (let index = 0; index < count; index += 1) {
    const path = scene.at(`file-${index}`);
    writeFileSync(path, '');
    own(path);
  }
  const descriptors = countDescriptors();
  const told: number[] = [];
  const { pins, most } = counting();
  const report = await normalise(scene, 'apply', ports({ pins }), {
    onProgress: ({ names }) => told.push(names),
  });
  expect(report).toMatchObject({ status: 'complete', changed: { file: count } });
  expect(most()).toBeLessThan(10);
  expect(countDescriptors()).toBe(descriptors);
  expect(told.length).toBeGreaterThanOrEqual(report.passes);
  expect(told.at(-1)).toBe(count);
});

test('many subdirectories beside long chains are all found again after a suspension', {
  timeout: 60_000,
}, async () => {
  // Each level has more subdirectories than one block holds names, so suspended parents are read on.
  const long = 'x'.repeat(240);
  let total = 0;
  let at = scene.job;
  for (let level = 0; level < 3; level += 1) {
    for (let index = 0; index < 600; index += 1) makeDirectory(`${at}/${long}${index}`);
    total += 600;
    at = `${at}/${long}599`;
  }
  makeChain(at, 150);
  const report = await normalise(scene, 'apply');
  expect(report).toMatchObject({
    status: 'complete',
    changed: { directory: total + 151, file: 150 },
    findings: [],
  });
  expect(show(at).startsWith(`${ALICE}:`)).toBe(true);
  expect(show(scene.at(`${long}0`)).startsWith(`${JOB}:`)).toBe(false);
});
