/**
 * Two controllers of one cluster on this machine: two mounts of one file system, each a client with a cache of its
 * own, certificates, and TLS on the loopback address. Only the type in the mount table is made up.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { InstanceName, NodeName } from '../../../src/base/ids.ts';
import type { Settings } from '../../../src/config/settings.ts';
import { type ProbeContext, probeStorage } from '../../../src/operations/lease-probe.ts';
import { bootClock } from '../../../src/os/boot-clock.ts';
import { logFiles } from '../../../src/os/log-files.ts';
import { mountOf } from '../../../src/os/mounts.ts';
import type { Identity } from '../../../src/pki/identity.ts';
import { HostRecordFile } from '../../../src/wal/host-record.ts';
import { createStorage, type MountView, type StoragePorts } from '../../../src/wal/probe.ts';
import { startSecond } from '../../support/probe-process.ts';
import { createSite, type Site } from '../rpc/site.ts';
import { settingsFor } from './scene.ts';

let pki: Site;
const identities = new Map<string, Identity>();
let root: string;
let backing: string;
const daemons: ChildProcess[] = [];
let nextPort = 20_000 + (process.pid % 10_000);

beforeAll(async () => {
  pki = await createSite();
  for (const name of ['ctl1', 'ctl2']) identities.set(name, await pki.identity('controller', name));
  identities.set('n1', await pki.identity('worker', 'n1'));
});
afterAll(() => pki.remove());

/** In memory: what is tried is what is seen, and not what a disk keeps. */
const newRoot = (): void => {
  root = mkdtempSync('/dev/shm/xce-probe-');
  backing = join(root, 'backing');
  mkdirSync(backing, { mode: 0o700 });
};

afterEach(async () => {
  for (const daemon of daemons.splice(0)) {
    const ended = new Promise((resolve) => daemon.once('close', resolve));
    daemon.kill('SIGTERM'); // it unmounts
    await ended;
  }
  rmSync(root, { recursive: true });
});

/** Mounts the backing directory once more, as a client with these options. */
const mountClient = async (name: string, options: readonly string[]): Promise<string> => {
  const path = join(root, name);
  mkdirSync(path);
  const daemon = spawn('bindfs', ['-f', ...options, backing, path], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  daemons.push(daemon);
  const device = statSync(backing).dev;
  for (let left = 500; statSync(path).dev === statSync(root).dev || statSync(path).dev === device; left--) {
    if (left === 0) throw new Error('bindfs did not mount');
    await wait(10);
  }
  return path;
};

type Host = { readonly context: ProbeContext; readonly recordPath: string; readonly told: string[] };

const hostOf = (
  name: string,
  directory: string,
  port: number,
  changes: {
    readonly ports?: Partial<StoragePorts>;
    readonly certificate?: string;
    readonly instance?: string;
  } = {},
): Host => {
  const base = settingsFor([name as NodeName]);
  const instance = (changes.instance ?? 'main') as InstanceName;
  const settings: Settings = {
    ...base,
    cluster: { ...base.cluster, name: 'west', instance },
    lease: {
      ...base.lease,
      directory,
      storage: 'shared',
      probeListen: { address: '127.0.0.1', port },
    },
    worker: { ...base.worker, node: name as NodeName },
  };
  const recordPath = join(root, `state-${name}`, 'controller', 'storage.json');
  const asNfs = (path: string): MountView => ({ ...mountOf(path), type: 'nfs4' });
  const storage = createStorage(
    {
      files: logFiles,
      mountOf: asNfs,
      clientQuorum: async () => ({ known: false, text: '' }),
      randomBytes: (count) => Buffer.alloc(count, 1),
      wait: (milliseconds) => wait(milliseconds),
      wallMs: bootClock.wallMs,
      startSecond,
      record: new HostRecordFile(logFiles, recordPath, { cluster: 'west', instance }, process.pid),
      ...changes.ports,
    },
    'shared',
  );
  const identity = identities.get(changes.certificate ?? name);
  if (identity === undefined) throw new Error(name);
  const told: string[] = [];
  const context: ProbeContext = {
    settings,
    storage,
    identity,
    clock: bootClock,
    progress: { phase: (_, work) => work((text) => told.push(text)) },
    tell: (text) => told.push(text),
  };
  return { context, recordPath, told };
};

const TIMEOUT_MS = 600_000;
const peer = (node = 'ctl2') => ({ node: node as NodeName, address: '127.0.0.1', port: undefined });
const codeOf = (outcome: PromiseSettledResult<unknown>): unknown =>
  outcome.status === 'rejected' && outcome.reason instanceof XceError ? outcome.reason.code : outcome;
const messageOf = (outcome: PromiseSettledResult<unknown>): string =>
  outcome.status === 'rejected' ? String(outcome.reason) : 'it passed';

/** ctl1 probes with ctl2, which listens; the listener is up when the other begins. */
const probeBoth = async (first: Host, second: Host) => {
  const { context } = second;
  let up: () => void = () => undefined;
  const listening = new Promise<void>((resolve) => {
    up = resolve;
  });
  const progress: ProbeContext['progress'] = {
    phase: (title, work) => {
      if (title.startsWith('wait for')) up();
      return context.progress.phase(title, work);
    },
  };
  const listen = { listen: true, peer: undefined, timeoutMs: TIMEOUT_MS };
  const listened = probeStorage({ ...context, progress }, listen);
  await Promise.race([listening, listened]);
  return await Promise.allSettled([
    probeStorage(first.context, { listen: false, peer: peer(), timeoutMs: TIMEOUT_MS }),
    listened,
  ]);
};

/** The same file system once more for the kernel, which has one cache for it: clients that never disagree. */
const coherent = (device: string): { readonly ports: Partial<StoragePorts> } => ({
  ports: { mountOf: (path) => ({ ...mountOf(path), type: 'nfs4', device }) },
});

const LISTS = [
  'exclusive create',
  'fsync',
  'exclusive link',
  'rename',
  'fsync of the directory',
  'locks between processes',
  'exclusive create between hosts',
  'exclusive link between hosts',
  'rename between hosts',
  'locks between hosts',
  'size under the lock',
  'look',
  'fresh read',
];

describe('two hosts', () => {
  test('whose storage keeps every promise pass, and both write it down', { timeout: 120_000 }, async () => {
    newRoot();
    const port = nextPort++;
    const first = hostOf('ctl1', backing, port, coherent('0:1'));
    const second = hostOf('ctl2', backing, port, coherent('0:2'));
    const [asked, listened] = await probeBoth(first, second);
    const report = (node: string) => ({ kept: LISTS, peer: { node, rounds: 1000, stale: 0 } });
    expect(asked).toMatchObject({ value: { type: 'nfs4', probe: report('ctl2') } });
    expect(listened).toMatchObject({ value: { type: 'nfs4', probe: report('ctl1') } });
    expect(readdirSync(backing)).toEqual([]);
    for (const [{ context, recordPath }, node] of [
      [first, 'ctl2'],
      [second, 'ctl1'],
    ] as const) {
      expect(statSync(recordPath).mode & 0o7777).toBe(0o600);
      expect(JSON.parse(readFileSync(recordPath, 'utf8'))).toMatchObject({
        format: 1,
        cluster: 'west',
        instance: 'main',
        mount: { type: 'nfs4' },
        probe: report(node),
      });
      await expect(context.storage.admit(backing)).resolves.toMatchObject({ probe: report(node) });
    }
    expect(first.told).toContain('look and fresh read: 1000 of 1000 rounds');
  });
});

/** How a client that caches is refused, by the promise that shows it first. */
const expectRefusal = async (
  options: readonly string[],
  otherOptions: readonly string[],
  says: RegExp,
): Promise<void> => {
  newRoot();
  const port = nextPort++;
  const first = hostOf('ctl1', await mountClient('m1', options), port);
  const second = hostOf('ctl2', await mountClient('m2', otherOptions), port);
  const outcomes = await probeBoth(first, second);
  for (const outcome of outcomes) {
    expect(codeOf(outcome)).toBe('storage-unfit');
    expect(messageOf(outcome)).toMatch(says);
  }
  expect(readdirSync(backing)).toEqual([]);
  for (const { recordPath } of [first, second]) expect(existsSync(recordPath)).toBe(false);
};

const NO_CACHE = ['-o', 'entry_timeout=0,negative_timeout=0,attr_timeout=0'];

describe('clients by FUSE', () => {
  test('whose locks are known to their own kernel alone are refused', { timeout: 120_000 }, async () => {
    await expectRefusal(NO_CACHE, NO_CACHE, /locks between hosts: ctl2 got a lock that ctl1 held/);
  });
});
