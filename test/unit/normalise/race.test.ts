/**
 * A job whose processes still live, which must not happen and here does: it exchanges names as fast as it can
 * while its tree is handed over. What belongs to others must never change hands, in any round.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  existsSync,
  linkSync,
  lstatSync,
  readdirSync,
  renameSync,
  rmSync,
  symlinkSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { readMountTable } from '../../../src/os/mount-table.ts';
import { type PinnedInodes, pinnedInodes } from '../../../src/os/pinned.ts';
import {
  ALICE,
  ALICE_GROUP,
  countDescriptors,
  findOwned,
  JOB,
  makeDirectory,
  makeFile,
  makeScene,
  normalise,
  own,
  ports,
  run,
  type Scene,
} from './scene.ts';

const ROUNDS = Number(process.env['XCE_RACE_ROUNDS'] ?? 50);

let scene: Scene;
let victim: string;
beforeEach(() => {
  scene = makeScene('tmpfs');
  victim = join(scene.storage, 'victim');
  makeDirectory(victim, 0, 0o755);
  for (const name of ['f0', 'f1', 'f2', 'f3']) makeFile(join(victim, name), 0, 0o4755);
});
afterEach(() => scene.dispose());

/**
 * Owner and mode of everything that is not the job's, and for times also when it last changed in any way. Not
 * for hard links that the job renames: that is a change of the inode too.
 */
const fingerprint = (withTimes: boolean): string =>
  [victim, ...readdirSync(victim).map((name) => join(victim, name))]
    .map((path) => {
      const { uid, gid, mode, ctimeNs } = lstatSync(path, { bigint: true });
      return `${path} ${uid} ${gid} ${mode.toString(8)} ${withTimes ? ctimeNs : ''}`;
    })
    .join('\n');

/** Runs in the job's directory, as the job: exchanges pairs of names until it is killed. */
const HOSTILE = `
  const { renameSync } = require('node:fs');
  const pairs = JSON.parse(process.argv[1]);
  process.stdout.write('up');
  for (;;) for (const [a, b] of pairs) {
    try { renameSync(a, 't'); } catch {}
    try { renameSync(b, a); } catch {}
    try { renameSync('t', b); } catch {}
  }`;

const startHostile = async (pairs: readonly (readonly [string, string])[]): Promise<ChildProcess> => {
  const child = spawn(process.execPath, ['-e', HOSTILE, JSON.stringify(pairs)], {
    cwd: scene.job,
    uid: JOB,
    gid: JOB,
    env: {},
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await once(child.stdout, 'data');
  return child;
};

const stop = async (child: ChildProcess): Promise<void> => {
  child.kill('SIGKILL');
  if (child.signalCode === null && child.exitCode === null) await once(child, 'exit');
};

/** Makes everything the job's again, by the only walk that is safe here. */
const giveBack = async (): Promise<void> => {
  await normalise(scene, 'apply', ports(), {
    uid: ALICE,
    gid: ALICE_GROUP,
    to: { uid: JOB, gid: JOB },
    otherPoolRange: { first: 1, last: 1 },
  });
};

describe('names exchanged by a living process', () => {
  test.each([
    ['a directory and a link to a directory of others', 'directory-link'],
    ['a file and a hard link of a file of others', 'file-hardlink'],
    ['a file and a link', 'file-link'],
    ['a directory and a file', 'directory-file'],
  ] as const)('%s', { timeout: 60_000 + ROUNDS * 500 }, async (_, kind) => {
    // The directory is everybody's, so that the job can go on after it has changed hands.
    chmodSync(scene.job, 0o777);
    // What a link leads to is the job's own, so that a walk that follows it would change it.
    if (kind.endsWith('link') && kind !== 'file-hardlink') {
      for (const name of ['j0', 'j1', 'j2', 'j3']) makeFile(join(victim, name));
    }
    const pairs: [string, string][] = [];
    for (let index = 0; index < 4; index += 1) {
      const [a, b] = [`a${index}`, `b${index}`];
      pairs.push([a, b]);
      if (kind.startsWith('directory')) {
        makeDirectory(scene.at(a), JOB, 0o777);
        makeFile(scene.at(a, 'f0'));
        makeFile(scene.at(a, 'f1'));
      } else makeFile(scene.at(a));
      if (kind === 'directory-link') symlinkSync(victim, scene.at(b));
      else if (kind === 'file-link') symlinkSync(join(victim, `j${index}`), scene.at(b));
      else if (kind === 'file-hardlink') linkSync(join(victim, `f${index}`), scene.at(b));
      else makeFile(scene.at(b));
    }
    const withTimes = kind !== 'file-hardlink';
    const before = fingerprint(withTimes);
    const hostile = await startHostile(pairs);
    let handedOver = 0;
    try {
      for (let round = 0; round < ROUNDS; round += 1) {
        const report = await normalise(scene, 'apply', ports());
        handedOver += report.changed.file + report.changed.directory + report.changed.symlink;
        expect(fingerprint(withTimes)).toBe(before);
        await giveBack();
      }
    } finally {
      await stop(hostile);
    }
    expect(handedOver).toBeGreaterThan(ROUNDS);
    // Once it is dead, one run ends it.
    expect(await normalise(scene, 'apply')).toMatchObject({ status: 'complete' });
    expect(findOwned(scene)).toEqual([]);
    expect(fingerprint(withTimes)).toBe(before);
  });
});

describe('one change of the tree at each step of the walk', () => {
  const CHANGES: Record<string, () => void> = {
    'a directory becomes a link': () => {
      renameSync(scene.at('d'), scene.at('away'));
      symlinkSync(victim, scene.at('d'));
    },
    'a file becomes a hard link of a file of others': () => {
      renameSync(scene.at('x'), scene.at('away'));
      linkSync(join(victim, 'f0'), scene.at('x'));
    },
    'a file deep down becomes a hard link of a file of others': () => {
      renameSync(scene.at('d', 'e', 'f'), scene.at('away'));
      linkSync(join(victim, 'f1'), scene.at('d', 'e', 'f'));
    },
    'a directory leaves the tree': () => renameSync(scene.at('d'), join(scene.storage, 'out')),
    'a directory of others takes the place of one': () => {
      renameSync(scene.at('d'), scene.at('away'));
      renameSync(victim, scene.at('d'));
    },
    'a mount is placed on a directory': () => {
      run('/usr/bin/mount', '--bind', victim, scene.at('d'));
    },
    'a file becomes a directory': () => {
      renameSync(scene.at('x'), scene.at('away'));
      makeDirectory(scene.at('x'));
      makeFile(scene.at('x', 'f'));
    },
    'a directory becomes a file': () => {
      renameSync(scene.at('d'), scene.at('away'));
      makeFile(scene.at('d'));
    },
    'a directory is removed': () => rmSync(scene.at('d'), { recursive: true }),
  };

  const build = (): void => {
    makeFile(scene.at('x'), JOB, 0o4755);
    makeDirectory(scene.at('d'), JOB, 0o755);
    makeDirectory(scene.at('d', 'e'), JOB, 0o755);
    makeFile(scene.at('d', 'e', 'f'), JOB, 0o4755);
  };

  const clear = (): void => {
    if (readMountTable().some(({ path }) => path === scene.at('d'))) run('/usr/bin/umount', scene.at('d'));
    const isMoved = !existsSync(victim);
    if (isMoved) renameSync(scene.at('d'), victim);
    for (const name of readdirSync(scene.job)) rmSync(scene.at(name), { recursive: true });
    rmSync(join(scene.storage, 'out'), { recursive: true, force: true });
    own(scene.job);
  };

  /** The kernel's doors with something done right before the call of a number. */
  const injected = (at: number, change: () => void): { pins: PinnedInodes; calls: () => number } => {
    let calls = 0;
    const wrap =
      <A extends readonly unknown[], R>(door: (...args: A) => R) =>
      (...args: A): R => {
        calls += 1;
        if (calls === at) change();
        return door(...args);
      };
    const pins: PinnedInodes = {
      pin: wrap(pinnedInodes.pin),
      openDirectory: wrap(pinnedInodes.openDirectory),
      readFacts: wrap(pinnedInodes.readFacts),
      chown: wrap(pinnedInodes.chown),
      chmod: wrap(pinnedInodes.chmod),
      findAttributes: wrap(pinnedInodes.findAttributes),
      getAttribute: wrap(pinnedInodes.getAttribute),
      setAttribute: wrap(pinnedInodes.setAttribute),
      removeAttribute: wrap(pinnedInodes.removeAttribute),
      readBlock: wrap(pinnedInodes.readBlock),
      seek: wrap(pinnedInodes.seek),
      close: pinnedInodes.close,
    };
    return { pins, calls: () => calls };
  };

  test.each(Object.keys(CHANGES))('%s', { timeout: 60_000 }, async (name) => {
    const change = CHANGES[name];
    if (change === undefined) throw new Error('no such change');
    for (let at = 1; ; at += 1) {
      build();
      const before = fingerprint(false);
      const descriptors = countDescriptors();
      const { pins, calls } = injected(at, change);
      const report = await normalise(scene, 'apply', ports({ pins }));
      expect(countDescriptors()).toBe(descriptors);
      const isChanged = calls() >= at;
      const verify = await normalise(scene, 'verify');
      // What came in behind the last pass is left, and verify says so.
      const isClean = findOwned(scene).length === 0 && !(isChanged && name.startsWith('a mount'));
      expect(verify.status).toBe(isClean ? 'complete' : 'partial');
      if (report.status === 'partial') expect(isClean).toBe(false);
      clear();
      expect(fingerprint(false)).toBe(before);
      if (!isChanged) {
        expect(at).toBeGreaterThan(30);
        break;
      }
    }
  });
});
