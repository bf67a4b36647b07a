import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { Node, Spawned } from '../support/cluster/node.ts';
import { type Driver, kindsOf, type Lab, nextSpec, openLab, sh } from './sandbox-lab.ts';

let lab: Lab;
let n1: Node;
let driver: Driver;

beforeAll(async () => {
  lab = await openLab();
  ({ n1, driver } = lab);
}, 1_800_000);
afterEach(async () => {
  await lab.clear();
});
afterAll(async () => {
  await lab?.close();
}, 120_000);

const as = (uid: number, argv: readonly string[]): string[] => [
  'setpriv',
  `--reuid=${uid}`,
  `--regid=${uid}`,
  '--clear-groups',
  ...argv,
];

/** What a program says until it has said a word, or has ended. */
const readUntil = async (child: Spawned, word: string): Promise<string> => {
  let said = '';
  for await (const bytes of child.stdout) {
    said += String(bytes);
    if (said.includes(word)) break;
  }
  return said;
};

describe('the look for anything left of a uid', () => {
  test('sees nothing of a uid that has nothing', async () => {
    expect(await driver.call('scan', nextSpec())).toEqual([]);
  });

  test.each([
    ['uid and gid', (uid: number) => as(uid, ['sleep', '606'])],
    ['gid', (uid: number) => ['setpriv', `--regid=${uid}`, '--clear-groups', 'sleep', '606']],
    ['group', (uid: number) => ['setpriv', `--groups=${uid}`, 'sleep', '606']],
  ] as const)('sees a process by its %s, with pid and command', async (_, argv) => {
    const spec = nextSpec();
    const child = await n1.spawn([...argv(spec.uid)]);
    await n1.must(sh('until pgrep -x sleep; do :; done'));
    const findings = await driver.call('scan', spec);
    expect(kindsOf(findings)).toEqual(['process']);
    expect(findings[0]?.detail).toMatch(/^pid [0-9]+: sleep 606$/);
    child.kill('SIGKILL');
    await child.ended;
    expect(await driver.call('scan', spec)).toEqual([]);
  });

  // execve(2) makes these ids equal to the effective one, so the process stays what it was.
  test.each([
    ['saved uid', (uid: number) => `syscall(117, 0, 0, ${uid})`],
    ['saved gid', (uid: number) => `syscall(119, 0, 0, ${uid})`],
    ['file system uid', (uid: number) => `syscall(122, ${uid})`],
    ['file system gid', (uid: number) => `syscall(123, ${uid})`],
  ] as const)('sees a process that has it only as its %s', async (_, call) => {
    const spec = nextSpec();
    const child = await n1.spawn(['perl', '-e', `$| = 1; ${call(spec.uid)}; print 1; sleep 600`]);
    expect(await readUntil(child, '1')).toBe('1');
    const findings = await driver.call('scan', spec);
    expect(kindsOf(findings)).toEqual(['process']);
    expect(findings[0]?.detail).toMatch(/^pid [0-9]+: perl -e /);
    child.kill('SIGKILL');
    await child.ended;
    expect(await driver.call('scan', spec)).toEqual([]);
  });

  test('sees what a container on the node keeps: process, IPC objects, queue and files', async () => {
    const spec = nextSpec();
    const as = `setpriv --reuid=${spec.uid} --regid=${spec.uid} --clear-groups`;
    const script = [
      'mount -t tmpfs -o mode=1777 tmpfs /tmp && mount -t mqueue mqueue /dev/mqueue',
      `${as} sh -c 'touch /tmp/in-there /dev/mqueue/in-there && ipcmk -M 4096 && ipcmk -S 1 && ipcmk -Q'`,
      `${as} sleep 611 & until pgrep -u ${spec.uid} -x sleep; do :; done; echo ready; wait`,
    ].join('; ');
    const unshare = ['unshare', '--mount', '--pid', '--ipc', '--fork', '--kill-child', 'sh', '-c', script];
    const child = await n1.spawn(unshare);
    expect(await readUntil(child, 'ready')).toContain('ready');
    const findings = await driver.call('scan', spec);
    const kinds = ['file', 'posix-mqueue', 'process', 'sysv-msg', 'sysv-sem', 'sysv-shm'];
    expect(kindsOf(findings)).toEqual(kinds);
    expect(findings.find(({ kind }) => kind === 'file')?.detail).toMatch(
      /^\/proc\/[0-9]+\/root\/tmp\/in-there$/,
    );
    expect(findings.find(({ kind }) => kind === 'posix-mqueue')?.detail).toMatch(
      /^\/dev\/mqueue\/in-there, in ipc:\[[0-9]+\] of pid [0-9]+$/,
    );
    child.kill('SIGKILL');
    await child.ended;
    await n1.must(sh('while pgrep -x sleep; do :; done'));
    expect(await driver.call('scan', spec)).toEqual([]);
  });

  test('is not kept from its answer by what another uid made in a namespace of its own', async () => {
    const flood = '$| = 1; for (1 .. 20000) { defined semget(0, 1, 0600) or die $! } print "full"; sleep 612';
    const child = await n1.spawn(['unshare', '--ipc', ...as(nextSpec().uid, ['perl', '-e', flood])]);
    expect(await readUntil(child, 'full')).toBe('full');
    expect(await driver.call('scan', nextSpec())).toEqual([]);
    child.kill('SIGKILL');
    await child.ended;
  });

  test('sees a key of the kernel, whoever holds it', async () => {
    const spec = nextSpec();
    // Keys are the kernel's, not the node's: joins a session keyring of its own, adds a key, gives it away.
    // perl takes no literal for what a system call might change.
    const script = `$| = 1; my ($uid, $gid, $join, $ring) = (${spec.uid}, -1, 0, -3);
      my ($kind, $name, $payload) = ('user', 'xce-test', 'x');
      syscall(250, 1, $join); my $key = syscall(248, $kind, $name, $payload, 1, $ring);
      print syscall(250, 4, $key, $uid, $gid) == 0 ? 'given' : "no: $!"; sleep 600`;
    const child = await n1.spawn(['perl', '-e', script]);
    expect(await readUntil(child, 'given')).toBe('given');
    expect(await driver.call('scan', spec)).toEqual([{ kind: 'keyring', detail: '1 key of the kernel' }]);
    child.kill('SIGKILL');
    await child.ended;
    expect(await driver.call('scan', spec)).toEqual([]);
  });

  test.each([
    ['a crontab', (uid: number) => [`/var/spool/cron/crontabs/${uid}`, 0] as const],
    ['a crontab', (uid: number) => [`/var/spool/cron/xce-main-${uid - 70_000}`, 0] as const],
    ['a job of at', (uid: number) => ['/var/spool/cron/atjobs/a00001019f1a2b', uid] as const],
    ['a job of at', (uid: number) => ['/var/spool/at/a00001019f1a2b', uid] as const],
    ['a mark that starts a user manager', (uid: number) => [`/var/lib/systemd/linger/${uid}`, 0] as const],
  ])('sees %s by its name or owner', async (_, plant) => {
    const spec = nextSpec();
    const [path, owner] = plant(spec.uid);
    await n1.writeFile(path, '* * * * * true\n', { uid: owner, gid: 0, mode: 0o600 });
    expect(await driver.call('scan', spec)).toEqual([{ kind: 'cron', detail: path }]);
    await n1.must(['rm', path]);
    expect(await driver.call('scan', spec)).toEqual([]);
  });

  test('sees a process that stays in the slice, and one that moved out of its unit', async () => {
    const spec = nextSpec();
    const id = await lab.create(spec);
    await driver.start(spec, id, 'a', sh('sleep 607 & wait'));
    await n1.must(sh('until pgrep -x sleep; do :; done'));
    const pid = (await n1.must(['pgrep', '-u', String(spec.uid), 'sleep'])).trim();
    expect(kindsOf(await driver.call('scan', spec))).toContain('cgroup');
    await n1.must(sh(`mkdir /sys/fs/cgroup/elsewhere && echo ${pid} >/sys/fs/cgroup/elsewhere/cgroup.procs`));
    await driver.call('destroy', spec);
    expect(await driver.call('scan', spec)).toContainEqual({
      kind: 'process',
      detail: `pid ${pid}: sleep 607`,
    });
    await n1.must(['kill', '-KILL', pid]);
    await driver.end('a');
    await n1.must(sh('until rmdir /sys/fs/cgroup/elsewhere; do :; done'));
  });

  test('shows what a job calls its process on one line', async () => {
    const spec = nextSpec();
    const child = await n1.spawn(
      as(spec.uid, ['bash', '-c', 'exec -a "$1" sleep 608', 'x', '\u001b[2Jevil\nname']),
    );
    await n1.must(sh('until pgrep -x sleep; do :; done'));
    expect((await driver.call('scan', spec))[0]?.detail).toMatch(/^pid [0-9]+: \\x1b\[2Jevil\\nname 608$/);
    child.kill('SIGKILL');
    await child.ended;
  });

  test.each([
    ['sysv-shm', ['ipcmk', '-M', '4096'], ['ipcrm', '--all=shm']],
    ['sysv-sem', ['ipcmk', '-S', '1'], ['ipcrm', '--all=sem']],
    ['sysv-msg', ['ipcmk', '-Q'], ['ipcrm', '--all=msg']],
    ['posix-mqueue', ['touch', '/dev/mqueue/left'], ['rm', '/dev/mqueue/left']],
    ['file', ['touch', '/tmp/left'], ['rm', '/tmp/left']],
    ['file', ['touch', '/var/tmp/left'], ['rm', '/var/tmp/left']],
    ['file', ['mkdir', '/dev/shm/left'], ['rmdir', '/dev/shm/left']],
  ] as const)('sees a %s made by %j', async (kind, make, remove) => {
    const spec = nextSpec();
    await n1.must(as(spec.uid, make));
    expect(kindsOf(await driver.call('scan', spec))).toEqual([kind]);
    await n1.must([...remove]);
    expect(await driver.call('scan', spec)).toEqual([]);
  });

  test('sees a file by its group, deep in a directory of others', async () => {
    const spec = nextSpec();
    const path = "'/tmp/deep/a\n b/x'";
    await n1.must(sh(`mkdir -p '/tmp/deep/a\n b' && touch ${path} && chgrp ${spec.uid} ${path}`));
    expect(await driver.call('scan', spec)).toEqual([{ kind: 'file', detail: '/tmp/deep/a\\n b/x' }]);
    await n1.must(['rm', '-r', '/tmp/deep']);
  });

  test('sees units of the lease in any state, user records, mounts and the box', async () => {
    const spec = nextSpec();
    const prefix = `xce-main-${spec.lease}.other.9`;
    const box = `/run/xce-sandbox/main/box/${spec.lease}`;
    await n1.exec(['systemd-run', '-q', '--wait', `--unit=${prefix}.step.x.service`, 'false']);
    await n1.must(['systemd-run', '-q', `--unit=${prefix}.step.y.service`, 'sleep', '600']);
    await n1.must(['mkdir', '-p', '/run/userdb', `${box}/shm`]);
    await n1.writeFile(`/run/userdb/xce-main-${spec.lease}:games.membership`, '{}');
    await n1.must(['mount', '-t', 'tmpfs', 'x', `${box}/shm`]);
    const findings = await driver.call('scan', spec);
    expect(kindsOf(findings)).toEqual(['file', 'mount', 'unit', 'user-record']);
    expect(findings.filter(({ kind }) => kind === 'unit').map(({ detail }) => detail)).toEqual(
      expect.arrayContaining([`${prefix}.step.x.service is failed`, `${prefix}.step.y.service is active`]),
    );
    await n1.must(['rm', `/run/userdb/xce-main-${spec.lease}:games.membership`]);
    lab.open.push(spec);
  });

  test('does not call clean what it could not look at', async () => {
    const spec = nextSpec();
    await n1.must(['chmod', '0644', '/usr/bin/find']);
    expect(kindsOf(await driver.call('scan', spec))).toEqual(['unknown']);
    await n1.must(['chmod', '0755', '/usr/bin/find']);
    expect(await driver.call('scan', spec)).toEqual([]);
  });
});
