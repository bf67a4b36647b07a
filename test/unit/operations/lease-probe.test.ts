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
import { connectTls } from '../../../src/rpc/client.ts';
import { HostRecordFile } from '../../../src/wal/host-record.ts';
import { createStorage, type MountView, type StoragePorts } from '../../../src/wal/probe.ts';
import { startSecond } from '../../support/probe-process.ts';
import { createSite, refusedCode, type Site } from '../rpc/site.ts';
import { settingsFor } from './scene.ts';

let pki: Site;
const identities = new Map<string, Identity>();
let root: string;
const roots: string[] = [];
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
  roots.push(root);
  backing = join(root, 'backing');
  mkdirSync(backing, { mode: 0o700 });
};

afterEach(async () => {
  for (const daemon of daemons.splice(0)) {
    const ended = new Promise((resolve) => daemon.once('close', resolve));
    daemon.kill('SIGTERM'); // it unmounts
    await ended;
  }
  for (const made of roots.splice(0)) rmSync(made, { recursive: true });
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

const recordPathOf = (name: string): string => join(root, `state-${name}`, 'controller', 'storage.json');

/** What a host really has; only the type of its mount is made up. */
const portsOf = (
  name: string,
  changes: Partial<StoragePorts> = {},
  instance: string = 'main',
): StoragePorts => ({
  files: logFiles,
  mountOf: (path) => ({ ...mountOf(path), type: 'nfs4' }),
  judgeClient: async () => ({ fit: false, text: '' }),
  randomBytes: (count) => Buffer.alloc(count, 1),
  wait: (milliseconds) => wait(milliseconds),
  wallMs: bootClock.wallMs,
  startSecond,
  record: new HostRecordFile(logFiles, recordPathOf(name), { cluster: 'west', instance }, process.pid),
  ...changes,
});

const hostOf = (
  name: string,
  directory: string,
  port: number,
  changes: {
    readonly ports?: Partial<StoragePorts>;
    readonly certificate?: string;
    readonly instance?: string;
    readonly quietMs?: number;
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
    nodes: { ...base.nodes, requestTimeoutMs: changes.quietMs ?? base.nodes.requestTimeoutMs },
    worker: { ...base.worker, node: name as NodeName },
  };
  const recordPath = recordPathOf(name);
  const storage = createStorage(portsOf(name, changes.ports, instance), 'shared');
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
const codeOf = (outcome: PromiseSettledResult<unknown> | undefined): unknown =>
  outcome?.status === 'rejected' && outcome.reason instanceof XceError ? outcome.reason.code : outcome;
const messageOf = (outcome: PromiseSettledResult<unknown> | undefined): string =>
  outcome?.status === 'rejected' ? String(outcome.reason) : 'it passed';

/** Listens; resolves once connections are taken, with what it comes to. */
const startListening = async ({ context }: Host, timeoutMs = TIMEOUT_MS) => {
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
  const listen = { listen: true, peer: undefined, timeoutMs };
  const listened = Promise.allSettled([probeStorage({ ...context, progress }, listen)]).then(
    ([outcome]) => outcome,
  );
  await Promise.race([listening, listened]);
  return { outcome: listened };
};

const ask = async ({ context }: Host, node = 'ctl2', timeoutMs = TIMEOUT_MS) => {
  const asked = probeStorage(context, { listen: false, peer: peer(node), timeoutMs });
  const [outcome] = await Promise.allSettled([asked]);
  return outcome;
};

/** ctl1 probes with ctl2, which listens; the listener is up when the other begins. */
const probeBoth = async (first: Host, second: Host) => {
  const { outcome } = await startListening(second);
  return [await ask(first), await outcome] as const;
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
  test('whose storage keeps every promise pass, and both write it down', { timeout: 300_000 }, async () => {
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

const NAMES_KEPT = ['-o', 'entry_timeout=60,negative_timeout=60,attr_timeout=0'];
const NO_CACHE = ['-o', 'entry_timeout=0,negative_timeout=0,attr_timeout=0'];

/** Two hosts that never disagree, on one port. */
const twoHosts = (
  first: Parameters<typeof hostOf>[3] = {},
  second: Parameters<typeof hostOf>[3] = {},
): readonly [Host, Host] => {
  newRoot();
  const port = nextPort++;
  return [
    hostOf('ctl1', backing, port, { ...coherent('0:1'), ...first }),
    hostOf('ctl2', backing, port, { ...coherent('0:2'), ...second }),
  ];
};

/** Long enough for a refusal, and nobody waits for more. */
const SHORT_MS = 4000;

describe('a host that listens', { timeout: 60_000 }, () => {
  const refused = async (hosts: readonly [Host, Host]) => {
    const [first, second] = hosts;
    const { outcome } = await startListening(second, SHORT_MS);
    const asked = await ask(first);
    // It waits for another one, which does not come.
    expect(codeOf(await outcome)).toBe('timeout');
    expect(readdirSync(backing)).toEqual([]);
    for (const { recordPath } of hosts) expect(existsSync(recordPath)).toBe(false);
    return { code: codeOf(asked), message: messageOf(asked), told: second.told.join('\n') };
  };

  test('refuses one that is the same client of the storage', async () => {
    const { code, message, told } = await refused(twoHosts(coherent('0:7'), coherent('0:7')));
    expect(code).toBe('storage-unfit');
    expect(message).toContain('ctl2 and ctl1 are one client of the storage');
    expect(told).toContain('refused probe-begin of controller ctl1');
  });

  test('refuses one of another instance, and one whose log lies on another file system', async () => {
    expect(await refused(twoHosts({ instance: 'night' }))).toMatchObject({ code: 'log-foreign' });
    const asLustre = (path: string): MountView => ({ ...mountOf(path), type: 'lustre', device: '0:1' });
    expect(await refused(twoHosts({ ports: { mountOf: asLustre } }))).toMatchObject({
      code: 'storage-unfit',
      message: expect.stringContaining('lies on nfs4 at ctl2, and on lustre at ctl1'),
    });
  });

  test('is refused where it is not the controller that was meant', async () => {
    const [first, second] = twoHosts();
    const { outcome } = await startListening(second, SHORT_MS);
    expect(codeOf(await ask(first, 'ctl3'))).toBe('tls');
    expect(codeOf(await outcome)).toBe('timeout');
  });

  test('must be a controller, as must be the one that asks', async () => {
    const [first, second] = twoHosts({ certificate: 'n1' }, { certificate: 'n1' });
    for (const end of [await ask(first), await (await startListening(second)).outcome]) {
      expect(codeOf(end)).toBe('config-value');
      expect(messageOf(end)).toContain('host.crt is for worker n1');
    }
  });

  test('serves nobody who is no controller, and nobody who has not begun', async () => {
    const [, second] = twoHosts();
    const { outcome } = await startListening(second, SHORT_MS);
    const { port } = second.context.settings.lease.probeListen;
    for (const [name, code] of [
      ['n1', 'peer-role'],
      ['ctl1', 'peer-role'],
    ] as const) {
      const identity = identities.get(name);
      if (identity === undefined) throw new Error(name);
      const session = await connectTls(
        {
          address: '127.0.0.1',
          port,
          identity,
          expectNode: 'ctl2' as NodeName,
          expectRole: 'controller',
        },
        { timeoutMs: 10_000 },
      );
      const request = { probe: '0f'.repeat(8), by: 'first' as const, actions: [] };
      expect(await refusedCode(session.call('probe-act', request, { timeoutMs: 10_000 }))).toBe(code);
      session.close();
    }
    expect(codeOf(await outcome)).toBe('timeout');
  });

  test('gives up on one that goes away in the middle, and leaves nothing behind', async () => {
    const [first, second] = twoHosts({}, { quietMs: 1000 });
    const { outcome } = await startListening(second);
    // The host that asks is stuck after it has begun, as one that was cut off is.
    const stuck: ProbeContext['storage'] = {
      ...first.context.storage,
      withParty: () => new Promise(() => undefined),
    };
    void ask({ ...first, context: { ...first.context, storage: stuck } });
    const end = await outcome;
    expect(codeOf(end)).toBe('timeout');
    expect(messageOf(end)).toContain('said nothing for 1s');
    expect(readdirSync(backing)).toEqual([]);
    expect(existsSync(second.recordPath)).toBe(false);
  });
});

test('local storage is probed by one host alone', { timeout: 60_000 }, async () => {
  newRoot();
  const { context } = hostOf('ctl1', backing, nextPort++);
  const storage = createStorage(portsOf('ctl1', { mountOf }), 'local');
  const local: ProbeContext = { ...context, storage };
  const alone = { listen: false, peer: undefined, timeoutMs: TIMEOUT_MS };
  expect(await probeStorage(local, alone)).toMatchObject({ probe: { kept: LISTS.slice(0, 6), peer: null } });
  for (const input of [
    { ...alone, listen: true },
    { ...alone, peer: peer() },
  ]) {
    expect(await refusedCode(probeStorage(local, input))).toBe('usage');
  }
  expect(await refusedCode(probeStorage(context, alone))).toBe('usage');
  expect(readdirSync(backing)).toEqual([]);
});

describe('clients by FUSE', () => {
  test('that keep it that a name is not there are refused', { timeout: 120_000 }, async () => {
    await expectRefusal(
      NO_CACHE,
      NAMES_KEPT,
      /rename between hosts, round 1: ctl2 (does not see|cannot read) what ctl1 has renamed/,
    );
  });

  test('whose locks are known to their own kernel alone are refused', { timeout: 120_000 }, async () => {
    await expectRefusal(NO_CACHE, NO_CACHE, /locks between hosts: ctl2 got a lock that ctl1 held/);
  });
});
