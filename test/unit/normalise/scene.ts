/**
 * A storage of its own for a test: a fresh file system with root-owned parents and one job directory, and
 * normalise with the real kernel behind it.
 */
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  lchownSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type NormaliseRequest, normaliseRoot } from '../../../src/normalise/normalise.ts';
import type { NormalisePorts } from '../../../src/normalise/ports.ts';
import type { Mode, NormaliseReport } from '../../../src/normalise/report.ts';
import { systemClock } from '../../../src/os/clock.ts';
import { mountOf } from '../../../src/os/mounts.ts';
import { pinnedInodes, pinSlash } from '../../../src/os/pinned.ts';

/** Leased uid, another lease's, the submitter's uid and gid, a bystander's. */
export const JOB = 60600;
export const OTHER_JOB = 60601;
export const ALICE = 21001;
export const ALICE_GROUP = 21501;
export const BOB = 21002;
export const PROJECT = 21900;
export const POOL = { first: 60600, last: 60699 };

export const run = (file: string, ...argv: string[]): string =>
  execFileSync(file, argv, { encoding: 'utf8', env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C' } });

export type Scene = {
  /** Mount point of the storage. */
  readonly storage: string;
  /** The job's directory, owned by the job, 0700. */
  readonly job: string;
  /** A path below the job's directory. */
  at(...parts: string[]): string;
  dispose(): void;
};

export const makeScene = (type: 'tmpfs' | 'ext4'): Scene => {
  const base = mkdtempSync(join(tmpdir(), 'xce-normalise-'));
  // The job's own processes come in by path.
  chmodSync(base, 0o711);
  const storage = join(base, 'storage');
  mkdirSync(storage);
  if (type === 'tmpfs') run('/usr/bin/mount', '-t', 'tmpfs', '-o', 'size=256m,nr_inodes=0', 'scene', storage);
  else {
    const image = join(base, 'image');
    run('/usr/bin/truncate', '-s', '64M', image);
    run('/usr/sbin/mkfs.ext4', '-q', '-F', '-O', '^has_journal', image);
    run('/usr/bin/mount', '-o', 'loop,acl', image, storage);
  }
  const job = join(storage, 'work', 'main', '1.0');
  mkdirSync(join(storage, 'work', 'main'), { recursive: true, mode: 0o711 });
  mkdirSync(job, { mode: 0o700 });
  chownSync(job, JOB, JOB);
  return {
    storage,
    job,
    at: (...parts) => join(job, ...parts),
    dispose: () => {
      run('/usr/bin/umount', storage);
      rmSync(base, { recursive: true });
    },
  };
};

/** The kernel, with no process of the job alive. */
export const ports = (changed: Partial<NormalisePorts> = {}): NormalisePorts => ({
  pins: pinnedInodes,
  pinSlash,
  mountOf,
  processesOf: () => [],
  clock: systemClock,
  ...changed,
});

export const request = (
  scene: Scene,
  mode: Mode,
  changed: Partial<NormaliseRequest> = {},
): NormaliseRequest => ({
  root: { path: scene.job, storagePath: scene.storage, mount: mountOf(scene.job) },
  uid: JOB,
  gid: JOB,
  to: { uid: ALICE, gid: ALICE_GROUP },
  mode,
  otherPoolRange: POOL,
  ...changed,
});

export const normalise = (
  scene: Scene,
  mode: Mode,
  machine: NormalisePorts = ports(),
  changed: Partial<NormaliseRequest> = {},
): Promise<NormaliseReport> => normaliseRoot(request(scene, mode, changed), machine);

/** "uid:gid mode" of an inode, links not followed. */
export const show = (path: string | Buffer): string => {
  const facts = lstatSync(path);
  return `${facts.uid}:${facts.gid} ${(facts.mode & 0o7777).toString(8)}`;
};

/** Gives an inode an owner, links not followed; clears setuid bits as the kernel does. */
export const own = (path: string | Buffer, uid = JOB, gid = uid): void => lchownSync(path, uid, gid);

/** A file with some bytes, an owner and then a mode. */
export const makeFile = (path: string | Buffer, uid = JOB, mode = 0o600, gid = uid): void => {
  writeFileSync(path, 'x');
  own(path, uid, gid);
  chmodSync(path, mode);
};

export const makeDirectory = (path: string | Buffer, uid = JOB, mode = 0o700, gid = uid): void => {
  mkdirSync(path);
  own(path, uid, gid);
  chmodSync(path, mode);
};

/** Paths in the job's directory that the job still owns, the directory's own among them. */
export const findOwned = (scene: Scene): string[] => {
  const found: string[] = [];
  const look = (path: Buffer): void => {
    const facts = lstatSync(path);
    if (facts.uid === JOB) found.push(path.toString('latin1'));
    if (!facts.isDirectory()) return;
    for (const name of readdirSync(path, { encoding: 'buffer' })) {
      look(Buffer.concat([path, Buffer.from('/'), name]));
    }
  };
  look(Buffer.from(scene.job));
  return found;
};

/** Reason, errno and count of each finding. */
export const briefly = (report: NormaliseReport): string[] =>
  report.findings
    .map(({ reason, errno, count }) => `${reason}${errno === null ? '' : ` ${errno}`} ${count}`)
    .sort();

/** How many descriptors this process has open. */
export const countDescriptors = (): number => readdirSync('/proc/self/fd').length;
