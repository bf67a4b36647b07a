import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { Node } from '../support/cluster/node.ts';
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
    await n1.must(['umount', '/dev/mqueue']);
    expect(kindsOf(await driver.call('scan', spec))).toEqual(['unknown']);
    await n1.must(['mount', '-t', 'mqueue', 'mqueue', '/dev/mqueue']);
    expect(await driver.call('scan', spec)).toEqual([]);
  });
});
