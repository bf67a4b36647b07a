import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { judgeClient } from '../../../src/os/gluster-client.ts';

let root = '';
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'xce-gluster-'));
});
afterEach(() => {
  rmSync(root, { recursive: true, force: true });
});

type Translator = {
  readonly type: string;
  readonly state?: readonly string[];
  readonly options?: readonly string[];
};

const COHERENT = ['attribute-timeout=0', 'entry-timeout=0', 'direct-io-mode=enable'];

/** As a client of Gluster 11.1 shows its volume; the lines of `state` are those that it prints. */
const show = (translators: Readonly<Record<string, Translator>>, options = COHERENT): void => {
  const graph = join(root, '.meta/graphs/ctl1-155-2026-11-30-10:47:48.264108 +0000');
  mkdirSync(graph, { recursive: true });
  symlinkSync('ctl1-155-2026-11-30-10:47:48.264108 +0000', join(root, '.meta/graphs/active'));
  const words = ['/usr/sbin/glusterfs', ...options.map((option) => `--${option}`), '--process-name fuse'];
  const line = [...words, '--volfile-server=g1', '--volfile-id=/gv0', '/ctl-shared'].join(' ');
  writeFileSync(join(root, '.meta/cmdline'), `{ \n  "Cmdlinestr": "${line}"\n}`);
  writeFileSync(join(graph, 'volfile'), 'volume gv0-client-0\n    type protocol/client\nend-volume\n');
  for (const [name, { type, state = [], options = [] }] of Object.entries(translators)) {
    mkdirSync(join(graph, name, 'options'), { recursive: true });
    writeFileSync(join(graph, name, 'type'), `${type}\n`);
    const head = `[${type}.${name}]`;
    writeFileSync(join(graph, name, 'private'), `${[head, ...state].join('\n')}\n`);
    for (const option of options) writeFileSync(join(graph, name, 'options', option), 'on\n');
  }
};

const AROUND: Readonly<Record<string, Translator>> = {
  'meta-autoload': { type: 'meta' },
  gv0: { type: 'debug/io-stats' },
  'gv0-utime': { type: 'features/utime' },
  'gv0-client-0': { type: 'protocol/client' },
  'gv0-dht': {
    type: 'cluster/distribute',
    state: ['subvol_cnt = 1', 'subvolumes[0] = cluster/replicate.gv0-replicate-0'],
  },
};

const replicate = (count: number, ...quorum: readonly string[]): Translator => ({
  type: 'cluster/replicate',
  state: [`child_count = ${count}`, 'child_up[0] = 1', 'data_self_heal = 0', ...quorum, 'up = 1'],
  options: ['afr-pending-xattr', 'volume-id'],
});

const ask = (source = 'g1:/gv0') => judgeClient({ path: root, source, type: 'fuse.glusterfs' });

test.each([
  ['quorum auto of 3 replicas', 3, ['quorum-type = auto']],
  ['quorum 2 of 3 replicas', 3, ['quorum-type = fixed', 'quorum-count = 2']],
  ['quorum 3 of 5 replicas', 5, ['quorum-type = fixed', 'quorum-count = 3']],
])('a client of Gluster shows %s', async (text, count, quorum) => {
  show({ ...AROUND, 'gv0-replicate-0': replicate(count, ...quorum) });
  expect(await ask()).toEqual({ fit: true, text });
});

test.each([
  ['none', 3, ['quorum-type = none']],
  ['1 of 3', 3, ['quorum-type = fixed', 'quorum-count = 1']],
  ['2 of 4', 4, ['quorum-type = fixed', 'quorum-count = 2']],
  ['not shown', 3, []],
])('a quorum that is %s is none, and what to set is said', async (found, count, quorum) => {
  show({ ...AROUND, 'gv0-replicate-0': replicate(count, ...quorum) });
  expect(await ask()).toEqual({
    fit: false,
    text: `no proven client quorum: the quorum of gv0 is ${found}; gluster volume set gv0 cluster.quorum-type auto`,
  });
});

const AUTO = replicate(3, 'quorum-type = auto');
test.each<[string, Readonly<Record<string, Translator>>, RegExp]>([
  [
    'two copies',
    { 'gv0-replicate-0': replicate(2, 'quorum-type = auto') },
    /: gv0 keeps fewer than 3 whole copies/,
  ],
  [
    'two copies and an arbiter',
    { 'gv0-replicate-0': { ...AUTO, options: ['arbiter-count'] } },
    /: gv0 keeps fewer than 3 whole copies/,
  ],
  [
    'several replica sets',
    { 'gv0-replicate-0': AUTO, 'gv0-replicate-1': AUTO },
    /: gv0 is spread over several replica sets/,
  ],
  ['erasure coding', { 'gv0-disperse-0': { type: 'cluster/disperse' } }, /: gv0 is not replicated/],
  ['no copies', {}, /: gv0 is not replicated/],
  [
    'shards',
    { 'gv0-replicate-0': AUTO, 'gv0-shard': { type: 'features/shard' } },
    /: gv0 cuts files into shards/,
  ],
])('a volume of %s is refused whatever its quorum', async (_, translators, text) => {
  show({ ...AROUND, ...translators });
  expect(await ask()).toEqual({ fit: false, text: expect.stringMatching(text) });
});

test.each<[string, Readonly<Record<string, Translator>>, readonly string[], string]>([
  [
    'the attributes of files',
    { 'gv0-md-cache': { type: 'performance/md-cache' } },
    COHERENT,
    'gv0 has performance.stat-prefetch on; gluster volume set gv0 performance.stat-prefetch off',
  ],
  [
    'names that are not there',
    { 'gv0-nl-cache': { type: 'performance/nl-cache' } },
    COHERENT,
    'gv0 has performance.nl-cache on; gluster volume set gv0 performance.nl-cache off',
  ],
  ['what the kernel asked', {}, [], 'mount it with attribute-timeout=0'],
  ['names in the kernel', {}, ['attribute-timeout=0'], 'mount it with entry-timeout=0'],
  ['names for a while', {}, [...COHERENT, 'entry-timeout=0.5'], 'mount it with entry-timeout=0'],
  ['what it cannot say for how long', {}, [...COHERENT, 'entry-timeout=x'], 'mount it with entry-timeout=0'],
  [
    'missing names in the kernel',
    {},
    [...COHERENT, 'negative-timeout=1'],
    'mount it with negative-timeout=0',
  ],
  ['pages of files', {}, ['attribute-timeout=0', 'entry-timeout=0'], 'mount it with direct-io-mode=enable'],
  [
    'pages of files by request',
    {},
    [...COHERENT, 'direct-io-mode=off'],
    'mount it with direct-io-mode=enable',
  ],
])('a client that remembers %s is refused, and what to set is said', async (_, caches, options, cure) => {
  show({ ...AROUND, 'gv0-replicate-0': AUTO, ...caches }, [...options]);
  const text = `its client shows what was so before others changed it: ${cure}`;
  expect(await ask()).toEqual({ fit: false, text });
});

test('a client that shows no command line is an error, and no verdict', async () => {
  show({ ...AROUND, 'gv0-replicate-0': AUTO });
  writeFileSync(join(root, '.meta/cmdline'), '{}');
  await expect(ask()).rejects.toMatchObject({
    code: 'os',
    message: expect.stringContaining('no command line'),
  });
});

test('the volume of a mounted directory is named without the directory', async () => {
  show({ ...AROUND, 'gv0-replicate-0': replicate(3, 'quorum-type = none') });
  expect((await ask('10.0.0.1:/gv0/leases')).text).toContain('volume set gv0 cluster');
});

test('a mount that shows no translators has no known quorum', async () => {
  expect(await ask()).toEqual({ fit: false, text: expect.stringContaining('there is no /') });
});

test('a client that does not answer is an error, and no verdict', async () => {
  mkdirSync(join(root, '.meta/graphs/active/gv0-replicate-0/type'), { recursive: true });
  await expect(ask()).rejects.toMatchObject({ code: 'os', message: expect.stringContaining('EISDIR') });
});

test('nothing is known of another type', async () => {
  const other = await judgeClient({ path: root, source: 's:/x', type: 'ceph' });
  expect(other).toEqual({ fit: false, text: 'nothing shows the client quorum of ceph' });
});
