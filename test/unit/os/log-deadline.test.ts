import { mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync, stat, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { answerWithin, filesWithin, hasStuckCalls, hostFilesWithin } from '../../../src/os/log-deadline.ts';
import { type LogFile, type LogFiles, logFiles } from '../../../src/os/log-files.ts';

let root = '';
let path = '';
/** The calls that hang wait for this. */
let openGate = (): void => undefined;
let gate = Promise.resolve();
let opened = 0;
/** Names of the calls that hang. */
const silent = new Set<string>();
const TIMED_OUT = { code: 'ETIMEDOUT' };
const TIMEOUT_MS = 50;

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'xce-deadline-'));
  path = join(root, 'file');
  opened = 0;
  writeFileSync(path, 'old');
  gate = new Promise((resolve) => {
    openGate = resolve;
  });
});
afterEach(async () => {
  silent.clear();
  openGate();
  await vi.waitUntil(() => !hasStuckCalls());
  rmSync(root, { recursive: true });
});

/** The same calls, each of which is made only when the storage answers. */
const behindGate = <T extends LogFile | LogFiles>(calls: T): T =>
  new Proxy(calls, {
    get: (target, name) => {
      const call: unknown = Reflect.get(target, name);
      if (typeof call !== 'function' || !silent.has(String(name))) return call;
      return async (...words: unknown[]) => {
        await gate;
        return await Reflect.apply(call, target, words);
      };
    },
  });

const storage: LogFiles = {
  ...logFiles,
  open: async (...words) => {
    const file = await behindGate(logFiles).open(...words);
    opened += 1;
    return behindGate(file);
  },
  unlink: (name) => behindGate(logFiles).unlink(name),
  list: (name) => behindGate(logFiles).list(name),
};
const files = filesWithin(TIMEOUT_MS, storage);

/** Descriptors of this process on the file. */
const descriptors = (): number =>
  readdirSync('/proc/self/fd').filter((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`) === path;
    } catch {
      return false; // the one that lists them
    }
  }).length;

test('a call that returns in time gives its answer or its own error', async () => {
  const file = await files.open(path, 'append');
  expect(await file.append(Buffer.from('new'))).toBe(3);
  await file.close();
  expect(readFileSync(path, 'utf8')).toBe('oldnew');
  await expect(files.unlink(join(root, 'none'))).rejects.toMatchObject({ code: 'ENOENT' });
  expect([hasStuckCalls(), descriptors()]).toEqual([false, 0]);
});

test('a call that does not return is given up, and no other is made until it does', async () => {
  silent.add('unlink');
  await expect(files.unlink(path)).rejects.toMatchObject(TIMED_OUT);
  expect(hasStuckCalls()).toBe(true);
  await expect(files.list(root)).rejects.toMatchObject(TIMED_OUT);
  await expect(files.open(path, 'read')).rejects.toMatchObject(TIMED_OUT);
  await expect(filesWithin(1000, logFiles).identify(path)).rejects.toMatchObject(TIMED_OUT);
  expect(opened).toBe(0);
  openGate();
  await vi.waitUntil(() => !hasStuckCalls());
  expect(await files.list(root)).toEqual([]);
});

test('what fails late fails for nobody', async () => {
  silent.add('list');
  await expect(files.list(join(root, 'none'))).rejects.toMatchObject(TIMED_OUT);
  openGate();
  await vi.waitUntil(() => !hasStuckCalls());
  expect(await files.list(root)).toEqual(['file']);
});

test('a file that is opened too late is closed again', async () => {
  silent.add('open');
  await expect(files.open(path, 'read')).rejects.toMatchObject(TIMED_OUT);
  const closed = vi.waitUntil(() => opened === 1 && descriptors() === 0);
  openGate();
  await closed;
  expect(hasStuckCalls()).toBe(false);
});

test('a descriptor lives until the call on it has returned, although it was closed', async () => {
  const file = await files.open(path, 'append');
  silent.add('append');
  await expect(file.append(Buffer.from('late'))).rejects.toMatchObject(TIMED_OUT);
  await file.close();
  expect(descriptors()).toBe(1);
  openGate();
  await vi.waitUntil(() => descriptors() === 0);
  expect(readFileSync(path, 'utf8')).toBe('oldlate');
});

test('a close that does not return holds nobody up', async () => {
  const file = await files.open(path, 'append');
  silent.add('close');
  await file.close();
  expect(hasStuckCalls()).toBe(true);
});

test('a lock is not asked for while a call is stuck', async () => {
  const file = await files.open(path, 'append');
  expect(file.tryLock()).toBe(true);
  silent.add('sync');
  await expect(file.sync()).rejects.toMatchObject(TIMED_OUT);
  expect(() => file.tryLock()).toThrow(expect.objectContaining(TIMED_OUT));
  expect(() => file.unlock()).toThrow(expect.objectContaining(TIMED_OUT));
  openGate();
  await vi.waitUntil(() => !hasStuckCalls());
  file.unlock();
  await file.close();
});

const identifyInTime = (): Promise<string | undefined> =>
  answerWithin(TIMEOUT_MS, 'lstat', () => logFiles.identify(path));

const standStill = (): void => {
  const untilMs = performance.now() + 4 * TIMEOUT_MS;
  while (performance.now() < untilMs);
};

test('an answer that came while this process stood still is in time', async () => {
  const facts = identifyInTime();
  standStill();
  expect(await facts).toBe(await logFiles.identify(path));
});

test('and so is one that came when the timer of an earlier call had gone off already', async () => {
  await identifyInTime();
  const facts = await new Promise((resolve) => {
    // Called in the turn of that timer: behind it, and before what it leaves for the end of the turn.
    stat(path, () => {
      resolve(identifyInTime());
      standStill();
    });
    standStill();
  });
  expect(facts).toBe(await logFiles.identify(path));
});

test('on a disk of this host only an fsync has a deadline, and while one is stuck no other call is made', async () => {
  const onHost = hostFilesWithin(TIMEOUT_MS, storage);
  silent.add('list');
  setTimeout(openGate, 4 * TIMEOUT_MS);
  expect(await onHost.list(root)).toEqual(['file']);
  const file = await onHost.open(path, 'append');
  gate = new Promise((resolve) => {
    openGate = resolve;
  });
  silent.add('sync');
  await expect(file.sync()).rejects.toMatchObject(TIMED_OUT);
  await expect(file.append(Buffer.from('new'))).rejects.toMatchObject(TIMED_OUT);
  await expect(onHost.unlink(path)).rejects.toMatchObject(TIMED_OUT);
  expect(readFileSync(path, 'utf8')).toBe('old');
  openGate();
  await vi.waitUntil(() => !hasStuckCalls());
  await file.append(Buffer.from('new'));
  await file.close();
  expect(readFileSync(path, 'utf8')).toBe('oldnew');
});
