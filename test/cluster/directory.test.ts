/** The pool against a real name service: slapd, and nodes that ask it through nslcd or sssd. */
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Cluster } from '../support/cluster/cluster.ts';
import type { Node } from '../support/cluster/node.ts';
import { CAROL, Directory, joinDirectory, restartClient, serviceOf, type Way } from '../support/ldap.ts';
import { type CliEnd, CONFIG_PATH, POOL, Site } from '../support/site.ts';

/** In the directory from the start: one as a user, one as a group. */
const TAKEN = { user: POOL.first, group: POOL.first + 1 } as const;
/** What the command takes beside [directory] timeout on a busy machine. */
const COMMAND_MS_MAX = 10_000;

let cluster: Cluster;
let site: Site;
let directory: Directory;
let job = 0;

beforeAll(async () => {
  cluster = await Cluster.start({ nodes: ['ctl', 'n1', 'n2', 'ldap'], layers: ['directory'] });
  directory = await Directory.start(cluster.node('ldap'));
  await directory.addUser('person', TAKEN.user);
  await directory.addGroup('people', TAKEN.group);
  site = await Site.setUp(cluster, { workers: ['n1', 'n2'], controlUid: CAROL.uid });
});

afterAll(async () => {
  await cluster?.down();
});

const clients = (): readonly Node[] => [site.controller, ...site.workers];

const getent = async (node: Node, ...argv: readonly string[]): Promise<number | null> =>
  (await node.exec(['getent', ...argv])).exitCode;

/** A line of sh succeeds on the node within that many seconds. */
const until = async (node: Node, line: string, seconds: number): Promise<void> => {
  const script = `for i in $(seq ${10 * seconds}); do ${line} >/dev/null && exit 0; sleep 0.1; done; exit 1`;
  await node.must(['sh', '-c', script]);
};

const hashLog = (): Promise<string> => site.controller.must(['sh', '-c', 'sha256sum /ctl-shared/leases/*']);

const allocate = (): Promise<CliEnd> => {
  job += 1;
  return site.run(['lease', 'allocate', '--job', String(job), '--submitter', '1001', '--nodes', 'n1,n2']);
};

/** Allocate refuses in time, gives no uid and writes nothing. */
const expectNoUid = async (reason: RegExp, timeoutMs = 5000): Promise<void> => {
  const before = await hashLog();
  const startMs = performance.now();
  const end = await allocate();
  expect(performance.now() - startMs).toBeLessThan(timeoutMs + COMMAND_MS_MAX);
  expect(end.stderr).toMatch(/name service not answering/);
  expect(end.stderr).toMatch(reason);
  expect([end.status, end.stdout]).toEqual([69, '']);
  expect(await hashLog()).toBe(before);
};

/** The launch ends with 125 for that reason, and there is no trace of the lease on any node. */
const expectNoLaunch = async (id: string, lease: number, reason: RegExp): Promise<void> => {
  const end = await site.run(['launch', '--job', id, '--', 'touch', 'started']);
  expect(end.stderr).toMatch(reason);
  expect([end.status, end.stdout]).toEqual([125, '']);
  for (const node of site.workers) {
    const units = `systemctl list-units --all --plain --no-legend 'xce-main-${lease}.*'`;
    expect([node.name, await node.must(['sh', '-c', units])]).toEqual([node.name, '']);
    expect(await getent(node, 'passwd', `xce-main-${lease}`)).toBe(2);
  }
};

/** Puts the directory back, and lets the controller notice. */
const restore = async (way: Way): Promise<void> => {
  await directory.resume();
  await restartClient(site.controller, way);
};

describe.each<Way>(['nslcd', 'sssd'])('nodes that ask through %s', (way) => {
  const daemon = serviceOf(way);

  beforeAll(async () => {
    await Promise.all(clients().map((node) => joinDirectory(node, way)));
  });

  test('uids and gids of the directory are skipped, also where it does not list them', async () => {
    if (way === 'sssd') {
      const { stdout } = await site.controller.exec(['getent', '-s', 'sss', 'passwd']);
      expect(stdout.toString()).toBe('');
    }
    const { uid } = await site.allocate(`skip-${way}`, 'n1,n2');
    expect(uid).toBeGreaterThan(TAKEN.group);
  });

  test('an entry that appears after the grant makes every node refuse', async () => {
    const id = `late-${way}`;
    const { uid, lease } = await site.allocate(id, 'n1,n2');
    await directory.addUser(`late${uid}`, uid);
    await expectNoLaunch(id, lease, new RegExp(`n\\[1-2\\].*passwd knows ${uid} as "late${uid}"`));
  });

  test('a directory that is down proves nothing', async () => {
    await directory.stop();
    try {
      await expectNoUid(way === 'nslcd' ? /getent -s 'ldap' passwd 5001/ : /domain "site" is offline/);
    } finally {
      await restore(way);
    }
  });

  test('a directory that does not answer proves nothing', async () => {
    await directory.suspend();
    try {
      await expectNoUid(/no answer (in time|within 5000 ms)/);
    } finally {
      await restore(way);
    }
  });

  test(`a ${daemon} that is dead proves nothing`, async () => {
    await site.controller.must(['systemctl', 'kill', '--signal=KILL', daemon]);
    await site.controller.must(['systemctl', 'stop', daemon]);
    try {
      await expectNoUid(way === 'nslcd' ? /does not find \[directory\] control_uid/ : /sssd: ECONNREFUSED/);
    } finally {
      await restore(way);
    }
  });

  test('a leased uid that appears in the directory is flagged, and its files change no owner', async () => {
    const id = `owned-${way}`;
    const { uid, lease } = await site.allocate(id, 'n1,n2');
    const said = await site.must('launch', '--job', id, '--', 'sh', '-c', 'touch out; pwd');
    const file = `${said.split('\n')[0]}/out`;
    await directory.addUser(`owner${uid}`, uid);
    // sssd remembers for 15 s that it did not find the uid when it was allocated.
    await until(site.controller, `getent passwd ${uid}`, 20);
    const audit = await site.run(['lease', 'audit']);
    expect([audit.status, audit.stdout]).toEqual([77, expect.stringContaining(`as "owner${uid}"`)]);
    const release = await site.run(['lease', 'release', '--lease', String(lease)]);
    expect([release.status, release.stderr]).toEqual([77, expect.stringContaining(`as "owner${uid}"`)]);
    expect(await site.json('lease', 'show', '--lease', String(lease))).toMatchObject({
      uid,
      status: 'quarantined',
    });
    expect(await site.controller.must(['stat', '-c', '%u', file])).toBe(`${uid}\n`);

    await directory.removeUser(`owner${uid}`);
    await joinDirectory(site.controller, way);
    await site.must('lease', 'release', '--lease', String(lease));
    expect(await site.controller.must(['stat', '-c', '%u', file])).toBe('1001\n');
  });

  test('one node that does not reach the directory means that nothing starts on any node', async () => {
    const id = `cut-${way}`;
    const { lease } = await site.allocate(id, 'n1,n2');
    const n2 = cluster.node('n2');
    await n2.must(['ip', 'route', 'add', 'unreachable', `${directory.node.address}/32`]);
    try {
      await expectNoLaunch(id, lease, /n2.*name service not answering/);
    } finally {
      await n2.must(['ip', 'route', 'del', 'unreachable', `${directory.node.address}/32`]);
      await restartClient(n2, way);
    }
  });
});

test('a module that fails with EIO has not said that nobody has the uid', async () => {
  const { controller } = site;
  await joinDirectory(controller, 'nslcd');
  const source = readFileSync(new URL('programs/nss-eio.c', import.meta.url));
  await controller.writeFile('/root/nss-eio.c', source);
  await controller.must(['gcc', '-shared', '-fPIC', '-o', '/root/nss-eio.so', '/root/nss-eio.c']);
  await controller.must(['sh', '-c', 'mount --bind /root/nss-eio.so /usr/lib/*/libnss_ldap.so.2']);
  try {
    await expectNoUid(/getent -s 'ldap' passwd 5001: it does not find \[directory\] control_uid/);
  } finally {
    await controller.must(['sh', '-c', 'umount /usr/lib/*/libnss_ldap.so.2']);
  }
});

describe('answers that are remembered', () => {
  /** In the directory, and nobody has asked for it yet. */
  const UNMET = POOL.last;

  beforeAll(async () => {
    await directory.addUser('unmet', UNMET);
  });

  test('sssd goes on finding whom it has met, and nobody else, while its server is down', async () => {
    const { controller } = site;
    await joinDirectory(controller, 'sssd');
    await directory.stop();
    try {
      await expectNoUid(/domain "site" is offline/);
      expect(await getent(controller, 'passwd', String(CAROL.uid))).toBe(0);
      expect(await getent(controller, 'passwd', String(UNMET))).toBe(2);
    } finally {
      await restore('sssd');
    }
    expect(await getent(controller, 'passwd', String(UNMET))).toBe(0);
  });

  test('sssd without caches does the same, also for a server that hangs longer than sssd waits', async () => {
    const { controller } = site;
    await joinDirectory(controller, 'sssd without caches');
    const config = await controller.readFile(CONFIG_PATH);
    const patient = config.toString().replace('[directory]', '[directory]\ntimeout = 30s');
    await controller.writeFile(CONFIG_PATH, patient, { mode: 0o644 });
    await directory.suspend();
    try {
      await expectNoUid(/domain "site" is offline/, 30_000);
    } finally {
      await restore('sssd without caches');
      await controller.writeFile(CONFIG_PATH, config, { mode: 0o644 });
    }
  });

  test('nscd goes on finding whom nslcd has found, and is not asked', async () => {
    const { controller } = site;
    await joinDirectory(controller, 'nslcd');
    await controller.must(['systemctl', 'start', 'nscd']);
    expect(await getent(controller, 'passwd', String(CAROL.uid))).toBe(0);
    await directory.stop();
    try {
      await expectNoUid(/getent -s 'ldap' passwd 5001/);
      expect(await getent(controller, 'passwd', String(CAROL.uid))).toBe(0);
    } finally {
      await controller.must(['systemctl', 'stop', 'nscd']);
      await restore('nslcd');
    }
  });
});
