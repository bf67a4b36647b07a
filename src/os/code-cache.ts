/**
 * Runs a CommonJS bundle with the code that V8 made of it in an earlier run. Without, a short program spends more time
 * on compiling than on anything else. V8 itself refuses code of another version, processor or set of options; that the
 * code belongs to this very bundle is told by the bundle's inode, size and time of change. Code is written by root
 * alone, and run by everybody.
 */
import {
  chmodSync,
  closeSync,
  constants,
  fchmodSync,
  fstatSync,
  mkdirSync,
  openSync,
  readSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { dirname } from 'node:path';
import { Script } from 'node:vm';
import { errnoOf } from '../base/errors.ts';

export type CachedBundle = {
  readonly exports: unknown;
  /** Keeps the code of what has run by now for the next run, unless this one had it from there. */
  save(): void;
};

type Content = { readonly bytes: Buffer; readonly identity: string; readonly isRoots: boolean };

const KEY_BYTES = 128;
const CODE_BYTES_MAX = 16 << 20;

/** Both files are read into it, one after the other: they are a part of what a short program takes of memory. */
let space = Buffer.alloc(0);

/**
 * A regular file as it is, until the next is read, and what tells it from every other and from itself after a change.
 */
const readWhole = (path: string, flags = 0): Content => {
  const fd = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK | flags);
  try {
    const facts = fstatSync(fd, { bigint: true });
    if (!facts.isFile() || facts.size > CODE_BYTES_MAX) throw new Error(`${path} is not a bundle`);
    const size = Number(facts.size);
    if (space.length < size) space = Buffer.allocUnsafeSlow(size);
    const bytes = space.subarray(0, size);
    if (readSync(fd, bytes, 0, bytes.length, 0) !== bytes.length) throw new Error(`${path} is cut off`);
    return {
      bytes,
      identity: [facts.dev, facts.ino, facts.size, facts.ctimeNs].join(':'),
      isRoots: facts.uid === 0n && (facts.mode & 0o022n) === 0n,
    };
  } finally {
    closeSync(fd);
  }
};

/** Code that somebody else than root might have written would be root's to run. */
const readCode = (path: string, key: Buffer): Buffer | undefined => {
  try {
    const { bytes, isRoots } = readWhole(path, constants.O_NOFOLLOW);
    const isOurs = isRoots && bytes.subarray(0, KEY_BYTES).equals(key);
    return isOurs ? bytes.subarray(KEY_BYTES) : undefined;
  } catch {
    // There is none, or none that can be used: then the bundle is compiled.
    return undefined;
  }
};

/** A directory that is there is left as it is; a new one has this mode, whatever the umask. */
const makeOwn = (path: string, mode: number): void => {
  try {
    mkdirSync(path, 0o700);
  } catch (error) {
    if (errnoOf(error) === 'EEXIST') return;
    throw error;
  }
  chmodSync(path, mode);
};

const writeCode = (path: string, key: Buffer, code: Buffer): void => {
  const temporary = `${path}.new-${process.pid}`;
  try {
    makeOwn(dirname(dirname(path)), 0o755);
    makeOwn(dirname(path), 0o711);
    try {
      const fd = openSync(temporary, 'wx', 0o600);
      try {
        writeFileSync(fd, Buffer.concat([key, code]));
        // Whatever the umask: nothing of it is secret.
        fchmodSync(fd, 0o644);
      } finally {
        closeSync(fd);
      }
      renameSync(temporary, path);
    } finally {
      rmSync(temporary, { force: true });
    }
  } catch {
    // Nothing but time is lost: the next run compiles the bundle as this one did.
  }
};

/**
 * The bundle is the text of one function, which takes what Node gives to a CommonJS module: nothing has to be put
 * around a text of megabytes. All of its letters are ASCII. `load` is the `require` of the caller, beside which it lies.
 */
export const runCached = (bundlePath: string, codePath: string, load: NodeJS.Require): CachedBundle => {
  const { bytes, identity } = readWhole(bundlePath);
  const text = bytes.toString('latin1');
  const key = Buffer.alloc(KEY_BYTES, ' ');
  key.write(identity, 'latin1');
  const cachedData = readCode(codePath, key);
  const script = new Script(text, {
    filename: bundlePath,
    ...(cachedData === undefined ? {} : { cachedData }),
  });
  const module = { exports: {} };
  script.runInThisContext()(module.exports, load, module, bundlePath, dirname(bundlePath));
  return {
    exports: module.exports,
    save: () => {
      if (process.geteuid?.() !== 0) return;
      if (cachedData !== undefined && script.cachedDataRejected !== true) return;
      writeCode(codePath, key, script.createCachedData());
    },
  };
};
