/** The whole life of a job on three real nodes, from the first command to the freed uid. */
import { createHash } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { POOL, Site, SUBMITTER, WORKSPACE } from '../support/site.ts';

let site: Site;

beforeAll(async () => {
  site = await Site.start();
  await site.compile('mpi-hello');
});

afterAll(async () => {
  await site?.down();
});

const lines = (text: string): string[] => text.split('\n').filter((line) => line !== '');

describe('a lease', () => {
  test('allocate gives a uid of the pool, and the same lease when it is repeated', async () => {
    const args = [
      'lease',
      'allocate',
      '--job',
      '42',
      '--submitter',
      '1001',
      '--nodes',
      'n[1-3]',
      '--ttl',
      '10m',
    ];
    const first = await site.json<{ uid: number; lease: number; outcome: string }>(...args);
    expect(first.outcome).toBe('granted');
    expect(first.uid).toBeGreaterThanOrEqual(POOL.first);
    expect(first.uid).toBeLessThanOrEqual(POOL.last);
    expect(await site.json(...args)).toMatchObject({
      uid: first.uid,
      lease: first.lease,
      outcome: 'repeated',
    });
  });

  test('another job gets another uid', async () => {
    const [one, other] = [await site.allocate('42'), await site.allocate('43', 'n1')];
    expect(other.uid).not.toBe(one.uid);
    await site.must('lease', 'release', '--job', '43');
  });

  test('two job ids beyond 2^53 that differ in the last digit are two jobs, digit for digit', async () => {
    const [one, other] = ['18014398509481984', '18014398509481985'];
    const leases = [await site.allocate(one, 'n1'), await site.allocate(other, 'n1')];
    expect(leases.map(({ job }) => job)).toEqual([one, other]);
    expect(leases[0]?.uid).not.toBe(leases[1]?.uid);
    for (const job of [one, other]) await site.must('lease', 'release', '--job', job);
  });
});

describe('a launch of plain tasks', () => {
  test('runs under the leased uid on every node, and only there has it a name', async () => {
    const { uid, lease } = await site.allocate('42');
    const end = await site.run(['launch', '--job', '42', '--label', '--', 'id', '-u']);
    expect(end).toMatchObject({ status: 0, stderr: expect.not.stringContaining('Error') });
    expect(lines(end.stdout).sort()).toEqual(['n1', 'n2', 'n3'].map((node) => `${node}: ${uid}`));
    for (const node of site.workers) {
      expect(await node.must(['getent', 'passwd', String(uid)])).toContain(`xce-main-${lease}:`);
    }
  });

  test('has no capability, no way to gain one, and no other group', async () => {
    const { uid } = await site.allocate('42');
    const end = await site.run(['launch', '--job', '42', '--nodes', 'n2', '--', 'cat', '/proc/self/status']);
    const field = (name: string): string | undefined =>
      lines(end.stdout)
        .find((line) => line.startsWith(`${name}:`))
        ?.slice(name.length + 1)
        .trim();
    for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']) {
      expect([set, field(set)]).toEqual([set, '0000000000000000']);
    }
    expect(field('NoNewPrivs')).toBe('1');
    expect(field('Uid')?.split('\t')).toEqual(Array(4).fill(String(uid)));
    expect(field('Gid')?.split('\t')).toEqual(Array(4).fill(String(uid)));
    expect(['', String(uid)]).toContain(field('Groups'));
  });

  test('gets its arguments byte for byte', async () => {
    const words = ['$$', '${HOME}', '%n', '100%', '%%', '"', "it's", '\\n', '', ' a  b ', '*', '~'];
    const end = await site.run([
      'launch',
      '--job',
      '42',
      '--nodes',
      'n1',
      '--',
      '/usr/bin/printf',
      '<%s>',
      ...words,
    ]);
    expect(end.status).toBe(0);
    expect(end.stdout).toBe(words.map((word) => `<${word}>`).join(''));
  });

  test('starts in the workspace of the job, which is shared by its nodes and private to it', async () => {
    const { uid } = await site.allocate('42');
    const end = await site.run([
      'launch',
      '--job',
      '42',
      '--',
      'sh',
      '-c',
      'pwd > "from-$XCE_NODE"; ls -ld .',
    ]);
    expect(end.status).toBe(0);
    const directory = `${WORKSPACE}/main/42.0/work`;
    expect(await site.controller.must(['stat', '-c', '%U:%u:%a', directory])).toContain(`:${uid}:700`);
    for (const node of ['n1', 'n2', 'n3']) {
      expect(await site.controller.must(['cat', `${directory}/from-${node}`])).toBe(`${directory}\n`);
    }
  });

  test('the status is that of the first step that failed, and 128 plus the signal', async () => {
    const exit = await site.run([
      'launch',
      '--job',
      '42',
      '--',
      'sh',
      '-c',
      'test "$XCE_NODE" != n2 || exit 7',
    ]);
    expect(exit.status).toBe(7);
    const killed = await site.run(['launch', '--job', '42', '--nodes', 'n3', '--', 'sh', '-c', 'kill -9 $$']);
    expect(killed.status).toBe(137);
  });

  test('standard input reaches those who were chosen, whole', async () => {
    const input = Buffer.alloc(1 << 20, 'xce\n');
    const end = await site.run(['launch', '--job', '42', '--nodes', 'n1', '--stdin', 'all', '--', 'md5sum'], {
      input,
    });
    expect(end.stdout).toContain(createHash('md5').update(input).digest('hex'));
  });

  test('cannot reach the system bus, and another job sees nothing of it', async () => {
    const look =
      'test -S /run/xce/agent.sock && ! test -e /run/dbus && ! test -e /run/systemd/private && echo hidden';
    expect(await site.must('launch', '--job', '42', '--nodes', 'n1', '--', 'sh', '-c', look)).toBe(
      'hidden\n',
    );
    await site.must(
      'launch',
      '--job',
      '42',
      '--nodes',
      'n1',
      '--',
      'sh',
      '-c',
      'echo secret | tee /tmp/x /dev/shm/x /var/tmp/x',
    );
    await site.allocate('44', 'n1');
    const other = await site.run([
      'launch',
      ...['--job', '44', '--', 'sh', '-c'],
      `ls -A /tmp /var/tmp /dev/shm; cat ${WORKSPACE}/main/42.0/work/from-n1; ls ${WORKSPACE}`,
    ]);
    expect(lines(other.stdout)).toEqual(['/dev/shm:', '/tmp:', '/var/tmp:']);
    expect(other.stderr).toMatch(/42\.0\/work\/from-n1: Permission denied/);
    await site.must('lease', 'release', '--job', '44');
  });
});

describe('an MPI launch', () => {
  test('has all ranks of one world on three nodes, a right allreduce, and shared memory on each node', async () => {
    const { uid } = await site.allocate('42');
    const end = await site.run(['launch', '--job', '42', '--mpi', '-n', '6', '--', '/shared/bin/mpi-hello']);
    expect(end.stderr).not.toMatch(/xce-sandbox-agent|unable/);
    expect(end.status).toBe(0);
    expect(lines(end.stdout).sort()).toEqual(
      [0, 1, 2, 3, 4, 5].map(
        (rank) => `rank ${rank} of 6 on n${Math.floor(rank / 2) + 1} uid ${uid} sum right shared 2 of 2`,
      ),
    );
  });

  test('keeps its session directories in the sandbox, below a directory that only its uid may enter', async () => {
    // PRRTE makes the top one of its directories 0755 whatever the umask is, and those of its jobs 0700.
    const script = 'stat -c "%a %u %n" /tmp /tmp/prte*/*/ 2>/dev/null | sort -u';
    const { uid } = await site.allocate('42');
    const end = await site.run(['launch', '--job', '42', '--mpi', '-n', '3', '--', 'sh', '-c', script]);
    expect(end.status).toBe(0);
    const directories = lines(end.stdout);
    expect(directories.filter((line) => line === `700 ${uid} /tmp`)).toHaveLength(3);
    expect(directories.length).toBeGreaterThanOrEqual(6);
    for (const line of directories) expect(line).toMatch(new RegExp(`^700 ${uid} /tmp`));
    for (const node of site.workers) {
      expect(await node.must(['find', '/tmp', '-name', 'prte*'])).toBe('');
    }
  });

  test('gives the status of a rank that fails', async () => {
    const end = await site.run(['launch', '--job', '42', '--mpi', '-n', '3', '--', 'sh', '-c', 'exit 42']);
    expect(end.status).toBe(42);
  });

  test('mpirun inside a batch script reaches the other nodes as well', async () => {
    const script =
      'mpirun --host n1:1,n3:1 -n 2 /shared/bin/mpi-hello && mpirun --host n1:1,n2:1 -n 2 hostname';
    const end = await site.run(['launch', '--job', '42', '--nodes', 'n1', '--', 'sh', '-c', script]);
    expect(end.status).toBe(0);
    expect(lines(end.stdout).filter((line) => line.startsWith('rank '))).toHaveLength(2);
    expect(lines(end.stdout)).toEqual(expect.arrayContaining(['n1', 'n2']));
  });

  test('nobody ever ran ssh', () => {
    for (const node of site.cluster.nodes) expect(node.readSshRuns()).toEqual([]);
  });
});

describe('the end of a job', () => {
  test('every file goes to the submitter, whatever its name and kind, and nothing else changes', async () => {
    const { uid } = await site.allocate('45');
    const script = [
      'mkdir -m 0700 private && touch private/inner',
      "touch -- -rf ' lead' \"$(printf 'a\\nb')\" \"$(printf '\\377\\376')\"",
      'mkfifo fifo && ln -s /etc/passwd link && ln -s /shared/bin dirlink && ln private/inner hard',
    ].join(' && ');
    await site.must('launch', '--job', '45', '--nodes', 'n2', '--', 'sh', '-c', script);
    const directory = `${WORKSPACE}/main/45.0/work`;
    await site.controller.must([
      'sh',
      '-c',
      `echo root > /shared/rootfile; ln /shared/rootfile ${directory}/planted`,
    ]);
    const before = await site.controller.must([
      'stat',
      '-c',
      '%u:%g:%a',
      '/etc/passwd',
      '/shared/bin',
      '/shared/rootfile',
    ]);

    const plan = await site.json<{ roots: { owned: Record<string, number> }[] }>(
      'normalise',
      '--job',
      '45',
      '--plan',
    );
    const owned = Object.values(plan.roots[0]?.owned ?? {}).reduce((sum, count) => sum + count, 0);
    expect(owned).toBe(10);
    expect((await site.run(['normalise', '--job', '45'])).status).toBe(77);

    const released = await site.json<{ status: string; roots: { changed: Record<string, number> }[] }>(
      ...['lease', 'release', '--job', '45'],
    );
    expect(released.status).toBe('free');
    expect(Object.values(released.roots[0]?.changed ?? {}).reduce((sum, count) => sum + count, 0)).toBe(10);
    expect(await site.controller.must(['find', '/shared', '-uid', String(uid)])).toBe('');
    expect(
      await site.controller.must(['find', directory, '!', '-uid', String(SUBMITTER.uid), '-printf', '%f\n']),
    ).toBe('planted\n');
    expect(
      await site.controller.must([
        'stat',
        '-c',
        '%u:%g:%a',
        '/etc/passwd',
        '/shared/bin',
        '/shared/rootfile',
      ]),
    ).toBe(before);
  });

  test('the uid is free and unknown everywhere, and the attempt gets no lease again', async () => {
    const { uid } = await site.allocate('42');
    await site.must('lease', 'release', '--job', '42');
    for (const node of site.workers) {
      expect((await node.exec(['getent', 'passwd', String(uid)])).exitCode).toBe(2);
      expect(
        await node.must(['sh', '-c', `systemctl list-units --all --plain --no-legend 'xce-main-*' | wc -l`]),
      ).toBe('0\n');
      const places = ['/run/userdb', '/run/xce-sandbox/main/box'];
      expect((await node.exec(['find', ...places, '-mindepth', '1'])).stdout.toString()).toBe('');
    }
    const again = await site.run([
      'lease',
      'allocate',
      '--job',
      '42',
      '--submitter',
      '1001',
      '--nodes',
      'n1',
      '--json',
    ]);
    expect(again.status).toBe(77);
    expect(JSON.parse(again.stdout)).toMatchObject({ error: { code: 'lease-ended' } });
    expect(await site.json('lease', 'list')).toEqual([]);
  });

  test('a process that got away blocks the release and is named, until it is gone', async () => {
    const { uid } = await site.allocate('46', 'n2,n3');
    await site.must('launch', '--job', '46', '--', 'true');
    const stray = await site.cluster
      .node('n3')
      .spawn(['setpriv', `--reuid=${uid}`, `--regid=${uid}`, '--clear-groups', 'sleep', '300']);
    const blocked = await site.run(['lease', 'release', '--job', '46', '--json']);
    expect(blocked.status).toBe(69);
    const { error } = JSON.parse(blocked.stdout) as { error: { code: string; message: string } };
    expect(error.code).toBe('release-blocked');
    expect(error.message).toMatch(/n3/);
    expect(error.message).toMatch(/sleep 300/);
    expect(error.message).toMatch(/pid [0-9]+/);
    expect(await site.json('lease', 'show', '--job', '46')).toMatchObject({
      status: 'quarantined',
      quarantine: { code: 'node-dirty', node: 'n3' },
    });
    stray.kill('SIGKILL');
    await stray.ended;
    await site.must('lease', 'release', '--job', '46');
  });

  test('what a step leaves running ends with its job', async () => {
    await site.allocate('47', 'n1');
    await site.must(
      'launch',
      '--job',
      '47',
      '--',
      'sh',
      '-c',
      'setsid sh -c "sleep 300 & sleep 301" >/dev/null 2>&1 & exit 0',
    );
    await site.must('lease', 'release', '--job', '47');
  });
});
